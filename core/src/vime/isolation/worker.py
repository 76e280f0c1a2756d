"""The worker's side of an IsolatedPool: what runs in the child processes. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import pickle
import resource
import signal
import sys
import threading
import traceback
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
FULL = 75
"""Exit code of a worker that gives a call back which ran out of memory, since earlier ones had kept much of it."""


@dataclass(frozen=True)
class Call:
    """One call on its way to a worker. `pickled` holds (function, args); `module` and `file` say where the function lives;
    `processor_limit` is in seconds."""

    pickled: bytes
    module: str
    file: str | None
    processor_limit: float | None = None
    again: bool = False
    """Whether another worker has given it back."""


@dataclass(frozen=True)
class Outcome:
    """What a call came to: a pickled value, or the exception, pickled where that can be undone, and described in any case."""

    value: bytes | None = None
    error: bytes | None = None
    error_type: str = ""
    error_text: str = ""
    trace: str = ""


def start_worker(memory_mib: int | None, preload: Sequence[str]) -> None:
    """Prepare a fresh worker: signals, memory limit, end with the parent, imports. Runs before the first call is fetched."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The default action also ends a worker that is stuck in C code and never gets to run a Python handler.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _end_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_mib is not None:
        limit = memory_mib * 2**20
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for module in ("vime.isolation.threads", *preload):
        with contextlib.suppress(ImportError):  # the call that needs it reports it
            importlib.import_module(module)
    if memory_mib is not None:
        _memory.start(limit // resource.getpagesize())


def run_call(call: Call) -> Outcome:
    """Run one call. Never raises: whatever happens, also SystemExit and errors of pickling, is part of the outcome."""
    _memory.before_call()
    try:
        _provide_module(call.module, call.file)
        function, args = pickle.loads(call.pickled)
        # Its default action ends the process in the kernel, also while C code holds the interpreter lock.
        signal.setitimer(signal.ITIMER_PROF, call.processor_limit or 0)
        try:
            value = function(*args)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return Outcome(value=pickle.dumps(value))
    except MemoryError as error:
        if _memory.was_short and not call.again:
            os._exit(FULL)
        return _describe(error)
    except BaseException as error:  # noqa: BLE001 (all of them travel)
        return _describe(error)


class _Memory:
    """Whether a call that runs out of memory may have earlier ones to thank for it, which kept theirs. Sizes are in pages."""

    def __init__(self) -> None:
        self._most = 0
        self._before_call = 0

    def start(self, limit: int) -> None:
        """Of what is left of `limit` now, calls may keep half without being suspected."""
        used = _pages()
        self._most = used + (limit - used) // 2

    def before_call(self) -> None:
        self._before_call = _pages() if self._most else 0

    @property
    def was_short(self) -> bool:
        return self._before_call > self._most


_memory = _Memory()
"""Of this process, which runs nothing else."""


def _pages() -> int:
    """The address space of this process in pages; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[0])
    except OSError:
        return 0


def ready() -> int:
    """The id of the worker process that answers."""
    return os.getpid()


def _describe(error: BaseException) -> Outcome:
    text = f"{type(error).__module__}.{type(error).__qualname__}" if type(error).__module__ != "builtins" else type(error).__qualname__
    try:
        message = str(error)
        trace = "".join(traceback.format_exception(error))
    except BaseException as failure:  # noqa: BLE001 (an exception whose own __str__ fails, or memory that is used up)
        message, trace = f"(its text cannot be read: {type(failure).__name__})", ""
    pickled = None
    if isinstance(error, Exception):  # SystemExit or KeyboardInterrupt must not travel into the main process
        with contextlib.suppress(Exception):
            candidate = pickle.dumps(error.with_traceback(None))
            pickled = candidate if type(pickle.loads(candidate)) is type(error) else None
    return Outcome(error=pickled, error_type=text, error_text=message, trace=trace)


def _provide_module(name: str, file: str | None) -> None:
    """Make the function's module importable here, from its file where its name alone does not lead to it."""
    if name in sys.modules or file is None:
        return
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(file):
        return
    by_file = importlib.util.spec_from_file_location(name, file)
    if by_file is None or by_file.loader is None:
        return
    for dot in (place for place, sign in enumerate(name) if sign == "."):  # pickle imports the outermost package as well
        _provide_package(name[:dot])
    module = importlib.util.module_from_spec(by_file)
    sys.modules[name] = module
    try:
        by_file.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _provide_package(name: str) -> None:
    """Stand in for a package that exists in the owner's process only, as test runners make them for files they load."""
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
    if name not in sys.modules:
        sys.modules[name] = types.ModuleType(name)


def _end_with_parent() -> None:
    """Make sure that this worker does not outlive the process that owns the pool, not even in the middle of a call.

    A thread waits for the end of the owner. It cannot run while C code holds the interpreter lock, so the kernel is
    asked as well to kill this process when the fork server ends, which ends with the owner. The fork server waits for
    every holder of its "alive" pipe, and a worker holds a copy: that copy is closed here.
    """
    server: Any = multiprocessing.forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    owner = multiprocessing.parent_process()
    if owner is not None:
        threading.Thread(target=_watch, args=(owner.sentinel,), name="vime-owner-watch", daemon=True).start()


def _watch(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
