"""Whole runs of the three pipelines, on an engine and a trainer without a model: what is trained, saved, resumed, interrupted."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vime.api import Sample, hookimpl
from vime.config.load import Resolved
from vime.config.run_config import RunConfig
from vime.errors import ConfigError
from vime.loop import train
from vime.plugins.manager import PluginManager
from vime.rollout.data_source import RolloutDataSource
from vime.testing.fakes import FakeEngine
from vime.testing.placement import QUICKSTART, FakePlacement, FakeTrainer
from vime.train.checkpoint import read_manifest

NUM_GPUS = 0

pytest.importorskip("torch")
pytest.importorskip("transformers")

BATCH, SAMPLES, ROLLOUTS = 2, 2, 5
AHEAD = ("async", "continuous")


async def index_parity(args: Any, sample: Sample) -> float:
    return float((sample.index or 0) % 2)


class StrictEngine(FakeEngine):
    """Refuses new weights while requests run, as --pipeline async promises, unless it is told to keep these."""

    kept_requests = 0

    def update_weights(self, named_tensors: Any, version: int, *, keep_requests: bool = False) -> None:
        assert keep_requests or not self.running
        self.kept_requests += self.running
        super().update_weights(named_tensors, version, keep_requests=keep_requests)


class Setup:
    """A run of `pipeline` over forty prompts in the folder `name`; hooks are callables, the rest are options."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, pipeline: str, name: str = "run", **hooks_and_options: Any) -> None:
        latency, seconds = hooks_and_options.pop("latency", 0.0), hooks_and_options.pop("seconds", 0.0)
        hooks = {key: value for key, value in hooks_and_options.items() if callable(value)}
        options = {key: value for key, value in hooks_and_options.items() if key not in hooks}
        self.folder = folder / name
        prompts = folder / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"input": f"p{number}"}) + "\n" for number in range(40)))
        defaults = {"num_rollout": ROLLOUTS, "quiet": True, "tensorboard": False, "sample_every": 0, "save_interval": 1}
        self.config = RunConfig(
            pipeline=pipeline,
            runtime="local" if pipeline == "sync" else "ray",
            hf_checkpoint=str(QUICKSTART),
            prompt_data=str(prompts),
            rollout_batch_size=BATCH,
            n_samples_per_prompt=SAMPLES,
            rollout_max_response_len=6,
            run_dir=str(self.folder),
            **{**defaults, **options},
        )
        self.plugins = PluginManager()
        for hook, function in {"custom_rm": index_parity, **hooks}.items():
            if isinstance(function, type):
                self.plugins.add(function, name=hook)
            else:
                module = ModuleType(hook)
                setattr(module, hook, hookimpl(function))
                self.plugins.add(module, name=hook)
        self.monkeypatch = monkeypatch
        self.engine = StrictEngine(latency=latency)
        self.trainer = FakeTrainer(self.engine, seconds)

    def run(self) -> int:
        self.monkeypatch.setattr(PluginManager, "load", classmethod(lambda cls, config: self.plugins))
        try:
            return train(Resolved(self.config, {}), FakePlacement(self.engine, self.trainer))
        finally:
            assert self.engine.closed and self.trainer.closed and not self.engine.running
            assert not [thread for thread in threading.enumerate() if thread.name == "vime-rollouts"]

    @property
    def trained(self) -> list[list[int]]:
        """The indices of the samples of each batch."""
        return [batch.sample_indices for batch in self.trainer.batches]

    def metrics(self, namespace: str) -> list[dict[str, float]]:
        lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if any(key.startswith(f"{namespace}/") for key in line)]


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Setup]:
    """`setup("async", custom_rm=function, num_rollout=3)`."""
    return lambda *arguments, **options: Setup(tmp_path, monkeypatch, *arguments, **options)


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


EVERY = list(range(ROLLOUTS * BATCH * SAMPLES))


def test_async_trains_on_the_data_of_sync(setup: Callable[..., Setup]) -> None:
    """For a policy that does not change, with a filter that refuses a third of the groups."""

    def dynamic_sampling_filter(samples: list[Sample]) -> bool:
        return (samples[0].group_index or 0) % 3 != 1

    runs = [setup(pipeline, pipeline, dynamic_sampling_filter=dynamic_sampling_filter, max_staleness=9) for pipeline in ("sync", "async")]
    assert [run.run() for run in runs] == [0, 0]
    sync, ahead = (run.trainer.batches for run in runs)
    assert len(sync) == ROLLOUTS
    for one, other in zip(sync, ahead, strict=True):
        assert (one.tokens, one.rollout_log_probs, one.rewards) == (other.tokens, other.rollout_log_probs, other.rewards)
    assert "perf/generation_time" in runs[1].metrics("perf")[0] and "perf/generation_time" not in runs[0].metrics("perf")[0]


@pytest.mark.parametrize("pipeline", AHEAD)
def test_a_rollout_is_made_while_the_trainer_works(setup: Callable[..., Setup], pipeline: str) -> None:
    asked: list[int] = []

    def seconds(batch: Any) -> float:
        """Work until the engine has been asked for the next batch, which in a run without overlap it never is."""
        want = min((batch.rollout_id + 2) * BATCH * SAMPLES, len(EVERY))
        deadline = time.monotonic() + 20
        while len(run.engine.requests) < want and time.monotonic() < deadline:
            time.sleep(0.001)
        asked.append(len(run.engine.requests))
        return 0.0

    run = setup(pipeline, seconds=seconds)
    assert run.run() == 0
    assert asked == [min((number + 2) * BATCH * SAMPLES, len(EVERY)) for number in range(ROLLOUTS)], "no further ahead than one rollout"
    assert sorted(flat(run.trained)) == EVERY and len(run.engine.requests) == len(EVERY), "nothing is made beyond the last rollout"
    if pipeline == "async":
        assert [line["rollout/staleness_mean"] for line in run.metrics("rollout")] == [0] + [1] * (ROLLOUTS - 1)
        assert [line["rollout/staleness_max"] for line in run.metrics("rollout")] == [0] + [1] * (ROLLOUTS - 1)


def test_continuous_requests_live_through_a_change_of_weights(setup: Callable[..., Setup]) -> None:
    run = setup("continuous", latency=lambda prompt, params: 0.002 * (len(run.engine.requests) % 40), max_staleness=3)
    assert run.run() == 0
    assert run.engine.kept_requests > 0
    assert sorted(flat(run.trained)) == EVERY
    assert all(0 <= line["rollout/staleness_max"] <= 3 for line in run.metrics("rollout"))
    for batch in run.trainer.batches:
        assert all(batch.rollout_id - 3 <= min(versions) <= batch.rollout_id for versions in batch.weight_versions)


@pytest.mark.parametrize("pipeline", AHEAD)
@pytest.mark.parametrize("resumed_as", ["same", "sync"])
def test_no_sample_is_lost_or_used_twice_whatever_checkpoint_a_run_goes_on_from(
    setup: Callable[..., Setup], pipeline: str, resumed_as: str
) -> None:
    options = {"seconds": 0.01, "latency": lambda prompt, params: 0.001 * (sum(prompt) % 20), "max_staleness": 2}
    first = setup(pipeline, **options)
    assert first.run() == 0
    assert sorted(flat(first.trained)) == EVERY
    in_flight = 0
    for step in range(1, ROLLOUTS):
        checkpoint = first.folder / "checkpoints" / f"step_{step}"
        in_flight += len(read_manifest(checkpoint)["in_flight"])
        again = setup(pipeline if resumed_as == "same" else "sync", f"again_{step}", load=str(checkpoint), **options)
        assert again.run() == 0
        assert sorted(flat(first.trained[:step] + again.trained)) == EVERY
    assert bool(in_flight) == (pipeline == "continuous")
    assert read_manifest(first.folder / "checkpoints" / f"step_{ROLLOUTS}")["in_flight"] == []


@pytest.mark.parametrize("pipeline", AHEAD)
@pytest.mark.parametrize(("signum", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("where", ["training", "waiting"])
def test_a_signal_goes_back_to_the_boundary_and_saves(
    setup: Callable[..., Setup], pipeline: str, signum: int, exit_code: int, where: str
) -> None:
    def seconds(batch: Any) -> float:
        if where == "training" and batch.rollout_id == 2:
            signal.raise_signal(signum)
        return 0.0

    def latency(prompt: Any, params: Any) -> float:
        if where == "waiting" and len(run.engine.requests) > 3 * BATCH * SAMPLES:
            if len(run.engine.requests) == 3 * BATCH * SAMPLES + 1:
                threading.Timer(0.05, os.kill, (os.getpid(), signum)).start()
            return 60.0
        return 0.0

    run = setup(pipeline, seconds=seconds, latency=latency, save_interval=None)
    assert run.run() == exit_code
    (checkpoint,) = (run.folder / "checkpoints").glob("step_*")
    done = read_manifest(checkpoint)["rollout_id"]
    assert done == 3 if where == "training" else done in (2, 3), "a step that has trained ends as a whole"
    assert [line["step"] for line in run.metrics("rollout")] == list(range(done)), "what was logged of the step is taken back"
    again = setup(pipeline, load="auto", save_interval=None)
    assert again.run() == 0
    assert sorted(flat(run.trained[:done] + again.trained)) == EVERY


@pytest.mark.parametrize("pipeline", AHEAD)
def test_an_error_in_a_rollout_under_way_ends_the_run_with_its_own_message(setup: Callable[..., Setup], pipeline: str) -> None:
    async def custom_rm(args: Any, sample: Sample) -> float:
        if sample.index == 2 * BATCH * SAMPLES:
            raise ValueError("sample eight is cursed")
        return 0.0

    run = setup(pipeline, custom_rm=custom_rm)
    with pytest.raises(ValueError, match="sample eight is cursed"):
        run.run()
    assert len(run.trained) in (1, 2)


@pytest.mark.parametrize("pipeline", AHEAD)
def test_an_error_in_training_ends_the_rollout_under_way(setup: Callable[..., Setup], pipeline: str) -> None:
    def seconds(batch: Any) -> float:
        if batch.rollout_id == 1:
            raise RuntimeError("a rank is gone")
        return 0.0

    run = setup(pipeline, seconds=seconds, latency=lambda prompt, params: 60.0 if len(run.engine.requests) > 2 * BATCH * SAMPLES else 0.0)
    with pytest.raises(RuntimeError, match="a rank is gone"):
        run.run()


@pytest.mark.parametrize("pipeline", ["sync", *AHEAD])
def test_every_boundary_is_evaluated_at_its_own_weights(setup: Callable[..., Setup], tmp_path: Path, pipeline: str) -> None:
    versions: list[set[int]] = []
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text("".join(json.dumps({"input": f"e{number}"}) + "\n" for number in range(3)))

    def log_eval_rollout_data(rollout_id: int, data: Any) -> None:
        versions.append({version for sample in data["held-out"]["samples"] for version in sample.weight_versions})

    run = setup(
        pipeline,
        eval_interval=1,
        eval_prompt_data=["held-out", str(held_out)],
        log_eval_rollout_data=log_eval_rollout_data,
        latency=0.01,
    )
    assert run.run() == 0
    assert versions == [{boundary} for boundary in range(ROLLOUTS + 1)]
    assert [line["step"] for line in run.metrics("eval")] == list(range(ROLLOUTS + 1))
    assert sorted(flat(run.trained)) == EVERY, "an evaluation takes nothing from the rollout under way"


def test_unfinished_samples_go_on_in_the_next_rollout_but_one(setup: Callable[..., Setup]) -> None:
    """Async with partial rollouts and over-sampling: tokens of several versions, none older than allowed."""
    run = setup(
        "async",
        partial_rollout=True,
        over_sampling_batch_size=BATCH + 2,
        max_staleness=2,
        deterministic=False,
        latency=lambda prompt, params: 0.3 if len(run.engine.requests) % 5 == 0 else 0.1,
    )
    assert run.run() == 0
    versions = [versions for batch in run.trainer.batches for versions in batch.weight_versions]
    assert any(len(set(made)) > 1 for made in versions)
    newest = [batch.rollout_id - max(versions) for batch in run.trainer.batches for versions in batch.weight_versions]
    assert max(newest) <= 2 and len(set(flat(run.trained))) == len(EVERY)


class RefusesRepeats:
    """A filter with a state: it keeps each group once."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @hookimpl
    async def dynamic_sampling_filter(self, samples: list[Sample]) -> bool:
        group = samples[0].group_index or 0
        if group in self.seen:
            return False
        self.seen.append(group)
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class CountsBatches:
    """A training hook with a state."""

    def __init__(self) -> None:
        self.batches = 0

    @hookimpl
    def post_process_rewards(self, samples: list[Sample]) -> tuple[list[float], list[float]]:
        self.batches += 1
        return [0.0] * len(samples), [0.0] * len(samples)

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]


def test_the_state_of_a_plugin_is_that_of_the_rollouts_which_were_trained(setup: Callable[..., Setup]) -> None:
    run = setup("async", filter=RefusesRepeats, rewards=CountsBatches)
    assert run.run() == 0
    for step in range(1, ROLLOUTS):
        plugins = read_manifest(run.folder / "checkpoints" / f"step_{step}")["plugins"]
        assert plugins == {"filter": {"seen": list(range(step * BATCH))}, "rewards": {"batches": step}}


def test_a_group_that_waits_in_a_checkpoint_is_not_judged_again(setup: Callable[..., Setup]) -> None:
    options: dict[str, Any] = {"filter": RefusesRepeats, "max_staleness": 2, "seconds": 0.05}
    run = setup("continuous", **options)
    assert run.run() == 0
    checkpoint = run.folder / "checkpoints" / "step_2"
    assert any(sample["tokens"] for group in read_manifest(checkpoint)["in_flight"] for sample in group)
    again = setup("continuous", "again", load=str(checkpoint), **options)
    assert again.run() == 0
    assert sorted(flat(run.trained[:2] + again.trained)) == EVERY


async def generate_rollout(rollout_id: int) -> list[list[Sample]]:
    raise AssertionError("not called")


class WithoutBuffer(RolloutDataSource):
    """Takes nothing back."""


def without_buffer(args: Any) -> Any:
    return WithoutBuffer(args)


class WithoutState:
    """Upstream's methods only."""

    def __init__(self, source: RolloutDataSource) -> None:
        self.get_samples, self.add_samples, self.save, self.load = source.get_samples, source.add_samples, source.save, source.load

    def __len__(self) -> int:
        return 40


@pytest.mark.parametrize(
    ("pipeline", "hooks", "message"),
    [
        ("continuous", {"generate_rollout": generate_rollout}, "plugin 'generate_rollout' makes whole rollouts"),
        ("async", {"make_data_source": lambda args: WithoutState(RolloutDataSource(args))}, "WithoutState has no state_dict"),
        ("continuous", {"make_data_source": lambda args: WithoutState(RolloutDataSource(args))}, "WithoutState has no state_dict"),
        ("continuous", {"make_data_source": without_buffer}, "WithoutBuffer takes none"),
    ],
)
def test_what_would_lose_samples_is_refused_up_front(
    setup: Callable[..., Setup], pipeline: str, hooks: dict[str, Any], message: str
) -> None:
    run = setup(pipeline, **hooks)
    run.engine.closed = run.trainer.closed = True  # neither is started
    with pytest.raises(ConfigError, match=message):
        run.run()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
