"""What `vime train` would refuse before it builds anything, all of it at once."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vime.config.extras import require_training_extra
from vime.config.inputs import check_files, check_placement, refuse_missing_parts
from vime.data.dataset import check_prompt_data
from vime.doctor.findings import Finding, Findings
from vime.plugins.child import Announce, Call, call_in_children
from vime.plugins.discovery import discover, unreadable_entry_points
from vime.plugins.manager import PluginManager, selected
from vime.rollout.debug_data import check_saved_rollouts
from vime.rollout.http.server import open_port
from vime.rollout.reward_resolver import RewardResolver
from vime.runtime.resume import find_resume_point
from vime.track.run_dir import RunDir

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig

HUB_PREFIX = "hf:"


def check_run(config: RunConfig, findings: Findings, *, on_wait: Callable[[list[str]], None] | None = None) -> list[dict[str, Any]]:
    """Make the checks that a run makes at its start, and collect what they refuse. Returns the plugins that were loaded.

    Plugins and data are looked at in processes of their own; `on_wait` is told whose import takes long.
    """
    for check in (refuse_missing_parts, check_placement, check_files, RunDir.check):
        findings.collect(lambda check=check: check(config))
    findings.collect(require_training_extra)
    calls = [Call("vime.doctor.run:load", config, "the plugins")]
    if data_of(config) and not any(path.startswith(HUB_PREFIX) for path in data_of(config)):
        calls.append(Call("vime.doctor.run:read", config, "the data"))
    plugins, *data = call_in_children(calls, on_wait=on_wait)
    for outcome in (plugins, *data):
        if outcome.error is not None:
            findings.refused(outcome.error)
    unreadable = unreadable_entry_points()
    if unreadable is not None:
        findings.refused(unreadable)
    answer = plugins.value or {"plugins": [], "warnings": []}
    for text in answer["warnings"]:
        findings.add(Finding("warning", text))
    return answer["plugins"]


def data_of(config: RunConfig) -> dict[str, list[str]]:
    """The data that a run reads, by path, and what for: "prompts", or the names of evaluation datasets."""
    found: dict[str, list[str]] = {}
    if config.prompt_data is not None and config.data_source_path is None and not config.debug_train_only:
        found[config.prompt_data] = ["prompts"]
    for dataset in config.eval_datasets:
        found.setdefault(dataset.path, []).append(f"evaluation {dataset.name}")
    return found


def load(config: RunConfig, announce: Announce) -> dict[str, Any]:
    """In a child: the plugins, whether they can score what the run makes, and the checkpoint that they belong to."""
    catalog = discover()
    for name in selected(config.plugin, config.no_plugin, catalog):
        catalog.find(name)  # what metadata can tell needs no import
    manager = PluginManager.load(config, catalog=catalog, announce=announce)
    if config.serve_engine is not None:
        opened: socket.socket = open_port(config.serve_engine)
        opened.close()
    RewardResolver(config, manager).check_at_start()
    check_saved_rollouts(config)
    resume, passed_over = find_resume_point(config)
    warnings = [f"{path} is passed over: {problem}" for path, problem in passed_over.items()]
    if resume is not None:
        resume.check_model(config)
        warnings += resume.compare_plugins(config, manager)
    loaded = [{"name": plugin.name, "distribution": plugin.distribution, "version": plugin.version} for plugin in manager.plugins]
    return {"plugins": loaded, "warnings": warnings}


def read(config: RunConfig, announce: Announce) -> None:
    """In a child: all rows of the data."""
    check_prompt_data(config)
