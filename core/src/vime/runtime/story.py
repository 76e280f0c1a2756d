"""What a run says of itself at its start and at its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.plugins.manager import PluginManager
    from vime.runtime.resume import ResumePoint


def header_rows(config: RunConfig, plugins: PluginManager, run_folder: Path, resume: ResumePoint | None, *, train: bool) -> dict[str, str]:
    """What is run: model, data, plugins with versions, batch, length, folder."""
    names = [f"{p.name} ({p.distribution} {p.version})" if p.distribution else p.name for p in plugins.plugins]
    names += sorted(set(plugins.path_labels()))
    model = config.hf_checkpoint
    if config.quickstart:
        model = "the quickstart model that comes with vime (choose your own with --model and --prompt-data)"
    data = ", ".join(f"{dataset.name}: {dataset.path}" for dataset in config.eval_datasets)
    if train:
        data = "arithmetic problems that come with vime" if config.quickstart else str(config.prompt_data)
    rows = {"model": str(model), "data": data, "plugins": ", ".join(names) or "none"}
    if train:
        length = f"{config.num_rollout} rollouts" if config.num_rollout is not None else f"{config.num_epoch or 1} epochs"
        rows["batch"] = f"{config.rollout_batch_size} prompts x {config.n_samples_per_prompt} samples"
        rows["training"] = f"{length}, {config.advantage_estimator if config.loss_type != 'sft_loss' else 'sft_loss'}, lr {config.lr:g}"
    rows["run folder"] = str(run_folder)
    if resume is not None:
        rows["goes on from"] = f"{resume.path} (rollout {resume.manifest['rollout_id']})"
    return rows


def summary_rows(
    *, first_scores: dict[str, float], last_scores: dict[str, float], checkpoint: Path | None, run_folder: Path, seconds: float
) -> dict[str, str]:
    """The scores, before and after where there was more than one evaluation, and where everything is."""
    rows: dict[str, str] = {}
    for name, score in last_scores.items():
        first = first_scores.get(name) if first_scores != last_scores else None
        rows[name] = f"{score:.3f}" if first is None else f"{first:.3f} -> {score:.3f}  ({score - first:+.3f})"
    if checkpoint is not None:
        rows["checkpoint"] = str(checkpoint)
    return rows | {"run folder": str(run_folder), "time": f"{seconds:.0f} s"}
