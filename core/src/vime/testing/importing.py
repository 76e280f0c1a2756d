"""Import a plugin in a process of its own and say what that did: `python -m vime.testing.importing`.

A module that ends its process, loads torch or patches `random` does so there, and not in the process that checks it.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.errors import PluginError

HEAVY = ("torch", "vllm", "deepspeed", "ray")
"""What an entry module may not load: `vime plugin list --probe` and the help pages would wait for it."""
_FROM_IMPORT = ("_find_and_load_unlocked", "_find_and_load")


@dataclass(frozen=True)
class Imported:
    """What importing one target in a new interpreter showed."""

    error: PluginError | None = None
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
    with tempfile.TemporaryDirectory(prefix="vime-import-") as folder:
        answer = Path(folder) / "answer.json"
        order = json.dumps({"target": target, "label": label, "is_path": is_path, "sys_path": sys.path, "answer": str(answer)})
        command = [sys.executable, "-P", "-m", "vime.testing.importing", order]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=timeout, check=False, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            return Imported(
                PluginError(f"{label}: importing it does not end within {timeout:g} s", hint="move what it waits for into a hook")
            )
        if not answer.is_file():
            return Imported(
                PluginError(f"{label}: importing it ended the process ({_end_of(done)})", hint="a module must only define things")
            )
        found = json.loads(answer.read_text(encoding="utf-8"))
    error = PluginError(found["error"][0], hint=found["error"][1]) if found["error"] else None
    return Imported(
        error,
        found["unknown"],
        tuple(found["heavy"]),
        tuple(found["effects"]),
        done.stdout,
        found["busy_seconds"],
        found["idle_seconds"],
    )


def _end_of(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return f"signal {signal.Signals(-done.returncode).name}"
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return f"exit code {done.returncode}" + (f", {last}" if last else "")


def main(order: str) -> None:
    """The child's side: imports, and writes what it saw as JSON. Ends without running what the plugin left for the exit."""
    asked = json.loads(order)
    sys.path[:] = asked["sys_path"]
    import vime.api  # what every plugin imports: its time is not the plugin's

    assert vime.api
    watch = _HeavyWatch(asked["target"])
    sys.meta_path.insert(0, watch)
    before, clock = _state(), _Clock()
    error, unknown = _load(asked)
    busy, idle = clock.read()
    effects = _effects(before, _state())
    answer = {
        "error": error and [error.message, error.hint],
        "unknown": unknown,
        "heavy": watch.found,
        "effects": effects,
        "busy_seconds": busy,
        "idle_seconds": idle,
    }
    sys.__stdout__.flush() if sys.__stdout__ is not None else None
    Path(asked["answer"]).write_text(json.dumps(answer), encoding="utf-8")
    os._exit(0)


def _load(asked: dict[str, Any]) -> tuple[PluginError | None, bool]:
    from vime.plugins.loading import load_target
    from vime.plugins.paths import resolve_path

    try:
        if asked["is_path"]:
            resolve_path(asked["target"], asked["label"])
        else:
            load_target(asked["target"], asked["label"])
    except PluginError as error:
        # A module that raises is reported as "importing X raised ..."; every other error is about what is not there.
        return error, ": importing " not in error.message
    return None, False


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


class _HeavyWatch:
    """First in sys.meta_path: notes who imports a heavy library, also where it is not installed and the plugin goes on without."""

    def __init__(self, target: str) -> None:
        self.found: list[str] = []
        self._seen: set[str] = set()
        file = target.rpartition(":")[0]
        self._file = Path(file).resolve() if file.endswith(".py") else None
        self._package = target.partition(":")[0].partition(".")[0]

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None) -> None:
        if name in HEAVY and name not in self._seen and sys._getframe(2).f_code.co_name in _FROM_IMPORT:  # pyright: ignore[reportPrivateUsage]
            self._seen.add(name)
            self.found.append(name + self._line())

    def _line(self) -> str:
        """` in file.py:3`: the innermost line of the plugin itself on the way here."""
        frame: types.FrameType | None = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        while frame is not None:
            file = Path(frame.f_code.co_filename)
            of_package = str(frame.f_globals.get("__name__", "")).partition(".")[0] == self._package
            if file == self._file or (self._file is None and of_package):
                return f" in {file.name}:{frame.f_lineno}"
            frame = frame.f_back
        return ""


def _state() -> dict[str, Any]:
    """What a module must leave alone, in a form that can be compared."""
    return {
        "environment": dict(os.environ),
        "directory": str(Path.cwd()),
        "signals": {each.name: signal.getsignal(each) for each in signal.Signals if each not in (signal.SIGKILL, signal.SIGSTOP)},
        "logging": (list(logging.root.handlers), logging.root.level, logging.root.manager.disable),
        "random": random.getstate(),
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
    "random": lambda old, new: ["seeds or uses the random numbers of the module `random`"],
    "ignores all": lambda old, new: ["silences all warnings"],
    "builtins": lambda old, new: [f"replaces the builtin {name}" for name in _changed(old, new)],
    "streams": lambda old, new: ["replaces sys.stdout, sys.stderr or sys.excepthook"],
    "socket": lambda old, new: [f"sets the default timeout of sockets to {new}"],
    "asyncio": lambda old, new: ["replaces asyncio.run"],
    "recursion": lambda old, new: [f"sets the recursion limit to {new}"],
    "threads": lambda old, new: [f"starts the thread {name}" for name in new if name not in old],
}
"""What to say about a difference between two states, by key."""


if __name__ == "__main__":
    main(sys.argv[1])
