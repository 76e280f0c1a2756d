"""How worker processes start: from a fork server that belongs to one pool.

The main process holds torch, vLLM and many threads, so it must not be forked, and `multiprocessing` would run the main
script again in each spawned worker, which breaks scripts without an `if __name__ == "__main__"` guard. Here a fresh
interpreter imports what the workers need once; workers are forked from it in milliseconds and know nothing of the main
script.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import multiprocessing.popen_forkserver
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import context, forkserver, process, util  # pyright: ignore[reportAttributeAccessIssue]
from multiprocessing.context import reduction, set_spawning_popen  # pyright: ignore[reportAttributeAccessIssue]
from pathlib import Path
from typing import Any


class Server:
    """A fork server with its own list of preloaded modules; started with the first process, stopped by `stop`."""

    def __init__(self, preload: Sequence[str]) -> None:
        self._server: Any = forkserver.ForkServer()
        self._server.set_forkserver_preload(["vime.isolation.threads", "vime.isolation.worker", *preload])

    def fork(self, fds: list[int]) -> tuple[int, int]:
        """Ask for a new process: (the end to read its status from, the end to write its instructions to)."""
        undecided = multiprocessing.get_start_method(allow_none=True) is None
        # A blocked signal is inherited: Ctrl-C in the terminal never reaches the server or its workers.
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._server.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
            if undecided:  # starting the server fixes the start method of the whole process as a side effect
                multiprocessing.set_start_method(None, force=True)
        return self._server.connect_to_new_process(fds)

    def stop(self) -> None:
        """End the server. Its workers must have ended before."""
        with contextlib.suppress(ChildProcessError):  # somebody else has waited for it
            self._server._stop()


class WorkerContext(context.BaseContext):
    """The `multiprocessing` context that pebble starts its workers with."""

    _name = "vime-forkserver"

    def __init__(self, server: Server) -> None:
        self.server = server

    def get_start_method(self, allow_none: bool = False) -> str:
        return "forkserver"

    def get_context(self, method: str | None = None) -> Any:
        return self

    def Process(self, **options: Any) -> WorkerProcess:
        return WorkerProcess(self.server, **options)


class WorkerProcess(process.BaseProcess):
    """A worker. It counts as a daemon for the exit of the main process (ended, not waited for) and in no other respect."""

    _start_method = None  # a worker's own processes start in the default way

    def __init__(self, server: Server, **options: Any) -> None:
        self._server: Server | None = server
        super().__init__(**options)
        self._config: dict[str, Any] = {key: value for key, value in self._config.items() if key != "daemon"}

    @property
    def daemon(self) -> bool:
        return True

    @daemon.setter
    def daemon(self, value: bool) -> None:
        """Fixed: pebble asks for workers that the exit of the process would wait for."""

    def start(self) -> None:
        """Start the process; other than in `multiprocessing`, from inside a daemonic process too."""
        config = process.current_process()._config  # pyright: ignore[reportAttributeAccessIssue]
        daemonic = config.pop("daemon", None)
        try:
            super().start()
        finally:
            if daemonic is not None:
                config["daemon"] = daemonic

    def _Popen(self, process_obj: WorkerProcess) -> _Popen:
        assert self._server is not None
        return _Popen(process_obj, self._server)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_server": None}


class _Popen(multiprocessing.popen_forkserver.Popen):
    """Sends a process to the pool's own server, without the instruction to import the main script."""

    def __init__(self, process_obj: WorkerProcess, server: Server) -> None:
        self._server = server
        super().__init__(process_obj)

    def _launch(self, process_obj: WorkerProcess) -> None:
        instructions = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(_preparation(process_obj.name), instructions)
            reduction.dump(process_obj, instructions)
        finally:
            set_spawning_popen(None)
        self.sentinel, writer = self._server.fork(self._fds)  # pyright: ignore[reportAttributeAccessIssue]
        # The worker watches the other end of this pipe: it closes when this process ends.
        alive = os.dup(writer)
        self.finalizer = util.Finalize(self, util.close_fds, (alive, self.sentinel))  # pyright: ignore[reportAttributeAccessIssue]
        with os.fdopen(writer, "wb") as stream:
            stream.write(instructions.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


def _preparation(name: str) -> dict[str, Any]:
    """What a new worker is told about this process; all that `multiprocessing.spawn.prepare` reads but the main module."""
    original = process.ORIGINAL_DIR  # pyright: ignore[reportAttributeAccessIssue]
    return {
        "name": name,
        "authkey": process.current_process().authkey,
        "sys_path": [original if entry == "" else entry for entry in sys.path],
        "sys_argv": sys.argv,
        "orig_dir": original,
        "dir": str(Path.cwd()),
    }
