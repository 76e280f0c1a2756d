"""What a person sees: aligned lines, nothing twice, nothing that a log cannot hold."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest

from vime.redact import Redactor
from vime.track import console as console_module
from vime.track.console import Console
from vime.track.lines import evaluation_names, format_dropped, format_number, format_seconds, sparkline

NUM_GPUS = 0

METRICS = {
    "rollout/raw_reward": 0.5,
    "rollout/response_len/mean": 43.25,
    "train/loss": -0.0123,
    "train/grad_norm": 0.453,
    "train/train_rollout_logprob_abs_diff": 2.1e-7,
    "perf/rollout_time": 1.24,
    "perf/train_time": 0.8,
    "perf/sync_time": 0.031,
}


def _console(terminal=False, width=120, **config):
    file = io.StringIO()
    return Console(SimpleNamespace(**config), file=file, terminal=terminal, width=width), file


def _text(file):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).replace("\r", "")


def _lines(file):
    return _text(file).splitlines()


def test_a_step_line_in_a_log():
    console, file = _console()
    console.step(7, 100, METRICS)
    assert _lines(file) == [
        "step   7/100  reward   0.500  len   43.2  loss   -0.0123  grad   0.453  Δlogp 2.1e-07  rollout   1.2s  train  0.80s  sync  0.03s"
    ]
    assert "\x1b" not in file.getvalue()


def test_step_lines_are_aligned_whatever_the_numbers():
    console, file = _console(terminal=True, width=160)
    for step, factor in ((1, 1.0), (99, 0.01), (100, 90.0)):
        console.step(step, 100, {key: value * factor for key, value in METRICS.items()})
    columns = [[match.start() for match in re.finditer("reward|len|loss|grad|Δlogp|rollout|train|sync", line)] for line in _lines(file)]
    assert columns[0] == columns[1] == columns[2]
    assert len(columns[0]) == 8


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_a_step_fits_on_one_line_of_the_terminal(width):
    console, file = _console(terminal=True, width=width)
    console.step(7, 100, METRICS)
    (line,) = _lines(file)
    assert len(line) <= width
    assert "reward" in line
    assert ("loss" in line) == (width >= 60)
    assert ("sync" in line) == (width >= 200)


def test_a_step_shows_what_there_is():
    console, file = _console()
    console.step(3, None, {"train/loss": 2.0, "train/skipped_steps": 1})
    assert _lines(file) == ["step 3  loss   +2.0000  optimizer step skipped"]


def test_a_step_of_the_critic_alone_shows_its_loss():
    console, file = _console()
    console.step(3, None, {"train/value_loss": 0.25})
    assert _lines(file) == ["step 3  value   0.250"]


def test_the_sparkline_is_scaled_over_the_whole_history():
    assert sparkline([], 3) == "   "
    assert sparkline([1.0], 3) == "▁  "
    assert sparkline([0.0, 1.0, 0.5], 4) == "▁█▅ "
    assert sparkline([0.0, 8.0, 7.0, 8.0], 2) == "▇█"


def test_evaluation_lines_go_from_the_first_score_to_the_last():
    console, file = _console(eval_datasets=[SimpleNamespace(name="held-out"), SimpleNamespace(name="held-out greedy")])
    console.evaluation(0, {"eval/held-out": 0.4, "eval/held-out greedy": 0.45, "eval/held-out-pass@1": 0.4, "eval/held-out-pass@4": 0.62})
    console.evaluation(5, {"eval/held-out": 0.2, "eval/held-out greedy": 0.83, "eval/held-out-truncated_ratio": 0.25})
    assert _lines(file) == [
        "eval held-out         0.400  pass@4 0.62",
        "eval held-out greedy  0.450",
        "eval held-out         0.400 -> 0.200  -0.200  cut off 25%",
        "eval held-out greedy  0.450 -> 0.830  +0.380",
    ]


def test_an_evaluation_by_loss_has_its_own_line():
    console, file = _console(eval_datasets=[SimpleNamespace(name="held")])
    console.evaluation(0, {"eval/held/loss": 2.0, "eval/held/perplexity": 7.389, "eval/held/trained_tokens": 40.0})
    console.evaluation(5, {"eval/held/loss": 1.5, "eval/held/perplexity": 4.482, "eval/held-truncated_ratio": 0.25})
    assert file.getvalue().splitlines() == [
        "eval held/loss  2.000  perplexity 7.389",
        "eval held/loss  2.000 -> 1.500  -0.500  perplexity 4.482  cut off 25%",
    ]


def test_evaluation_names_without_a_configuration():
    metrics = dict.fromkeys(
        ["eval/a", "eval/a-truncated_ratio", "eval/a-pass@2", "eval/a/response_len/mean", "eval/b-1", "train/loss"], 0.0
    )
    assert evaluation_names(metrics, []) == ["a", "b-1"]
    assert evaluation_names({"eval/x/y": 1.0}, ["x/y", "gone"]) == ["x/y"]


def test_a_warning_is_shown_once():
    console, file = _console()
    for text in ("first", "second", "first"):
        console.warn(text)
    assert _lines(file) == ["warning first", "warning second"]


def test_texts_are_no_markup_and_long_lines_stay_whole_in_a_log():
    console, file = _console(width=40)
    console.info("[bold]not markup[/bold] :smile: " + "x" * 100)
    console.header({"model": "[red]a", "data": "y" * 100})
    console.summary({"run folder": "z" * 100})
    assert _lines(file) == [
        "[bold]not markup[/bold] :smile: " + "x" * 100,
        "model: [red]a",
        "data: " + "y" * 100,
        "run folder: " + "z" * 100,
    ]


def test_panels_on_a_terminal():
    console, file = _console(terminal=True, width=60)
    console.header({"model": "[red]quickstart", "plugins": "math 0.1.0"})
    lines = _lines(file)
    assert lines[0].startswith("╭─ vime ─")
    assert "model" in lines[1] and "[red]quickstart" in lines[1]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize("terminal", [False, True])
def test_a_phase_says_how_long_it_took(terminal):
    console, file = _console(terminal=terminal)
    with console.phase("starting vLLM"):
        pass
    last = _lines(file)[-1]
    assert re.search(r"^✓ starting vLLM  \d.\d\ds$" if terminal else r"^starting vLLM: \d.\d\ds$", last)


def test_a_phase_that_fails_is_marked_and_the_error_goes_on():
    console, file = _console(terminal=True)
    with pytest.raises(ValueError, match="broken"), console.phase("starting vLLM"):
        raise ValueError("broken")
    assert re.search(r"✗ starting vLLM  after \d", _lines(file)[-1])


def test_progress_on_a_terminal_shows_counts_and_leaves_nothing():
    console, file = _console(terminal=True, width=140)
    with console.rollout_progress(32) as progress:
        progress.update(5, {"zero_std_1.0": 3, "truncated": 4}, 12345.6)
        console.info("a line in between")
    text = _text(file)
    assert " 5/32 kept 12,346 tok/s" in text
    assert "dropped 7 (truncated 4, zero_std_1.0 3)" in text
    assert "a line in between" in text


def test_progress_in_a_log_is_a_line_now_and_then(monkeypatch):
    console, file = _console()
    with console.rollout_progress(32) as progress:
        progress.update(1)
        assert _lines(file) == []
        monkeypatch.setattr(console_module, "_PLAIN_PROGRESS_EVERY", 0.0)
        progress.update(5, {"truncated": 2}, 99.5)
    assert _lines(file) == ["rollout 5/32 groups  100 tok/s  dropped 2 (truncated 2)"]


def test_quiet_leaves_warnings_and_the_summary():
    console, file = _console(quiet=True)
    console.header({"model": "x"})
    console.info("x")
    console.step(1, 2, METRICS)
    console.evaluation(0, {"eval/a": 1.0})
    with console.phase("x"), console.rollout_progress(2) as progress:
        progress.update(1)
    console.warn("look")
    console.summary({"reward": "0.1 -> 0.9"})
    assert _lines(file) == ["warning look", "reward: 0.1 -> 0.9"]


def test_an_encoding_without_bars_gets_plain_signs():
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    console = Console(file=file, terminal=True, width=160)
    console.header({"model": "x"})
    with console.phase("starting"):
        pass
    with console.rollout_progress(3) as progress:
        progress.update(1)
    console.step(1, 2, METRICS)
    console.evaluation(1, {"eval/a": 0.1})
    console.evaluation(2, {"eval/a": 0.2})
    text = raw.getvalue().decode("ascii")
    assert "dlogp" in text
    assert "* " in text


def test_no_configuration_is_needed():
    console = Console(None, file=io.StringIO(), terminal=False)
    console.evaluation(0, {})
    console.step(1, 1, {})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.031, "0.03s"),
        (0.996, "1.0s"),
        (1.24, "1.2s"),
        (9.99, "10.0s"),
        (9.996, "10s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (184, "3m04s"),
        (7500, "2h05m"),
    ],
)
def test_seconds(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.00021, "score", "0.000"),
        (-123.456, "score", "-123.5"),
        (0.0, "general", "0.000"),
        (2.1e-7, "general", "2.1e-07"),
        (-0.5, "general", "-0.500"),
        (12345.0, "general", "1.2e+04"),
        (12345.6, "length", "12.3k"),
        (123.456, "signed", "+1.23e+02"),
    ],
)
def test_numbers(value, form, text):
    assert format_number(value, form) == text


def test_dropped_counts():
    assert format_dropped({}) == format_dropped({"a": 0}) == ""
    assert format_dropped({"b": 1, "a": 1, "c": 5}) == "dropped 7 (c 5, a 1, b 1)"


def test_a_phase_has_a_bar_on_a_terminal_and_counts_where_it_is_told():
    file = io.StringIO()
    console = Console(file=file, terminal=True, width=100)
    with console.phase("evaluating") as show:
        show(3, 8)
    assert "3/8" in file.getvalue()
    assert "evaluating ..." in file.getvalue()
    with console.working("train"):
        pass
    assert "train" in file.getvalue()


def test_nothing_moves_in_a_log():
    file = io.StringIO()
    console = Console(file=file, terminal=False)
    with console.phase("evaluating") as show:
        show(3, 8)
    with console.working("train"):
        pass
    assert [line.partition(":")[0] for line in file.getvalue().splitlines()] == ["evaluating ...", "evaluating"]
    assert "\x1b" not in file.getvalue()


def test_verbose_shows_every_metric_of_a_step():
    file = io.StringIO()
    console = Console(SimpleNamespace(verbose=True), file=file, terminal=False)
    console.step(1, 2, {"rollout/raw_reward": 0.5, "rollout/groups_kept": 8, "train/grad_norm": 0.4531})
    assert file.getvalue().splitlines()[1:] == ["  rollout  groups_kept 8  raw_reward 0.5", "  train    grad_norm 0.4531"]


@pytest.mark.parametrize("terminal", [False, True])
def test_no_line_tells_a_secret(terminal):
    file = io.StringIO()
    console = Console(hides=Redactor(["top-secret-1"]), file=file, terminal=terminal, width=100)
    console.info("a top-secret-1")
    console.warn("b top-secret-1")
    console.header({"data": "http://host/?key=top-secret-1"})
    assert "secret" not in file.getvalue()
    assert file.getvalue().count("***") == 3


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
