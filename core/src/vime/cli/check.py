"""`vime plugin check`: the contract checks of one plugin or function, a line for each."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TextIO, cast

import typer

from vime.config.names import field_of, nearest
from vime.errors import ConfigError, DataError

if TYPE_CHECKING:
    from vime.testing.checks.base import RewardCase
    from vime.testing.isolated import Outline
    from vime.testing.report import CheckResult
    from vime.testing.runner import Session

_SIGNS = {"pass": "✓", "fail": "✗", "skip": "–", "xfail": "~"}
_PLAIN_SIGNS = {"pass": "ok", "fail": "FAIL", "skip": "--", "xfail": "xf"}
_COLOURS = {"pass": "green", "fail": "bold red", "skip": "yellow", "xfail": "yellow"}
_NAMES = {"pass": "passed", "fail": "failed", "skip": "skipped", "xfail": "failed as expected"}
_CASE_KEYS = ("prompt", "response", "label", "reward", "metadata")


def check_plugin(
    target: Annotated[str, typer.Argument(metavar="NAME | pkg.mod:fn | ./file.py:fn", help="An installed plugin, or a function.")],
    hook: Annotated[str | None, typer.Option(help="The hook that a function is for; of a plugin, the only one to check.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the plugin.")] = None,
    args: Annotated[list[str] | None, typer.Option("--arg", metavar="FLAG=VALUE", help="A flag of `vime train` to check with.")] = None,
    reward_key: Annotated[str | None, typer.Option(help="The same as --arg reward-key=NAME.")] = None,
    group_rm: Annotated[bool, typer.Option("--group-rm", help="The same as --arg group-rm=true.")] = False,
    cases: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Known answers of a reward: rows of prompt, response, label, reward.")
    ] = None,
    nondeterministic: Annotated[bool, typer.Option("--nondeterministic", help="The same input may give another answer.")] = False,
    only: Annotated[list[str] | None, typer.Option(metavar="ID", help="Run this check alone; may be repeated.")] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Limit of each check.")] = 30.0,
) -> int:
    """Check what a plugin promises: exit 0 when every check passes, 1 when one fails, 2 when it cannot run."""
    from vime.testing.isolated import run_apart
    from vime.testing.report import Report
    from vime.testing.runner import prepare

    if timeout <= 0:
        raise ConfigError(f"--timeout takes a number of seconds above 0, got {timeout:g}")
    given = _arguments(args or [])
    given |= ({"reward_key": reward_key} if reward_key is not None else {}) | ({"group_rm": True} if group_rm else {})
    known = _read_cases(cases) if cases is not None else ()
    start = time.monotonic()
    with _own_terminal() as terminal:

        def session() -> Session:
            return prepare(
                target,
                hook=hook,
                settings=_settings(settings or [], target),
                args=given,
                cases=known,
                deterministic=not nondeterministic,
                only=only,
                timeout=timeout,
            )

        results = run_apart(target, session, _title, functools.partial(_with_stray_output, terminal))
        report = Report(target, _collect(results, None if as_json else _printer(terminal.out), start))
        if as_json:
            terminal.out.write(json.dumps(report.to_json(), indent=2) + "\n")
    return 0 if report.passed else 1


def _collect(events: Generator[Outline | CheckResult], printer: _Printer | None, start: float) -> list[CheckResult]:
    """All results, each printed as it comes."""
    outline = cast("Outline", next(events))
    if printer is not None:
        printer.head(outline.title, width=max((len(check_id) for check_id, _ in outline.checks), default=0))
    results: list[CheckResult] = []
    for check_id, sentence in outline.checks:
        with printer.waiting(check_id) if printer is not None else contextlib.nullcontext():
            result = cast("CheckResult", next(events))
        results.append(result)
        if printer is not None:
            printer.result(sentence, result)
    events.close()
    if printer is not None:
        counts = ((sum(result.status == status for result in results), name) for status, name in _NAMES.items())
        summary = ", ".join(f"{count} {name}" for count, name in counts if count) or "there is nothing to check"
        printer.summary(f"{summary} in {time.monotonic() - start:.1f} s", "pass" if all(r.status != "fail" for r in results) else "fail")
    return results


def _title(session: Session) -> str:
    subject = session.subject
    origin = f"  ({subject.entry.distribution} {subject.entry.version})" if subject.entry is not None else ""
    hooks = list(dict.fromkeys(each.hook for each in session.checks if each.hook is not None))
    return f"{subject.target}{origin}" + (f"  {', '.join(hooks)}" if hooks else "")


def _with_stray_output(terminal: _Terminal, result: CheckResult) -> CheckResult:
    """Add what child processes and C libraries wrote past Python's streams, where the check failed."""
    stray = terminal.take_stray()
    if result.status != "fail" or not stray:
        return result
    return replace(result, output=f"{result.output}\n{stray}".strip())


class _Printer(Protocol):
    def head(self, title: str, width: int) -> None: ...
    def waiting(self, check_id: str) -> contextlib.AbstractContextManager[Any]: ...
    def result(self, sentence: str, result: CheckResult) -> None: ...
    def summary(self, text: str, status: str) -> None: ...


def _printer(out: TextIO) -> _Printer:
    return _Colours(out) if out.isatty() else _Plain(out)


def _beside(sentence: str, result: CheckResult) -> str:
    """What stands beside the id: the rule, or why it was not applied."""
    return result.message if result.status in ("skip", "xfail") else sentence


def _details(result: CheckResult) -> list[tuple[str, str]]:
    """The lines below a failure, each with what it is: message, hint or output."""
    if result.status != "fail":
        return []
    lines = [("message", line) for line in result.message.splitlines()]
    lines += [("hint", f"hint: {result.hint}")] if result.hint else []
    output = result.output.splitlines()
    lines += [("output", "it printed:")] if output else []
    lines += [("output", f"  {line}") for line in output[:20]]
    return lines + ([("output", f"  ... and {len(output) - 20} lines more")] if len(output) > 20 else [])


class _Plain:
    """Text for pipes and files."""

    def __init__(self, out: TextIO) -> None:
        self.out, self.width = out, 0
        encoding = getattr(out, "encoding", None) or "utf-8"
        try:
            "".join(_SIGNS.values()).encode(encoding)
        except UnicodeEncodeError:
            self.signs = {status: sign.ljust(4) for status, sign in _PLAIN_SIGNS.items()}
        else:
            self.signs = _SIGNS
        self.encoding = encoding

    def head(self, title: str, width: int) -> None:
        self.width = width
        self._write(f"{title}\n\n")

    def waiting(self, check_id: str) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def result(self, sentence: str, result: CheckResult) -> None:
        self._write(f"{self.signs[result.status]} {result.id.ljust(self.width)}  {_beside(sentence, result)}".rstrip() + "\n")
        for _, line in _details(result):
            self._write(f"    {line}\n")

    def summary(self, text: str, status: str) -> None:
        self._write(f"\n{text}\n")

    def _write(self, text: str) -> None:
        self.out.write(text.encode(self.encoding, "backslashreplace").decode(self.encoding))
        self.out.flush()


class _Colours:
    """Colours, folded sentences and the running check, for a terminal."""

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console

        self.console = Console(file=out, highlight=False)
        self.width = 0

    def head(self, title: str, width: int) -> None:
        from rich.text import Text

        self.width = width
        self.console.print(Text(title, style="bold"), Text(""), sep="\n")

    def waiting(self, check_id: str) -> contextlib.AbstractContextManager[Any]:
        return self.console.status(check_id, spinner="dots")

    def result(self, sentence: str, result: CheckResult) -> None:
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_column(width=1)
        line.add_column(width=self.width, no_wrap=True)
        line.add_column(overflow="fold")
        colour = _COLOURS[result.status]
        quiet = "" if result.status == "fail" else "dim"
        line.add_row(Text(_SIGNS[result.status], style=colour), Text(result.id), Text(_beside(sentence, result), style=quiet))
        self.console.print(line)
        styles = {"message": "red", "hint": "cyan", "output": "dim"}
        for kind, text in _details(result):
            self.console.print(Padding(Text(text, style=styles[kind]), (0, 0, 0, 4)))

    def summary(self, text: str, status: str) -> None:
        from rich.text import Text

        self.console.print(Text(""), Text(text, style=_COLOURS[status]), sep="\n")


@dataclass
class _Terminal:
    """Where results go, while everything else that the process writes goes into a file."""

    out: TextIO
    stray: Path

    _read: int = 0

    def take_stray(self) -> str:
        """What was written to the file since the last call."""
        with self.stray.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        return data.decode(errors="replace").strip()


@contextlib.contextmanager
def _own_terminal() -> Generator[_Terminal]:
    """Keep stdout for the results: what plugins, their child processes and C libraries write to it and to stderr goes to a file."""
    original = sys.stdout
    original.flush()
    sys.stderr.flush()
    with tempfile.TemporaryDirectory(prefix="vime-check-") as folder:
        stray = Path(folder) / "output"
        saved = os.dup(1), os.dup(2)
        out: TextIO = original
        with contextlib.suppress(OSError, ValueError):
            if original.fileno() == 1:
                out = os.fdopen(os.dup(saved[0]), "w", encoding=original.encoding, errors=original.errors)
        examples = os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", folder)  # and not a folder where the command is run
        with stray.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        try:
            yield _Terminal(out, stray)
        finally:
            if examples == folder:
                del os.environ["HYPOTHESIS_STORAGE_DIRECTORY"]
            if out is not original:
                out.close()
            for number, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, number)
                os.close(copy)


def _settings(assignments: Sequence[str], target: str) -> dict[str, Any]:
    """`limit=5`, or `length.limit=5` as `vime train --set` has it, as YAML reads the value."""
    from vime.config.kinds import parse_scalar

    found: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not key or not equals:
            raise ConfigError(f"--set: expected key=value, got {assignment!r}", hint="for example --set limit=5")
        try:
            found[key.removeprefix(f"{target}.")] = parse_scalar(text)
        except Exception as error:
            raise ConfigError(
                f"--set {key}: {text!r} is not a YAML value", hint=f"text is written in quotes: --set '{key}=\"...\"'"
            ) from error
    return found


def _arguments(assignments: Sequence[str]) -> dict[str, Any]:
    """`group-rm=true`, typed as the flag's own value."""
    from vime.config.kinds import kinds_of
    from vime.config.run_config import RunConfig

    found: dict[str, Any] = {}
    kinds = kinds_of(RunConfig)
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        field = field_of(name.removeprefix("--"))
        if not equals or not name:
            raise ConfigError(f"--arg: expected flag=value, got {assignment!r}", hint="for example --arg reward-key=score")
        if field not in kinds:
            near = nearest(field, kinds)
            raise ConfigError(f"--arg: there is no flag {name!r}", hint=f"did you mean {near.replace('_', '-')}?" if near else None)
        kind = kinds[field]
        try:
            found[field] = [kind.item.parse(text)] if kind.base is list and kind.item is not None else kind.parse(text)
        except Exception as error:
            raise ConfigError(f"--arg {name}: expected {kind.expected()}, got {text!r}") from error
    return found


def _read_cases(file: Path) -> tuple[RewardCase, ...]:
    """The known answers in a .jsonl file. Raises DataError with the row that is wrong."""
    from vime.testing.checks.base import RewardCase

    if not file.is_file():
        raise DataError(f"--cases {file}: there is no such file")
    found: list[RewardCase] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        where = f"--cases {file}, line {number}"
        try:
            row: Any = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object, got {row!r}")
        missing = [key for key in _CASE_KEYS[:4] if key not in row]
        unknown = [key for key in row if key not in _CASE_KEYS]
        if missing or unknown:
            what = f"has no {', '.join(missing)}" if missing else f"has the unknown key {unknown[0]!r}"
            raise DataError(f"{where}: the row {what}", hint="keys: " + ", ".join(_CASE_KEYS))
        found.append(RewardCase(**row))
    return tuple(found)
