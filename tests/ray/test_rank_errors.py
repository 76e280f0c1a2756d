"""What goes wrong in a trainer rank reaches the user as in a run of one process; nothing is left. Trains on saved rollouts: no engine."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.ray, pytest.mark.timeout(900)]

ROLLOUTS = 3
TRAIN = ["--plugin", "math", "--rollout-batch-size", "2", "--n-samples-per-prompt", "4", "--lr", "1e-3", "--save-interval", "1"]
RUN = ["--run-dir", "run"]
HOOK = ["--rollout-data-postprocess-path", "./functions.py:in_training"]
TWO_RANKS = ["--runtime", "ray", "--trainer-ranks", "2"]


@pytest.fixture
def train(saved: Callable[..., list[str]], tmp_path: Path) -> list[str]:
    return [*TRAIN, *saved(tmp_path, ROLLOUTS)]


def assert_one_message(run: Any) -> None:
    assert run.left() == {}
    assert run.said.count("error:") == 1, run.said
    assert not any(noise in run.said for noise in ("Traceback", "ray::", "A worker died", "RayTaskError")), run.said


def test_an_error_in_a_hook_is_told_with_its_plugin_and_line(start: Any, train: list[str], tmp_path: Path) -> None:
    (tmp_path / "raise").touch()
    run = start(tmp_path, *train, *RUN, *HOOK, *TWO_RANKS)
    assert run.ends() == 1
    assert_one_message(run)
    assert "error: ValueError: the advantages of this batch went wrong" in run.said
    assert "functions.py:in_training" in run.said and "in the training on rollout 0" in run.said
    assert "in in_training" in run.said, "the line that raised it"


def test_a_rank_that_crashes_is_told_with_its_log(start: Any, train: list[str], tmp_path: Path) -> None:
    (tmp_path / "crash").touch()
    run = start(tmp_path, *train, *RUN, *HOOK, *TWO_RANKS)
    assert run.ends() == 1
    assert_one_message(run)
    assert "error: trainer rank 1 (process " in run.said and "has died (killed, out of memory, or crashed)" in run.said
    log = tmp_path / "run" / "logs" / "trainer-rank-1.log"
    assert str(log) in run.said and "SIGSEGV" in log.read_text()


def test_a_rank_that_hangs_is_given_up(start: Any, train: list[str], tmp_path: Path) -> None:
    run = start(tmp_path, *train, *RUN, *HOOK, *TWO_RANKS, "--trainer-timeout", "40")
    run.hold("training", after=0)
    pid = run.pid_of("ray::TrainerRank")
    os.kill(pid, signal.SIGSTOP)
    run.let_go()
    assert run.ends() == 1
    assert_one_message(run)
    assert f"(process {pid} on node" in run.said and "hangs: no sign of life" in run.said


def test_what_is_refused_is_refused_as_in_one_process(start: Any, train: list[str], tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    messages: list[str] = []
    for flags in ([], TWO_RANKS):
        run = start(tmp_path, *train, "--deepspeed-config", "ds.json", *flags, "--run-dir", f"refused-{len(flags)}")
        assert run.ends() == 2
        assert_one_message(run)
        messages.append(run.said[run.said.index("error:") :])
    assert messages[0] == messages[1] and "sets zero_optimization.stage to 3" in messages[0]


def test_one_rank_and_one_process_go_on_from_each_others_checkpoints(start: Any, train: list[str], tmp_path: Path, metrics: Any) -> None:
    (tmp_path / "calm").touch()  # which process draws a random number is what differs
    whole = start(tmp_path, *train, *HOOK, "--run-dir", "whole", "--num-rollout", "3")
    assert whole.ends() == 0, whole.said
    for length, flags in enumerate(([], TWO_RANKS[:2], []), start=1):
        run = start(tmp_path, *train, *RUN, *HOOK, *flags, "--num-rollout", str(length), "--load", "auto")
        assert run.ends() == 0, run.said
    expected = {line["step"]: line for line in metrics(tmp_path / "whole") if "train/loss" in line}
    found = {line["step"]: line for line in metrics(tmp_path / "run") if "train/loss" in line}
    assert expected.keys() == found.keys() == set(range(ROLLOUTS))
    timed = [line["step"] for line in metrics(tmp_path / "run") if any(key.startswith("hooks/path:") for key in line)]
    assert timed == list(range(ROLLOUTS)), "a hook is timed wherever it runs"
    for step, line in found.items():
        names = ("train/loss", "train/grad_norm", "train/lr", "train/train_rollout_logprob_abs_diff")
        assert {name: line[name] for name in names} == pytest.approx({name: expected[step][name] for name in names}, rel=1e-4, abs=1e-6)
    written = json.loads((tmp_path / "run" / "checkpoints" / "step_3" / "trainer" / "state.json").read_text())
    assert written["applied_steps"] == 3


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
