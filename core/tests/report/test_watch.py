"""`vime watch`: what it reads of a file that grows, breaks off, is cut back or is not there; and what it shows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vime.cli.app import main
from vime.report.follow import MetricsFollower
from vime.report.terminal import RunView
from vime.track.jsonl import JsonlWriter

NUM_GPUS = 0


def text_of(view, **options):
    return ["".join(text for _, text in line).rstrip() for line in view.lines(now=1000.0, **options)]


def steps(answer):
    return answer[0], [line["step"] for line in answer[1]]


# Reading


def test_lines_come_once_and_when_they_are_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    follower = MetricsFollower(path)
    assert steps(follower.poll()) == (False, [])
    path.write_text('{"step": 0, "a/b": 1}\n{"step": 1, "a/')
    assert steps(follower.poll()) == (True, [0])
    assert steps(follower.poll()) == (False, [])
    with path.open("a") as file:
        file.write('b": 2}\nno json\n{"no": "step"}\n')
    assert steps(follower.poll()) == (False, [1])


def test_a_resume_starts_it_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writer = JsonlWriter(path)
    for step in range(4):
        writer.write(step, {"a/b": step})
    follower = MetricsFollower(path)
    assert steps(follower.poll()) == (True, [0, 1, 2, 3])
    writer.truncate_after(1)
    for step in range(2, 9):
        writer.write(step, {"a/b": 10 * step})
    assert steps(follower.poll()) == (True, [0, 1, 2, 3, 4, 5, 6, 7, 8])
    writer.close()


def test_a_file_cut_back_in_place_starts_it_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "a/b": 1}\n{"step": 1, "a/b": 1}\n')
    follower = MetricsFollower(path)
    follower.poll()
    with path.open("r+") as file:
        file.truncate(22)
    assert steps(follower.poll()) == (True, [0])
    with path.open("r+") as file:  # cut back, and longer again before the next look
        file.write('{"step": 5, "a/b": 1}\n{"step": 6, "a/b": 1}\n')
    assert steps(follower.poll()) == (True, [5, 6])


def test_a_file_that_goes_away_and_comes_back(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "a/b": 1}\n')
    follower = MetricsFollower(path)
    follower.poll()
    path.rename(tmp_path / "aside")
    assert steps(follower.poll()) == (False, [])
    (tmp_path / "aside").rename(path)
    assert steps(follower.poll()) == (False, [])


# Showing


def test_the_view_of_a_run(run_folder):
    view = RunView("first")
    view.feed(
        [{**line, "time": 990.0} for line in map(json.loads, (run_folder / "metrics.jsonl").read_text().splitlines())], from_start=True
    )
    assert text_of(view) == [
        "first  step 6  0.00s of metrics, last line 10s ago",
        "reward   0.500  ▁▂▄▅▇█  first 0.250, best 0.500",
        "eval     held  0.250 → 0.550  +0.300",
        "policy   len 3.0  cut off 0%  entropy 0.450  loss +0.0000  Δlogp 1.0e-06",
        "time     step 1.0s  rollout 0.50s 50%  train 0.25s 25%  sync 0.12s 12%",
        "drops    filtered 4  failed 4  removed 1 in the last rollout; groups of the run: zero_std_0.0 6",
        "alerts   none",
    ]
    assert all(line.isascii() for line in text_of(view, unicode=False))


def test_alerts_and_a_fresh_start(second_run):
    view = RunView("second")
    lines = [json.loads(line) for line in (second_run / "metrics.jsonl").read_text().splitlines()]
    view.feed(lines, from_start=True)
    assert text_of(view)[-1].startswith("alerts   step 3: 75% of the responses are cut off")
    view.feed(lines[:3], from_start=True)
    assert text_of(view)[-1] == "alerts   none" and "step 1 " in text_of(view)[0]
    view.feed([], from_start=True)
    assert text_of(view) == ["second  no metrics yet"]


def test_counts_of_the_last_rollout_do_not_linger():
    view = RunView("x")
    view.feed([{"step": 0, "time": 1.0, "rollout/samples_aborted": 3}, {"step": 1, "time": 1.0, "rollout/retries": 0}], from_start=True)
    assert "drops    no sample lost in the last rollout" in text_of(view)


def test_an_evaluation_by_loss_is_shown_and_lower_is_better():
    view = RunView("x")
    losses = [{"step": step, "time": 1.0, "eval/held/loss": 3.5 - step, "eval/held/perplexity": 20.0} for step in range(2)]
    view.feed(losses, from_start=True)
    (line,) = [parts for parts in view.lines(now=1.0) if any("held/loss" in text for _, text in parts)]
    assert ("green", "  -1.000") in line and "3.500 → 2.500" in "".join(text for _, text in line)


# The command


def test_once_prints_plain_lines(run_folder, capsys):
    assert main(["watch", str(run_folder), "--once"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("first  step 6") and "\x1b" not in out


def test_once_without_a_run(tmp_path, capsys):
    (tmp_path / "early").mkdir()
    assert main(["watch", str(tmp_path / "early"), "--once"]) == 0
    assert capsys.readouterr().out == "early  no metrics yet\n"
    assert main(["watch", str(tmp_path / "nothing"), "--once"]) == 2
    assert "there is no run folder" in capsys.readouterr().err


def test_on_a_terminal_it_waits_for_the_run_and_ctrl_c_ends_it(tmp_path):
    pty = pytest.importorskip("pty")
    folder = tmp_path / "later"
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    with subprocess.Popen([sys.executable, "-m", "vime", "watch", str(folder)], stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = _read_until(ours, "no metrics yet")
        folder.mkdir()
        (folder / "metrics.jsonl").write_text('{"step": 0, "time": 1.0, "rollout/raw_reward": 0.625}\n')
        seen += _read_until(ours, "0.625")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    os.close(ours)
    assert "Traceback" not in seen


def _read_until(descriptor: int, wanted: str) -> str:
    seen, end = "", time.monotonic() + 90
    while wanted not in seen:
        assert time.monotonic() < end, seen
        seen += os.read(descriptor, 65536).decode(errors="replace")
    return seen


def test_watch_and_report_need_nothing_heavy(run_folder, tmp_path):
    """Without torch and pyarrow curves are shown; the page says what is missing, and so does the command."""
    script = (
        "import sys\n"
        "for name in ('torch', 'vllm', 'deepspeed', 'transformers', 'numpy', 'pyarrow'):\n"
        "    sys.modules[name] = None\n"
        "import importlib.util\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: None if name == 'pyarrow' else real(name, package)\n"
        "from vime.cli.app import main\n"
        "run, page = sys.argv[1:]\n"
        "raise SystemExit(main(['report', run, '--out', page]) or main(['watch', run, '--once']))\n"
    )
    command = [sys.executable, "-c", script, str(run_folder), str(tmp_path / "r.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert "reading them needs pyarrow; pip install pyarrow" in done.stderr
    page = Path(tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Samples are not shown: reading them needs pyarrow" in page and "rollout/raw_reward" in page


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
