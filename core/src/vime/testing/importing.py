"""Import a plugin in a process of its own and say what that did.

A module that ends its process, loads torch or patches `random` does so there, and not in the process that checks it.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.errors import VimeError
from vime.plugins.child import Announce, Call, call_in_child

HEAVY = ("torch", "vllm", "deepspeed", "ray")
"""What an entry module may not load: `vime plugin list --probe` and the help pages would wait for it."""
_FROM_IMPORT = ("_find_and_load_unlocked", "_find_and_load")


@dataclass(frozen=True)
class Imported:
    """What importing one target in a new interpreter showed."""

    error: VimeError | None = None
    """Why it cannot be imported."""
    unknown: bool = False
    """Whether the error is that nothing is there, rather than that what is there fails."""
    heavy: tuple[str, ...] = ()
    """The heavy libraries that it loads or tries to load, each with the plugin's line that does."""
    effects: tuple[str, ...] = ()
    """What else it changed in its process, each as the end of a sentence: "sets the environment variable X"."""
    printed: str = ""
    """What it wrote to stdout."""
    busy_seconds: float = 0.0
    """Processor time of the import, without that of vime itself."""
    idle_seconds: float = 0.0
    """Time that the import slept or waited for a disk or the network; waiting for a free processor does not count."""


def import_alone(target: str, label: str, *, is_path: bool, timeout: float) -> Imported:
    """Import the entry-point target or path `target` in a new interpreter with this one's sys.path."""
    asked = {"target": target, "label": label, "is_path": is_path, "sys_path": list(sys.path)}
    outcome = call_in_child(Call("vime.testing.importing:look", asked, label), timeout=timeout)
    if outcome.error is not None:
        # A module that raises is reported as "importing X raised ..."; every other error is about what is not there.
        error = outcome.error
        if ": importing it " in error.message:  # it hung or ended its process: the hint is for its author here, and not for its user
            error.hint = "a module that is imported only defines things; --timeout SECONDS gives it more time"
        return Imported(error, unknown=": importing " not in error.message)
    found = outcome.value
    return Imported(
        heavy=tuple(found["heavy"]),
        effects=tuple(found["effects"]),
        printed=found["printed"],
        busy_seconds=found["busy_seconds"],
        idle_seconds=found["idle_seconds"],
    )


def look(asked: dict[str, Any], announce: Announce) -> dict[str, Any]:
    """The child's side: imports, and returns what that did. Raises PluginError for what cannot be imported."""
    import vime.api
    import vime.plugins.paths

    assert vime.api and vime.plugins.paths  # imported here, so that their time is not the plugin's
    announce(asked["label"])
    sys.path[:] = asked["sys_path"]
    own = _Own(asked["target"])
    watch, seeded = _HeavyWatch(own), _watch_seed(own)
    sys.meta_path.insert(0, watch)
    with _stdout_aside() as printed:
        before, clock = _state(), _Clock()
        _load(asked)
        busy, idle = clock.read()
        effects = _effects(before, _state()) + seeded
    return {"heavy": watch.found, "effects": effects, "printed": printed[0], "busy_seconds": busy, "idle_seconds": idle}


def _load(asked: dict[str, Any]) -> None:
    from vime.plugins.loading import load_target
    from vime.plugins.paths import resolve_path

    if asked["is_path"]:
        resolve_path(asked["target"], asked["label"])
    else:
        load_target(asked["target"], asked["label"])


@contextlib.contextmanager
def _stdout_aside() -> Generator[list[str]]:
    """Send what the process writes to stdout to a file; yields a list that has it as its only item afterwards."""
    printed: list[str] = []
    saved = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            yield printed
        finally:
            streams: tuple[Any, ...] = (sys.stdout, sys.__stdout__)
            for stream in streams:
                with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or replaced
                    stream.flush()
            os.dup2(saved, 1)
            os.close(saved)
            file.seek(0)
            printed.append(file.read().decode(errors="replace"))


class _Clock:
    """Processor time, and time spent neither on a processor nor in line for one."""

    def __init__(self) -> None:
        self._start = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return time.process_time(), time.perf_counter(), time.thread_time() + _in_line()

    def read(self) -> tuple[float, float]:
        busy, wall, accounted = (now - then for now, then in zip(self._now(), self._start, strict=True))
        return busy, max(0.0, wall - accounted)


def _in_line() -> float:
    """Seconds that this thread was ready and waited for a processor, where the system counts them (Linux)."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


class _Own:
    """Which code is the plugin's own: that of its file, or of the package that its entry point is in."""

    def __init__(self, target: str) -> None:
        file = target.rpartition(":")[0]
        self._file = Path(file).resolve() if file.endswith(".py") else None
        self._package = target.partition(":")[0].partition(".")[0]

    def has(self, frame: types.FrameType) -> bool:
        """Whether this frame runs the plugin's own code."""
        if self._file is not None:
            return Path(frame.f_code.co_filename) == self._file
        return str(frame.f_globals.get("__name__", "")).partition(".")[0] == self._package

    def line(self, frame: types.FrameType | None) -> str:
        """` in file.py:3`: the innermost line of the plugin on the way to `frame`."""
        while frame is not None:
            if self.has(frame):
                return f" in {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            frame = frame.f_back
        return ""


class _HeavyWatch:
    """First in sys.meta_path: notes who imports a heavy library, also where it is not installed and the plugin goes on without."""

    def __init__(self, own: _Own) -> None:
        self.found: list[str] = []
        self._own = own
        self._seen: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None) -> None:
        caller = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        if name in HEAVY and name not in self._seen and caller.f_code.co_name in _FROM_IMPORT:
            self._seen.add(name)
            self.found.append(name + self._own.line(caller))


def _watch_seed(own: _Own) -> list[str]:
    """Note when the plugin itself seeds `random`. Libraries draw from it and seed it at import too, which is not the plugin's doing."""
    found: list[str] = []
    seed = random.seed

    def watched(*args: Any, **kwargs: Any) -> None:
        if own.has(sys._getframe(1)):  # pyright: ignore[reportPrivateUsage]
            found.append("seeds the random numbers of the module `random`")
        seed(*args, **kwargs)

    random.seed = watched
    return found


def _state() -> dict[str, Any]:
    """What a module must leave alone, in a form that can be compared."""
    return {
        "environment": dict(os.environ),
        "directory": str(Path.cwd()),
        "signals": {each.name: signal.getsignal(each) for each in signal.Signals if each not in (signal.SIGKILL, signal.SIGSTOP)},
        "logging": (list(logging.root.handlers), logging.root.level, logging.root.manager.disable),
        "ignores all": any(rule[0] == "ignore" and rule[1] is None and rule[2] is Warning and rule[3] is None for rule in warnings.filters),
        "builtins": {name: id(value) for name, value in vars(builtins).items() if name != "_"},
        "streams": (id(sys.stdout), id(sys.stderr), id(sys.excepthook)),
        "socket": socket.getdefaulttimeout(),
        "asyncio": id(asyncio.run),
        "recursion": sys.getrecursionlimit(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
    }


def _effects(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The differences, each as the end of a sentence."""
    found: list[str] = []
    for key, say in _SAYINGS.items():
        if before[key] != after[key]:
            found += say(before[key], after[key])
    return found


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [name for name in before | after if before.get(name) != after.get(name)]


_SAYINGS: dict[str, Callable[[Any, Any], list[str]]] = {
    "environment": lambda old, new: [f"sets the environment variable {name}" for name in _changed(old, new)],
    "directory": lambda old, new: [f"changes the working directory to {new}"],
    "signals": lambda old, new: [f"replaces the handler of {name}" for name in _changed(old, new)],
    "logging": lambda old, new: ["configures the root logger"],
    "ignores all": lambda old, new: ["silences all warnings"],
    "builtins": lambda old, new: [f"replaces the builtin {name}" for name in _changed(old, new)],
    "streams": lambda old, new: ["replaces sys.stdout, sys.stderr or sys.excepthook"],
    "socket": lambda old, new: [f"sets the default timeout of sockets to {new}"],
    "asyncio": lambda old, new: ["replaces asyncio.run"],
    "recursion": lambda old, new: [f"sets the recursion limit to {new}"],
    "threads": lambda old, new: [f"starts the thread {name}" for name in new if name not in old],
}
"""What to say about a difference between two states, by key."""
