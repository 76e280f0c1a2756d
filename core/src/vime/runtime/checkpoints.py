"""What a run saves at a step boundary, and how it goes on from there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime.errors import CheckpointError
from vime.rollout.data_source import RolloutDataSourceWithBuffer
from vime.sample import Sample
from vime.train.checkpoint import export_critic, save_checkpoint, set_aside_later

if TYPE_CHECKING:
    from vime.runtime.resume import ResumePoint
    from vime.runtime.run import Run
    from vime.train.base import Trainer


@dataclass(frozen=True)
class Boundary:
    """A run between two steps: all that a resumed run needs beside the trainer's own files."""

    state: dict[str, Any]
    """Plain data, for the manifest of a checkpoint."""
    random_states: tuple[Any, Any]
    """Those of Python and NumPy, and those of torch. The trainer saves them; an interrupted step may have moved them on."""

    @classmethod
    def of(cls, run: Run) -> Boundary:
        from vime.train.random_states import rng_states, torch_rng_states

        position = run.pipeline.position()
        state = {
            "rollout_id": run.rollout_id,
            "num_rollout": run.num_rollout,
            "data_source": position.data_source,
            "in_flight": position.in_flight,
            "plugins": position.plugins,
            "lock": run.plugins.lock(),
            "evaluated_at": run.evaluated_at,
            "first_scores": run.first_scores,
            "last_scores": run.last_scores,
        }
        return cls(state, (rng_states(), torch_rng_states()))

    def restore_random_states(self) -> None:
        from vime.train.random_states import restore_rng

        restore_rng(*self.random_states)


def write_checkpoint(run: Run, trainer: Trainer, boundary: Boundary) -> None:
    """Model, tokenizer, trainer and the state of the boundary, as `checkpoints/step_<rollout_id>`."""

    def write(directory: Path) -> None:
        trainer.save(str(directory))
        run.tokenizer.save_pretrained(str(directory))
        if run.source is not None and boundary.state["data_source"] is None:
            run.source.save(run.rollout_id)  # a class of the user's own, with upstream's methods only

    with run.console.phase(f"saving checkpoint step_{run.rollout_id}"):
        path = save_checkpoint(run.run_dir.checkpoints, run.rollout_id, write, boundary.state, keep=run.config.keep_checkpoints)
        export_critic(run.config, path)


def take_over(run: Run, resume: ResumePoint | None) -> None:
    """Go on from the checkpoint, or start anew; what the folder holds of later steps belongs to neither."""
    if resume is not None:
        restore(run, resume)
        run.console.start_scores(run.first_scores)
        if resume.path.parent.resolve() == run.run_dir.checkpoints.resolve():
            run.saved_at = run.rollout_id
    if run.run_dir.continued:
        run.forget_later_metrics()
    if run.trainer is not None:
        for path in set_aside_later(run.run_dir.checkpoints, run.rollout_id):
            run.console.warn(f"a checkpoint of a later step is not of this course: moved to {path}")
        if run.rollout_id >= run.num_rollout > 0:
            run.console.info(f"all {run.num_rollout} rollouts are done: nothing is left to train")


_PARTS = {"rollout_id", "num_rollout", "data_source", "plugins", "lock", "evaluated_at", "first_scores", "last_scores"}


def restore(run: Run, resume: ResumePoint) -> None:
    """Give everything that a checkpoint holds back to its owner. Raises CheckpointError for a manifest that lacks a part."""
    manifest = resume.manifest
    missing = _PARTS - manifest.keys()
    if missing:
        raise CheckpointError(f"{resume.path} cannot be resumed from: its manifest has no {', '.join(sorted(missing))}")
    run.rollout_id = manifest["rollout_id"]
    if run.trainer is not None:
        run.trainer.load(str(resume.path))
    if run.source is not None and manifest["data_source"] is None:
        run.source.load(run.rollout_id)
    elif run.source is not None:
        run.source.load_state_dict(manifest["data_source"])  # type: ignore[attr-defined]
    in_flight = [[Sample.from_dict(sample) for sample in group] for group in manifest.get("in_flight") or ()]
    if isinstance(run.source, RolloutDataSourceWithBuffer):
        run.source.buffer[:0] = in_flight
    elif in_flight and run.source is not None:
        run.source.add_samples(in_flight)
    run.plugins.load_state_dict(manifest["plugins"], ignore_missing=run.config.ignore_plugin_lock)
    run.evaluated_at, run.first_scores, run.last_scores = manifest["evaluated_at"], manifest["first_scores"], manifest["last_scores"]
