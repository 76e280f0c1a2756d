"""Running the checks: every check in a thread with a deadline, so that a plugin that hangs fails a check and never the kit."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Generator, Mapping, MutableMapping, Sequence
from concurrent.futures import thread as executors
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import vime
from vime.config.names import nearest
from vime.errors import ConfigError, PluginError, VimeError
from vime.plugins.discovery import Catalog
from vime.plugins.loading import describe
from vime.testing.checks import ALL_CHECKS
from vime.testing.checks.base import Bench, Check, CheckFailed, CheckSkipped, RewardCase
from vime.testing.report import CheckResult, Report
from vime.testing.subject import Subject, find_subject

TIMEOUT = 60.0
"""Seconds that one check may take."""
_MORE_TIME = "a hook must return; --timeout SECONDS gives each check more time"
_VIME = Path(vime.__file__).resolve().parent


def check(
    target: Any,
    *,
    hook: str | None = None,
    settings: Mapping[str, Any] | None = None,
    args: Mapping[str, Any] | None = None,
    cases: Sequence[RewardCase] = (),
    deterministic: bool = True,
    expected_failures: Mapping[str, str] | None = None,
    only: Collection[str] | None = None,
    timeout: float = TIMEOUT,
    catalog: Catalog | None = None,
) -> Report:
    """Run the contract checks on `target` and report each one.

    `target` is a plugin's name, a function by path (`pkg.mod:fn`, `./file.py:fn`), a plugin module or class, or a
    function. `hook` says what a function is for; of a plugin it selects one of its hooks. `settings` are the plugin's,
    `args` is configuration by field name. `deterministic=False` declares that the same input may give another answer.
    `expected_failures` gives a reason by check id. `only` limits the run to these check ids. `timeout` is in seconds, for each check.

    Raises PluginError where nothing answers to `target` or its hook cannot be told, ConfigError for check ids that do not exist.
    """
    session = prepare(
        target,
        hook=hook,
        settings=settings,
        args=args,
        cases=cases,
        deterministic=deterministic,
        expected_failures=expected_failures,
        only=only,
        timeout=timeout,
        catalog=catalog,
    )
    return Report(session.subject.target, [session.run(each) for each in session.checks])


def prepare(
    target: Any,
    *,
    hook: str | None = None,
    settings: Mapping[str, Any] | None = None,
    args: Mapping[str, Any] | None = None,
    catalog: Catalog | None = None,
    timeout: float = TIMEOUT,
    **options: Any,
) -> Session:
    """The checks of `target`, ready to be run one by one; arguments and errors are those of `check`."""
    subject = find_subject(target, hook=hook, settings=settings, args=args, catalog=catalog, timeout=timeout)
    given = {name: value for name, value in options.items() if value is not None}
    return Session(subject, hooks=None if hook is None else (hook,), timeout=timeout, **given)


@dataclass
class Session:
    """The checks of one subject, run one by one; what one check found out decides whether others still make sense."""

    subject: Subject
    hooks: Collection[str] | None = None
    """The hooks to check; None for all that the subject implements."""
    cases: Sequence[RewardCase] = ()
    deterministic: bool = True
    expected_failures: Mapping[str, str] = field(default_factory=dict[str, str])
    only: Collection[str] | None = None
    timeout: float = TIMEOUT
    known: tuple[Check, ...] = ALL_CHECKS
    """The checks to choose from."""
    checks: tuple[Check, ...] = ()
    """What there is to run, in order."""
    _refused: VimeError | None = None
    """Why the subject cannot be loaded; hook checks are skipped then."""
    hung: dict[str | None, str] = field(default_factory=dict[str | None, str])
    """By hook, the check that did not end."""

    def __post_init__(self) -> None:
        self._refuse_unknown([*self.expected_failures, *(self.only or ())], [each.id for each in self.known])
        wanted = self._implemented()
        fitting = [each for each in self.known if each.hook in wanted and self.subject.kind in each.kinds]
        if self._refused is None:
            self._refuse_unknown(list(self.expected_failures), [each.id for each in fitting])
        self.checks = tuple(each for each in fitting if self.only is None or each.id in self.only)

    def _implemented(self) -> set[str | None]:
        """The hooks under test, and None for the package itself. A subject that cannot be loaded has those that were asked for."""
        with _aside():
            implemented, error = _in_thread(self.subject.hooks, self.timeout, f"loading {self.subject.target}")
        if error is not None:
            self._refused = error if isinstance(error, VimeError) else PluginError(f"loading it raised {describe(error)}{_place(error)}")
            return {None, *(self.hooks or ()), *([self.subject.path_hook] if self.subject.path_hook else [])}
        missing = [hook for hook in self.hooks or () if hook not in implemented]
        if missing:
            raise PluginError(f"{self.subject.target} does not implement {missing[0]}", hint="it implements " + ", ".join(implemented))
        return {None, *(self.hooks or implemented)}

    def _refuse_unknown(self, ids: Sequence[str], known: Sequence[str]) -> None:
        for check_id in ids:
            if check_id not in known:
                near = nearest(check_id, known)
                listing = f"did you mean {near!r}?" if near else "the checks are: " + ", ".join(known)
                raise ConfigError(f"{self.subject.target} has no check {check_id!r}", hint=listing)

    def run(self, each: Check) -> CheckResult:
        """Run one check, or say why it makes no sense any more."""
        result = self._run(each)
        reason = self.expected_failures.get(each.id)
        if reason is None or result.status == "skip":
            return result
        if result.status == "fail":
            return replace(result, status="xfail", message=f"expected: {reason} ({result.message})")
        return CheckResult(each.id, "fail", f"expected to fail because {reason!r}, but passed", "remove it from expected_failures")

    def _run(self, each: Check) -> CheckResult:
        if each.hook is not None and self._refused is not None:
            return CheckResult(each.id, "skip", f"not run: {self._refused.message}", self._refused.hint or "")
        if each.hook in self.hung:
            return CheckResult(each.id, "skip", f"not run, because {self.hung[each.hook]} did not end")
        bench = Bench(self.subject, each.hook or "", self.cases, self.deterministic)
        with _aside() as output, _only_new_garbage():
            _, error = _in_thread(lambda: each.run(bench), self.timeout, each.id)
            if error is None:
                return CheckResult(each.id, "pass")
            if isinstance(error, _Hung):
                self.hung[each.hook] = each.id
            result = _ended(each, error)
            del error
            gc.collect()  # coroutines that were never awaited warn when they are collected: here, and not in somebody's tests
            return replace(result, output=output()) if result.status == "fail" else result


@contextlib.contextmanager
def _only_new_garbage() -> Generator[None]:
    """Let collections look at objects made from here on alone: walking those of torch takes a fraction of a second each time."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _Hung(VimeError):
    """Something did not end within its time."""


def _ended(each: Check, error: BaseException) -> CheckResult:
    """The result of a check that raised."""
    if isinstance(error, BaseExceptionGroup):
        return _ended(each, cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    if isinstance(error, CheckSkipped):
        return CheckResult(each.id, "skip", str(error))
    if isinstance(error, CheckFailed):
        return CheckResult(each.id, "fail", error.message, error.hint)
    if isinstance(error, VimeError):
        return CheckResult(each.id, "fail", error.message, error.hint or "")
    return CheckResult(each.id, "fail", f"raised {describe(error)}{_place(error)}")


def _place(error: BaseException) -> str:
    """` (file.py:12)`: the last line of the plugin's own code that the exception came through."""
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [frame for frame in frames if not _is_library(Path(frame.filename))]
    chosen = (foreign or frames)[-1:]
    return "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in chosen)


def _is_library(file: Path) -> bool:
    return (
        file.is_relative_to(_VIME)
        or file.is_relative_to(Path(threading.__file__).parent)
        or not {"hypothesis", "pydantic"}.isdisjoint(file.parts)
    )


def _in_thread(work: Callable[[], Any], timeout: float, name: str) -> tuple[Any, BaseException | None]:
    """What `work` returned and what it raised, run in a daemon thread; _Hung, saying where it was, after `timeout` seconds."""
    outcome: list[tuple[Any, BaseException | None]] = []

    def target() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as error:  # noqa: BLE001 - a plugin may raise anything, SystemExit too; it is reported
            outcome.append((None, error))

    waited_for = set(_executor_threads())
    thread = threading.Thread(target=target, name=f"vime-check {name}", daemon=True)
    thread.start()
    thread.join(timeout)
    if outcome:
        return outcome[0]
    for left in set(_executor_threads()) - waited_for:
        _executor_threads().pop(left, None)  # Python would wait for it when it exits, without end
    return None, _Hung(f"did not end within {timeout:g} s{_position(thread)}", hint=_MORE_TIME)


def _executor_threads() -> MutableMapping[threading.Thread, Any]:
    """The threads of executors, which Python joins at its exit although they are daemons here, as their parents are."""
    return getattr(executors, "_threads_queues", {})


def _position(thread: threading.Thread) -> str:
    """Where a thread is in the plugin's own code."""
    frame = sys._current_frames().get(thread.ident or 0)  # pyright: ignore[reportPrivateUsage]
    stack: list[traceback.FrameSummary] = list(traceback.extract_stack(frame)) if frame is not None else []
    own = [entry for entry in stack if not _is_library(Path(entry.filename))]
    return f"; it is at {Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}" if own else ""


@contextlib.contextmanager
def _aside() -> Generator[Callable[[], str]]:
    """Keep what a plugin prints, logs and warns of away from the terminal; yields a function that gives it as text."""
    buffer = io.StringIO()
    handlers, level = list(logging.root.handlers), logging.root.level
    with contextlib.redirect_stdout(buffer), contextlib.redirect_stderr(buffer), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield lambda: buffer.getvalue().strip()
        finally:
            logging.root.handlers[:] = handlers
            logging.root.setLevel(level)
