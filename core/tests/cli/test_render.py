"""How errors are printed."""

from __future__ import annotations

import pytest

from vime.cli.render import report
from vime.errors import CheckpointError, ConfigError, EngineError

NUM_GPUS = 0

Captured = pytest.CaptureFixture[str]


def raised(error: BaseException) -> BaseException:
    """The error with a traceback, as it arrives at the boundary."""
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigError("a", hint="b"), 2), (CheckpointError("a", hint="b"), 2), (EngineError("a", hint="b"), 1)]
)
def test_our_errors(error: BaseException, code: int, capsys: Captured) -> None:
    assert report(raised(error)) == code
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "error: a\n  hint: b\n")


def test_no_hint_no_line(capsys: Captured) -> None:
    report(raised(ConfigError("a")))
    assert capsys.readouterr().err == "error: a\n"


def test_other_errors_name_the_place_and_keep_the_notes(capsys: Captured) -> None:
    error = KeyError("answer")
    error.add_note("in hook custom_rm of plugin 'math' (vime-rm-math 0.1.0)")
    assert report(raised(error)) == 1
    first, note, hint = capsys.readouterr().err.splitlines()
    assert first.startswith("error: KeyError: 'answer' (at cli/test_render.py:") and first.endswith("in raised)")
    assert note == "  note: in hook custom_rm of plugin 'math' (vime-rm-math 0.1.0)"
    assert hint.startswith("  hint: add --traceback")


def test_the_line_of_vime_that_called(capsys: Captured) -> None:
    from vime.config.kinds import parse_scalar

    with pytest.raises(Exception, match="sequence") as caught:
        parse_scalar("[1")
    report(caught.value)
    assert ", called from vime/config/kinds.py:" in capsys.readouterr().err


def test_an_error_of_another_process_names_the_place_there_alone(capsys: Captured) -> None:
    error = ValueError("my loss is broken")
    error.add_note("raised at plugins/loss.py:5 in loss")
    assert report(raised(error)) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ValueError: my loss is broken\n  note: raised at plugins/loss.py:5 in loss\n")


def test_the_traceback(capsys: Captured) -> None:
    assert report(raised(ValueError("x")), with_traceback=True) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback (most recent call last)") and "--traceback" not in shown


def test_interrupt(capsys: Captured) -> None:
    assert report(raised(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "interrupted\n"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
