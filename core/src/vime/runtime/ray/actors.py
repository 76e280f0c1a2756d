"""What the process of every actor does before anything else."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime.errors import VimeError
from vime.plugins.lock import require_same
from vime.plugins.manager import PluginManager

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig


@dataclass(frozen=True)
class Surroundings:
    """What an actor shares with the driver. `name` is the actor's in the logs. Example: "trainer-rank-0"."""

    name: str
    node: str
    lock: dict[str, Any]
    """The driver's plugins, which have to be the actor's."""
    logs: str
    """The folder that gets `<name>.log`, absolute."""
    folder: str
    """The driver's current folder, from which relative paths count."""


def settle(around: Surroundings, config: RunConfig) -> PluginManager:
    """Write to the run's logs, stand where the driver stands, and load the plugins of the driver.

    Raises PluginError with the name of the node where they are not the same there.
    """
    from vime.runtime.third_party import quiet_third_parties

    quiet_third_parties()
    with contextlib.suppress(OSError):  # a node without this folder keeps Ray's own log files
        _write_to(Path(around.logs) / f"{around.name}.log")
    with contextlib.suppress(OSError):
        os.chdir(around.folder)
    try:
        plugins = PluginManager.load(config)
    except VimeError as error:
        raise type(error)(f"node {around.node}: {error.message}", hint=error.hint) from error
    require_same(around.lock, plugins.lock(), f"node {around.node}")
    return plugins


def _write_to(path: Path) -> None:
    """Let stdout and stderr of this process end in a file, those of compiled code too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        os.dup2(descriptor, number)
    os.close(descriptor)
