"""Where a run goes on: the checkpoint that `--load` names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime.config.names import flag_of
from vime.errors import CheckpointError
from vime.plugins.lock import compare_locks
from vime.track.run_dir import RunDir
from vime.train.checkpoint import Found, find_checkpoint, read_manifest

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.plugins.manager import PluginManager

_SHAPE = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "tie_word_embeddings",
)
"""Entries of config.json in which two models that could share a checkpoint agree."""


@dataclass(frozen=True)
class ResumePoint:
    """A whole checkpoint and its verified manifest."""

    path: Path
    manifest: dict[str, Any]

    def compare_plugins(self, config: RunConfig, plugins: PluginManager) -> list[str]:
        """A warning for each difference to the plugins that the checkpoint was made with; none under --ignore-plugin-lock.

        Raises PluginError for a plugin that this run does not enable.
        """
        return [] if config.ignore_plugin_lock else compare_locks(self.manifest.get("lock") or {}, plugins.lock())

    def check_model(self, config: RunConfig) -> None:
        """Raise CheckpointError where --hf-checkpoint names a model of another shape than the checkpoint's."""
        given = _shape(Path(config.hf_checkpoint or "").expanduser())
        saved = _shape(self.path)
        for key in saved.keys() & given.keys():
            if saved[key] != given[key]:
                raise CheckpointError(
                    f"{self.path} is of another model: its {key} is {saved[key]}, that of {flag_of('hf_checkpoint')} {given[key]}",
                    hint="name the model that the run started from, or another --run-dir or --name for a new run",
                )


def find_resume_point(config: RunConfig) -> tuple[ResumePoint | None, dict[Path, str]]:
    """The checkpoint to go on from, None to start anew, and the damaged newer ones that were passed over.

    `--load DIR` names a checkpoint, or a folder of them; `auto` looks in the run's own folder under --run-dir, else in
    the newest run of this name. Raises CheckpointError for a DIR that holds no whole checkpoint.
    """
    if config.load is None:
        return None, {}
    if config.load == "auto":
        root = _checkpoint_root(config)
        return _resume_point(find_checkpoint(root)) if root is not None else (None, {})
    given = Path(config.load)
    if (given / "manifest.json").is_file():
        return ResumePoint(given, read_manifest(given)), {}
    damaged: dict[Path, str] = {}
    for root in (given, given / "checkpoints"):
        point, passed_over = _resume_point(find_checkpoint(root))
        if point is not None:
            return point, passed_over
        damaged |= passed_over
    more = "".join(f"; {path.name}: {problem}" for path, problem in damaged.items())
    raise CheckpointError(
        f"--load {given}: no whole checkpoint there{more}",
        hint="name a checkpoints/step_N folder, or a run folder that has one; a plain model goes to --hf-checkpoint",
    )


def _resume_point(found: Found) -> tuple[ResumePoint | None, dict[Path, str]]:
    point = None if found.path is None else ResumePoint(found.path, found.contents)
    return point, found.passed_over


def _shape(model: Path) -> dict[str, Any]:
    """What config.json says of the model's shape; nothing where it cannot be read, which the loading of the model reports."""
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: config[key] for key in _SHAPE if key in config} if isinstance(config, dict) else {}


def _checkpoint_root(config: RunConfig) -> Path | None:
    if config.save is not None:
        return Path(config.save)
    if config.run_dir is not None:
        return Path(config.run_dir) / "checkpoints"
    newest = RunDir.newest(config.run_name)
    return None if newest is None else newest.checkpoints
