"""What a run says of itself at its start and at its end."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from vime.redact import Redactor

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
    rows["device"] = device()
    rows["runtime"] = f"{_ray(config, train=train)}; {config.pipeline}" if config.runtime == "ray" else f"local, {config.pipeline}"
    if train:
        length = f"{config.num_rollout} rollouts" if config.num_rollout is not None else f"{config.num_epoch or 1} epochs"
        rows["batch"] = f"{config.rollout_batch_size} prompts x {config.n_samples_per_prompt} samples"
        rows["training"] = f"{length}, {config.advantage_estimator if config.loss_type != 'sft_loss' else 'sft_loss'}, lr {config.lr:g}"
    rows["run folder"] = str(run_folder)
    if resume is not None:
        rows["goes on from"] = f"{resume.path} (rollout {resume.manifest['rollout_id']})"
    return rows


def secrets_of(config: RunConfig, plugins: PluginManager) -> Redactor:
    """What no text of a run may show: the secrets of its environment, its configuration and the settings of its plugins."""
    return Redactor.of(os.environ, config, *(plugin.settings for plugin in plugins.plugins))


def device(root: Path = Path("/")) -> str:
    """The GPUs that a run may see, by name, else the processor; without torch, which is not loaded yet."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    files = sorted(root.glob("proc/driver/nvidia/gpus/*/information"))
    names = [match[1].strip() for file in files if (match := re.search(r"Model:(.*)", file.read_text(errors="replace")))]
    if visible is not None:
        names = names[: len([word for word in visible.split(",") if word.strip() and word.strip() != "-1"])]
    if names:
        return ", ".join(f"{count} x {name}" for name, count in Counter(names).items())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"CPU, {cores} {'core' if cores == 1 else 'cores'} ({platform.machine()})"


def _ray(config: RunConfig, *, train: bool) -> str:
    """Which processes a run on Ray is made of, and where they are."""
    engines = "" if config.debug_train_only else _count(config.engines, "engine")
    if engines and config.engine_tp > 1:
        engines += f" x {config.engine_tp} devices"
    parts = [_count(config.trainer_ranks, "trainer rank") if train and not config.debug_rollout_only else "", engines]
    where = "in a Ray of its own on this machine" if config.ray_address is None else f"in the cluster at {config.ray_address}"
    return f"Ray: {' and '.join(filter(None, parts))}, {where}"


def starting_trainer(config: RunConfig) -> str:
    """What is under way while the trainer starts."""
    return "starting the trainer" + (f": {_count(config.trainer_ranks, 'rank')}" if config.runtime == "ray" else "")


def starting_engine(config: RunConfig) -> str:
    """What is under way while the engine starts."""
    return "starting vLLM" + (f": {_count(config.engines, 'engine')}" if config.runtime == "ray" else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


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
