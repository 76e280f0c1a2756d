"""Calls functions in processes of their own: `python -m vime.plugins.child FUNCTION FOLDER`.

Importing somebody else's module can print, hang, end its process, start threads or move to another directory. What it
does there stays there, and comes back as an error that names the plugin.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from vime import errors
from vime.errors import PluginError, VimeError

NOTICE_AFTER = 5.0
"""Seconds after which a caller is told which calls it still waits for, and again after each further one."""
_AT_ONCE = 4
_PR_SET_PDEATHSIG = 1
_OUTPUT_LIMIT = 100_000
_ARGUMENT, _ANSWER, _CURRENT, _OUTPUT = "argument.pickle", "answer.json", "current.txt", "output.txt"

Announce = Callable[[str], None]
"""Called in the child with the label of what is imported next, so that the parent knows who ended or held up the process."""


@dataclass(frozen=True)
class Call:
    """`function` is "module:name"; it is called with `argument`, which can be pickled, and an `Announce`. It returns plain JSON data."""

    function: str
    argument: Any
    label: str
    """Who is named until the function announces somebody else."""


@dataclass(frozen=True)
class Outcome:
    """What came of a call: the value, or the error. `output` is what the child printed, to stdout and stderr together."""

    value: Any
    error: VimeError | None
    output: str


class ChildTraceback(Exception):
    """Stands as the cause of an error that was raised in a child, and prints as the traceback it had there."""

    def __init__(self, text: str, missing_module: str | None = None) -> None:
        super().__init__(text)
        self.missing_module = missing_module
        """The module that was not found, where that was the reason."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def call_in_child(call: Call, *, timeout: float | None = None, on_wait: Callable[[list[str]], None] | None = None) -> Outcome:
    """One call in a process of its own. Raises nothing of the function's; see `call_in_children`."""
    return call_in_children([call], timeout=timeout, on_wait=on_wait)[0]


def call_in_children(
    calls: Sequence[Call], *, timeout: float | None = None, on_wait: Callable[[list[str]], None] | None = None
) -> list[Outcome]:
    """The outcomes of these calls, in order, a few at a time.

    A call may take `timeout` seconds, None for any time. `on_wait` is told now and then whose calls are slow. What a
    call leaves running is ended with it.
    """
    waiting = deque(enumerate(calls))
    outcomes: dict[int, Outcome] = {}
    with contextlib.ExitStack() as stack:
        running: dict[int, _Child] = {}
        next_notice = time.monotonic() + NOTICE_AFTER
        while waiting or running:
            while waiting and len(running) < _AT_ONCE:
                number, call = waiting.popleft()
                running[number] = stack.enter_context(_Child(call, timeout))
            for number, child in list(running.items()):
                if child.has_ended():
                    outcomes[number] = running.pop(number).outcome()
            if on_wait is not None and time.monotonic() > next_notice:
                next_notice = time.monotonic() + NOTICE_AFTER
                slow = [child.current() for child in running.values() if time.monotonic() - child.started > NOTICE_AFTER / 2]
                if slow:
                    on_wait(slow)
            time.sleep(0.01)
    return [outcomes[number] for number in range(len(calls))]


class _Child:
    """One running process, the leader of a session of its own, with a folder for what it is given and what it answers."""

    def __init__(self, call: Call, timeout: float | None) -> None:
        self.call, self.timeout = call, timeout
        self._folder = tempfile.TemporaryDirectory(prefix="vime-child-", ignore_cleanup_errors=True)
        self.path = Path(self._folder.name)
        (self.path / _ARGUMENT).write_bytes(pickle.dumps(call.argument))
        self.started = time.monotonic()
        # With -P, files of the current directory do not hide the modules that a plugin imports.
        command = [sys.executable, "-P", "-m", "vime.plugins.child", call.function, str(self.path)]
        with (self.path / _OUTPUT).open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._is_late = False
        self._code: int | None = None

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._folder.cleanup()

    def has_ended(self) -> bool:
        """Whether it is over; ends it where its time is."""
        if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            self._end()
        elif self.timeout is not None and time.monotonic() - self.started > self.timeout:
            self._is_late = True
            self._end()
        return self._code is not None

    def _end(self) -> None:
        """End it with everything it started. While it is not waited for, its number is no other process's."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._code = self._process.wait()

    def current(self) -> str:
        """Who is being imported."""
        return self._read(_CURRENT) or self.call.label

    def outcome(self) -> Outcome:
        """The answer it left, else how it ended."""
        output = self._read(_OUTPUT)[-_OUTPUT_LIMIT:]
        answer: dict[str, Any] = json.loads(self._read(_ANSWER) or "null") or {}
        if "error" in answer:
            return Outcome(None, _read_error(answer["error"]), output)
        if "value" in answer:
            return Outcome(answer["value"], None, output)
        return Outcome(None, self._died(output), output)

    def _died(self, output: str) -> PluginError:
        who = self.current()
        if self._is_late:
            hint = "a module that is imported starts nothing that waits; --import-timeout SECONDS allows it more time"
            return PluginError(f"{who}: importing it takes longer than {self.timeout:g} s", hint=hint)
        assert self._code is not None
        how = f"exit code {self._code}" if self._code >= 0 else f"signal {signal.Signals(-self._code).name}"
        last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), None)
        said = f"; it printed: {last[:200]}" if last and self._code >= 0 else ""
        return PluginError(f"{who}: importing it ended the process: {how}{said}", hint="leave it out, or report it to its authors")

    def _read(self, name: str) -> str:
        try:
            return (self.path / name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""


def _read_error(given: dict[str, Any]) -> VimeError:
    kind = cast("type[VimeError]", getattr(errors, given["kind"]))
    error = kind(given["message"], hint=given["hint"])
    for note in given["notes"]:
        error.add_note(note)
    error.__cause__ = ChildTraceback(given["traceback"], given["missing"])
    return error


def _write_error(error: BaseException, label: str) -> dict[str, Any]:
    from vime.plugins.loading import TRACEBACK_HINT, describe

    known = error if isinstance(error, VimeError) else PluginError(f"{label}: importing it raised {describe(error)}", hint=TRACEBACK_HINT)
    cause = error.__cause__
    return {
        "kind": type(known).__name__,
        "message": known.message,
        "hint": known.hint,
        "notes": list(getattr(error, "__notes__", ())),
        "traceback": _traceback(error),
        "missing": cause.name if isinstance(cause, ModuleNotFoundError) else None,
    }


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error)).rstrip()
    except Exception as failure:  # noqa: BLE001 - somebody else's exception may raise where it is printed
        return f"(the traceback cannot be printed: {type(failure).__name__})"


def main(function: str, folder: str) -> None:
    """The child's side. Leaves the answer in `folder` and ends at once: threads that a plugin started are not waited for."""
    if sys.platform == "linux":  # a module that hangs does not outlive a parent that was killed
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    path = Path(folder)
    announce = functools.partial(_announce, path / _CURRENT)
    module, _, name = function.partition(":")
    try:
        argument = pickle.loads((path / _ARGUMENT).read_bytes())
        answer = {"value": getattr(importlib.import_module(module), name)(argument, announce)}
    except BaseException as error:  # noqa: BLE001 - reported to the parent
        current = path / _CURRENT
        answer = {"error": _write_error(error, current.read_text(encoding="utf-8") if current.exists() else function)}
    part = path / f"{_ANSWER}.part"
    part.write_text(json.dumps(answer), encoding="utf-8")
    part.rename(path / _ANSWER)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or replaced
            stream.flush()
    os._exit(0)


def _announce(file: Path, label: str) -> None:
    file.write_text(label, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
