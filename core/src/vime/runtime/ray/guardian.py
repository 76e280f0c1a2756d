"""A process beside the driver that outlives it, and ends what it has left behind.

Ray ends actors when their driver dies, and its own processes when those that they watch die. Some do so only after a while,
and what is stopped (SIGSTOP) never does. Every process of a run inherits one entry of the driver's environment, by which
the guardian finds them. It waits for the end of its standard input, whose other end the driver holds.

Run by its path, with nothing but the standard library: `python guardian.py RUN`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

VARIABLE = "VIME_RAY_RUN"
"""Entry of the environment that all processes of a run have in common."""
PATIENCE = 3.0
"""Seconds in which Ray may end its processes itself, after the driver has gone."""
ROUNDS = 5
"""Looks for processes, which may start others while they are ended."""


class Guardian:
    """Starts the guardian of this process; on systems without /proc there is none."""

    def __init__(self) -> None:
        self.run = uuid.uuid4().hex
        os.environ[VARIABLE] = self.run
        os.environ.setdefault("SPT_NOENV", "1")  # or Ray's processes write their titles over their environments
        self._process: subprocess.Popen[bytes] | None = None
        if Path("/proc/self/environ").exists():
            command = [sys.executable, "-I", str(Path(__file__).absolute()), self.run]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, cwd="/")

    @property
    def folder(self) -> Path:
        """For files by which the processes of the run meet. Deleted at the end, after a dead driver too; whoever needs it makes it."""
        return folder_of(self.run)

    def close(self) -> None:
        """The run is over: what is still there of it ends now."""
        os.environ.pop(VARIABLE, None)
        if self._process is not None:
            assert self._process.stdin is not None, "it was opened with a pipe"
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)


def folder_of(run: str) -> Path:
    return Path(tempfile.gettempdir()) / f"vime-ranks-{run}"


def members(run: str) -> list[int]:
    """The processes that have this run in their environment, without this one and without the driver, whose environment is older."""
    entry = f"{VARIABLE}={run}".encode()
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                if entry in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def end(run: str) -> None:
    """End all of them, after they had the time to end by themselves."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and members(run):
        time.sleep(0.1)
    for _ in range(ROUNDS):
        for process in members(run):
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.1)
        if not members(run):
            return


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end(sys.argv[1])
    shutil.rmtree(folder_of(sys.argv[1]), ignore_errors=True)
