"""Everything that `vime doctor` reports, in one object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime.config.inputs import find_model
from vime.doctor.cluster import cluster_nodes, this_machine
from vime.doctor.estimate import Estimate, Model, estimate, read_model
from vime.doctor.findings import Finding, Findings
from vime.doctor.machine import Machine, look_at_machine
from vime.doctor.run import check_run, data_of
from vime.doctor.space import disk_findings, free_disk, memory_findings, runs_folder, trains
from vime.doctor.traps import Scene, look_for_traps
from vime.doctor.versions import Version, versions
from vime.errors import VimeError
from vime.plugins.discovery import discover
from vime.runtime.ray.plan import Node, Plan, plan

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig


@dataclass(frozen=True)
class Report:
    """What was seen. `config` is None where no run was asked about, or where its flags cannot be read."""

    versions: tuple[Version, ...]
    installed_plugins: dict[str, list[str]]
    """Names by distribution and version."""
    machine: Machine
    runs_folder: Path
    disk_free_gib: float
    config: RunConfig | None
    model: str | None
    data: dict[str, list[str]]
    """By path: what it is read for, "prompts" or the names of evaluation datasets."""
    plugins: tuple[dict[str, Any], ...]
    """Those that the run loads, where they can be loaded."""
    estimate: Estimate | None
    nodes: tuple[Node, ...]
    """The machines of --runtime ray."""
    plan: Plan | None
    findings: tuple[Finding, ...]

    @property
    def starts(self) -> bool:
        """Whether nothing was found that would stop the run."""
        return not any(finding.level == "stops" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The public form: plain data."""
        config = self.config
        run: dict[str, Any] | None = None
        if config is not None:
            run = {"runtime": config.runtime, "pipeline": config.pipeline, "model": self.model, "data": self.data}
            run["plugins"] = list(self.plugins)
        return {
            "starts": self.starts,
            "findings": [asdict(finding) for finding in self.findings],
            "versions": [asdict(version) for version in self.versions],
            "installed_plugins": self.installed_plugins,
            "machine": asdict(self.machine),
            "disk": {"folder": str(self.runs_folder), "free_gib": self.disk_free_gib},
            "run": run,
            "calculated_memory_gib": None if self.estimate is None else asdict(self.estimate),
            "placement": None if self.plan is None else asdict(self.plan) | {"nodes": [asdict(node) for node in self.nodes]},
        }


def examine(
    config: RunConfig | None,
    env: Mapping[str, str],
    *,
    refusals: list[VimeError],
    warnings: list[str],
    on_wait: Callable[[list[str]], None] | None = None,
) -> Report:
    """Look at everything. `refusals` and `warnings` are what the flags have met with already."""
    findings = Findings()
    for error in refusals:
        findings.refused(error)
    for text in warnings:
        findings.add(Finding("warning", text))
    machine = look_at_machine(env)
    loaded = check_run(config, findings, on_wait=on_wait) if config is not None else []
    nodes: list[Node] = []
    placed: Plan | None = None
    if config is not None and config.runtime == "ray":
        try:
            nodes = [this_machine(machine)] if config.ray_address is None else cluster_nodes(config.ray_address)
            placed = plan(config, nodes, trainer=trains(config))
        except VimeError as error:
            findings.refused(error)
    model = _model(config)
    needed = _estimate(config, model, machine, placed)
    if config is not None and needed is not None:
        for finding in memory_findings(config, needed, machine, placed, nodes):
            findings.add(finding)
    folder = runs_folder(config)
    for finding in disk_findings(config, folder, needed):
        findings.add(finding)
    installed = tuple(versions())
    for finding in look_for_traps(_scene(config, env, machine, installed, placed, model)):
        findings.add(finding)
    return Report(
        versions=installed,
        installed_plugins=_installed_plugins(),
        machine=machine,
        runs_folder=folder,
        disk_free_gib=free_disk(folder),
        config=config,
        model=None if config is None else config.hf_checkpoint,
        data={} if config is None else data_of(config),
        plugins=tuple(loaded),
        estimate=needed,
        nodes=tuple(nodes),
        plan=placed,
        findings=tuple(findings.all),
    )


def _installed_plugins() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in sorted(discover().entries, key=lambda entry: (entry.distribution, entry.name)):
        found.setdefault(f"{entry.distribution} {entry.version}", []).append(entry.name)
    return found


def _model(config: RunConfig | None) -> Model | None:
    """The model's files, where they are whole: what is wrong with them is a finding already."""
    if config is None or config.hf_checkpoint is None:
        return None
    try:
        return read_model(find_model(config.hf_checkpoint))
    except VimeError:
        return None


def _estimate(config: RunConfig | None, model: Model | None, machine: Machine, placed: Plan | None) -> Estimate | None:
    if config is None or model is None:
        return None
    on_gpu = bool(machine.gpus) if placed is None else any("GPU" in bundle for bundle in placed.bundles)
    known = [gpu.memory_gib for gpu in machine.gpus if gpu.memory_gib is not None] if config.ray_address is None else []
    return estimate(config, model, on_gpu=on_gpu, gpu_gib=min(known, default=None))


def _scene(
    config: RunConfig | None,
    env: Mapping[str, str],
    machine: Machine,
    installed: tuple[Version, ...],
    placed: Plan | None,
    model: Model | None,
) -> Scene:
    uses_ray = config is not None and config.runtime == "ray"
    own_ray = config is not None and config.ray_address is None
    return Scene(
        machine=machine,
        versions=installed,
        env=env,
        uses_ray=uses_ray,
        own_ray=own_ray,
        ray_processes=len(placed.ranks) + len(placed.engines) if placed is not None and own_ray else 0,
        has_run=config is not None,
        data=() if config is None else tuple(data_of(config)),
        is_tied=model is not None and model.is_tied,
    )
