"""Whether what was calculated fits: into the memory of each machine and GPU, and onto the disk of the run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from vime.doctor.estimate import Estimate
from vime.doctor.findings import Finding, size_text
from vime.doctor.machine import GIB, Machine
from vime.runtime.ray.plan import Node, Plan

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig

_SAVES_MEMORY = "a smaller model or batch, --lora-rank, --zero-stage 3 on several ranks, or a smaller --vllm-kv-cache-gib"


def memory_findings(config: RunConfig, needed: Estimate, machine: Machine, plan: Plan | None, nodes: list[Node]) -> list[Finding]:
    """Where the calculated memory, a lower bound, exceeds what is there (`stops`), or what is free now (`warning`)."""
    has_trainer, has_engine = trains(config), not config.debug_train_only
    rank = sum(needed.rank.values()) * has_trainer
    host = sum(needed.rank_on_host.values()) * has_trainer
    engine = sum(needed.engine.values()) * has_engine
    # Gradients are there while the engine is not, and the other way round.
    together = rank + engine - min(engine, needed.rank["gradients"] * has_trainer)
    on_gpus = bool(machine.gpus) if plan is None else any("GPU" in bundle for bundle in plan.bundles)
    if on_gpus:
        shared = plan is None or plan.colocated
        per_gpu = _gpu(machine, together if shared else max(rank, engine), "engine and trainer" if shared else "a rank or an engine")
        return [found for found in (per_gpu, _host(machine, host) if plan is None else None) if found is not None]
    if plan is None:
        found = _host(machine, rank + engine)
        return [] if found is None else [found]
    findings: list[Finding] = []
    for node in nodes:
        ranks, engines = (sum(place.node == node.name for place in places) for places in (plan.ranks, plan.engines))
        here = rank * ranks + engine * config.engine_tp * engines
        if node.memory_gib and here > node.memory_gib:
            what = f"{ranks} ranks and {engines} engines on node {node.name}"
            findings.append(Finding("stops", f"{what} need {here:.1f} GiB, and it has {node.memory_gib:.1f} GiB", _SAVES_MEMORY))
    return findings


def trains(config: RunConfig) -> bool:
    """Whether the run has a trainer."""
    return not config.debug_rollout_only and config.num_rollout != 0


def _gpu(machine: Machine, needed: float, what: str) -> Finding | None:
    smallest = min((gpu.memory_gib for gpu in machine.gpus if gpu.memory_gib is not None), default=None)
    if smallest is None or needed <= smallest:
        return None
    return Finding("stops", f"{what} on a GPU need {needed:.1f} GiB, and it has {smallest:.1f} GiB", _SAVES_MEMORY)


def _host(machine: Machine, needed: float) -> Finding | None:
    if not machine.memory_gib or needed <= machine.memory_free_gib:
        return None
    if needed > machine.memory_gib:
        return Finding(
            "stops", f"the run needs {needed:.1f} GiB of memory, and this machine has {machine.memory_gib:.1f} GiB", _SAVES_MEMORY
        )
    text = f"the run needs {needed:.1f} GiB of memory, and {machine.memory_free_gib:.1f} of {machine.memory_gib:.1f} GiB are free now"
    return Finding("warning", text, "end what else runs here")


def runs_folder(config: RunConfig | None) -> Path:
    """The folder that the checkpoints go to, or the nearest one above it that exists."""
    chosen = None if config is None else config.save or config.run_dir
    folder = Path(chosen or "runs").expanduser().absolute()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder


def free_disk(folder: Path) -> float:
    """GiB free there."""
    return shutil.disk_usage(folder).free / GIB


def disk_findings(config: RunConfig | None, folder: Path, needed: Estimate | None) -> list[Finding]:
    """A folder that cannot be written to, or that does not hold the checkpoints of the run."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return [
            Finding("stops", f"{folder} is read-only: the run has nowhere to go", "choose a folder that you may write to: --run-dir DIR")
        ]
    free = free_disk(folder)
    if needed is None or config is None or not trains(config):
        return []
    kept = (config.keep_checkpoints or 1) + 1 if config.save_interval else 1  # the new one is written before the oldest goes
    if kept * needed.disk <= free:
        return []
    count = "a checkpoint takes" if kept == 1 else f"{kept} checkpoints take"
    text = f"{count} {size_text(kept * needed.disk)}, and {folder} has {size_text(free)} free"
    return [Finding("warning", text, "choose another --save or --run-dir, or a smaller --keep-checkpoints")]
