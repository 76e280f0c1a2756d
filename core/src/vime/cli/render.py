"""The one place that prints errors: one line and a hint on stderr, the traceback only when it is asked for."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vime.errors import EXIT_FAILED, EXIT_INTERRUPTED, VimeError
from vime.redact import Redactor

if TYPE_CHECKING:
    from traceback import FrameSummary

_PACKAGE = Path(__file__).resolve().parents[1]
_RED, _YELLOW = "31", "33"


def report(error: BaseException, *, with_traceback: bool = False) -> int:
    """Print what went wrong and return the exit code it means."""
    if with_traceback:
        import traceback

        _write("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, KeyboardInterrupt):
        _write("interrupted")
        return EXIT_INTERRUPTED
    if isinstance(error, VimeError):
        _write(f"{_label('error', _RED)} {error.message}")
        _write_notes(error)
        if error.hint is not None:
            _write(f"  hint: {error.hint}")
        return error.exit_code
    _write(f"{_label('error', _RED)} {_summary(error)}{_place(error)}")
    _write_notes(error)
    if not with_traceback:
        _write("  hint: add --traceback to see the whole way it came")
    return EXIT_FAILED


def warn(text: str) -> None:
    """Print a warning, one line."""
    _write(f"{_label('warning', _YELLOW)} {text}")


def waiting_for(labels: list[str]) -> None:
    """Say whose import takes long, so that nobody waits in silence."""
    _write(f"still importing {', '.join(labels)}; Ctrl-C stops")


def printed_by_plugins(output: str) -> None:
    """Pass on what plugins printed while they were imported: it is not part of an answer."""
    if output.strip():
        _write(output.rstrip())


def _summary(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: BaseException) -> str:
    """Where it was raised, and by which line of vime it was called, where that is another one.

    Nothing of an error of another process: a note says where it was raised there, and the frames here are those that waited for it.
    """
    import traceback

    if any(note.startswith("raised at ") for note in getattr(error, "__notes__", ())):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    place = f" (at {_frame(frames[-1])}"
    return place + (f", called from {_frame(ours[-1])})" if ours and ours[-1] is not frames[-1] else ")")


def _frame(frame: FrameSummary) -> str:
    path = Path(frame.filename)
    inside = path.relative_to(_PACKAGE.parent) if path.is_relative_to(_PACKAGE) else Path(*path.parts[-2:])
    return f"{inside}:{frame.lineno} in {frame.name}"


def _write_notes(error: BaseException) -> None:
    for note in getattr(error, "__notes__", ()):
        _write(f"  note: {note}")


def _label(word: str, colour: str) -> str:
    is_coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    return f"\x1b[1;{colour}m{word}:\x1b[0m" if is_coloured else f"{word}:"


def _write(text: str) -> None:
    sys.stderr.write(Redactor.of(os.environ).text(text) + "\n")
