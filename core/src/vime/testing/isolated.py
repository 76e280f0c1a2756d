"""The checks of one target in a process of their own, so that a plugin that ends its process fails a check and not the command."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import warnings
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from typing import Any, TextIO, cast

from vime import errors
from vime.errors import PluginError, VimeError
from vime.testing.checks.base import Check
from vime.testing.report import CheckResult
from vime.testing.runner import Session

_LEAVE_OUT = "no code of a plugin may end the process of its run: raise an exception"
Prepare = Callable[[], Session]
Finish = Callable[[CheckResult], CheckResult]


@dataclass(frozen=True)
class Outline:
    """What there is to run, told before the first result."""

    title: str
    checks: list[tuple[str, str]]
    """The id and the sentence of each check."""


def run_apart(target: str, prepare: Prepare, title: Callable[[Session], str], finish: Finish) -> Generator[Outline | CheckResult]:
    """Yield an Outline, then the result of each check, all found by a forked process and its successors.

    `prepare` makes the session and `finish` completes each result, both in that process. A check in which the process
    ends has failed, the others of its hook are skipped, and a new process goes on with the rest. Whatever these
    processes leave running is ended with them. Raises what `prepare` raises, and PluginError where it ends the process.
    """
    results: dict[str, CheckResult] = {}
    given_up: dict[str | None, str] = {}
    outline: Outline | None = None
    while outline is None or len(results) < len(outline.checks):
        with _Fork(lambda send: _work(send, prepare, title, finish, set(results), given_up)) as fork:
            for message in fork.messages():
                if "error" in message:
                    raise _read_error(message["error"])
                if "title" in message:
                    hooks = cast("dict[str, str | None]", message["hooks"])
                    if outline is None:
                        outline = Outline(message["title"], [(check_id, doc) for check_id, doc in message["checks"]])
                        yield outline
                else:
                    result = CheckResult(**message)
                    results[result.id] = result
                    yield result
            how = fork.end()
        if outline is None:
            raise PluginError(f"{target}: loading it ended the process: {how}", hint=_LEAVE_OUT)
        running = next((check_id for check_id, _ in outline.checks if check_id not in results), None)
        if running is not None:
            given_up[hooks[running]] = running  # pyright: ignore[reportPossiblyUnboundVariable] - it came with the outline
            results[running] = CheckResult(running, "fail", f"ended the process: {how}", _LEAVE_OUT)
            yield results[running]


def _work(
    send: Callable[[Any], None],
    prepare: Prepare,
    title: Callable[[Session], str],
    finish: Finish,
    done: set[str],
    given_up: dict[str | None, str],
) -> None:
    """The other process: make the session, and run what is not done."""
    try:
        session = prepare()
    except VimeError as error:
        send({"error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}})
        return
    checks = session.checks
    send({"title": title(session), "checks": [(each.id, each.doc) for each in checks], "hooks": {each.id: each.hook for each in checks}})
    for each in checks:
        if each.id not in done:
            send(asdict(finish(_result(session, each, given_up))))


def _result(session: Session, each: Check, given_up: dict[str | None, str]) -> CheckResult:
    if each.hook is not None and each.hook in given_up:
        return CheckResult(each.id, "skip", f"not run, because the plugin ended the process in {given_up[each.hook]}")
    return session.run(each)


def _read_error(given: dict[str, Any]) -> VimeError:
    kind = cast("type[VimeError]", getattr(errors, given["kind"]))
    return kind(given["message"], hint=given["hint"])


class _Fork:
    """A forked process, the leader of a session of its own, that sends JSON lines."""

    def __init__(self, work: Callable[[Callable[[Any], None]], None]) -> None:
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of threads: those that may live here hold no lock of ours
            self._pid = os.fork()
        if self._pid == 0:
            os.close(reading)
            _child(work, os.fdopen(writing, "w", encoding="utf-8"))
        os.close(writing)
        self._from = os.fdopen(reading, encoding="utf-8")
        self._how: str | None = None

    def __enter__(self) -> _Fork:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._from.close()

    def messages(self) -> Generator[dict[str, Any]]:
        """What it sends, until it says that it is done, or ends."""
        for line in self._from:
            if line.strip() == "done":
                return
            yield json.loads(line)

    def end(self) -> str:
        """End it, with all that it started; how it ended, where it did so by itself."""
        if self._how is None:
            with contextlib.suppress(ChildProcessError):
                if os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    _wait_a_moment(self._pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            self._how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        return self._how


def _wait_a_moment(pid: int) -> None:
    """Let a process that has closed its end of the pipe come to its own end."""
    import time

    for _ in range(50):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.01)


def _child(work: Callable[[Callable[[Any], None]], None], to: TextIO) -> None:
    """Work, and end at once: threads that a plugin started are not waited for."""
    code = 1
    try:
        os.setsid()

        def send(message: Any) -> None:
            to.write(json.dumps(message) + "\n")
            to.flush()

        work(send)
        to.write("done\n")
        to.flush()
        code = 0
    except BaseException:  # noqa: BLE001 - the traceback goes where the plugin's output goes
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)
