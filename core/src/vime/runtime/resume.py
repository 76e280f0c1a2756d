"""Where a run goes on: the checkpoint that `--load` names."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime.errors import CheckpointError
from vime.plugins.lock import compare_locks
from vime.track.run_dir import RunDir
from vime.train.checkpoint import damaged, latest_checkpoint, read_manifest

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.plugins.manager import PluginManager


@dataclass(frozen=True)
class ResumePoint:
    """A whole checkpoint and its verified manifest."""

    path: Path
    manifest: dict[str, Any]
    passed_over: dict[Path, str] = field(default_factory=dict[Path, str])
    """Newer checkpoints that are not whole, with what is wrong with each."""

    def compare_plugins(self, config: RunConfig, plugins: PluginManager) -> list[str]:
        """A warning for each difference to the plugins that the checkpoint was made with; none under --ignore-plugin-lock.

        Raises PluginError for a plugin that this run does not enable.
        """
        return [] if config.ignore_plugin_lock else compare_locks(self.manifest["lock"], plugins.lock())


def find_resume_point(config: RunConfig) -> ResumePoint | None:
    """The checkpoint to go on from: `--load DIR` (a checkpoint, or a folder of them) or `--load auto`; None to start anew.

    Raises CheckpointError for a folder that holds no whole checkpoint. `auto` looks in the run's own folder under
    --run-dir, else in the newest run of this name.
    """
    if config.load is None:
        return None
    if config.load == "auto":
        root = _checkpoint_root(config)
        path = latest_checkpoint(root) if root is not None else None
        return None if path is None or root is None else ResumePoint(path, read_manifest(path), damaged(root))
    given = Path(config.load)
    if (given / "manifest.json").is_file():
        return ResumePoint(given, read_manifest(given))
    for root in (given, given / "checkpoints"):
        path = latest_checkpoint(root) if root.is_dir() else None
        if path is not None:
            return ResumePoint(path, read_manifest(path))
    raise CheckpointError(
        f"--load {given}: no whole checkpoint there",
        hint="name a checkpoints/step_N folder, or a run folder that has one; a plain model goes to --hf-checkpoint",
    )


def _checkpoint_root(config: RunConfig) -> Path | None:
    if config.save is not None:
        return Path(config.save)
    if config.run_dir is not None:
        return Path(config.run_dir) / "checkpoints"
    newest = RunDir.newest(config.run_name)
    return None if newest is None else newest.checkpoints
