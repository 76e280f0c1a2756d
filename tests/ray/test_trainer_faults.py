"""Whatever dies in a run on Ray, it says so, leaves nothing behind, and the run that goes on ends as one that met no fault."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.ray, pytest.mark.timeout(1500)]

SMALL = ["--plugin", "math", "--lr", "1e-3", "--save-interval", "1", "--n-samples-per-prompt", "4", "--keep-checkpoints", "2"]
RANKS = ["--run-dir", "run", "--runtime", "ray", "--trainer-ranks", "2", "--zero-stage", "2"]
IN_TRAINING = ["--rollout-data-postprocess-path", "./functions.py:in_training"]
WHOLE = [
    *(*SMALL, *RANKS, *IN_TRAINING, "--engines", "1", "--num-rollout", "8", "--skip-eval-before-train"),
    *("--custom-rm-path", "./functions.py:reward", "--reward-timeout", "300"),
    *("--rollout-batch-size", "4", "--rollout-max-response-len", "4"),
]


def meet(faults: list[Callable[[Any], None]], start: Callable[..., Any], folder: Path, *flags: str) -> None:
    """One start after the other, each of which goes on from the last checkpoint and meets a fault."""
    for fault in faults:
        run = start(folder, *flags, "--load", "auto")
        fault(run)
        assert run.left() == {}, fault.__name__
        run.let_go()
        assert list((folder / "run" / "checkpoints").glob(".writing-*")) == [], "nothing is half written"


def test_a_run_that_meets_faults_ends_as_one_that_met_none(start: Any, metrics: Any, tmp_path: Path) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "faulty").mkdir()
    meet([a_rank_is_killed_in_training, the_driver_is_killed, ctrl_c_in_a_rollout], start, tmp_path / "faulty", *WHOLE)
    last = start(tmp_path / "faulty", *WHOLE, "--load", "auto")
    assert last.ends() == 0, last.said[-2000:]
    calm = start(tmp_path / "calm", *WHOLE)
    assert calm.ends() == 0 and calm.left() == {}, calm.said[-2000:]
    expected, found = metrics(tmp_path / "calm" / "run"), metrics(tmp_path / "faulty" / "run")
    assert [line["step"] for line in found] == [line["step"] for line in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert comparable(ours) == pytest.approx(comparable(theirs), rel=1e-4, abs=1e-4)


def test_what_ends_a_run_in_training_leaves_nothing(start: Any, saved: Any, tmp_path: Path) -> None:
    """On saved rollouts: without an engine a start takes less."""
    flags = [*SMALL, *RANKS, *IN_TRAINING, *saved(tmp_path, 12), "--rollout-batch-size", "2"]
    meet([the_head_is_killed, the_node_manager_is_killed, ctrl_c_twice, a_termination], start, tmp_path, *flags)


def comparable(line: dict[str, float]) -> dict[str, float]:
    timings = ("perf/", "hooks/")
    return {
        key: value
        for key, value in line.items()
        if key != "time" and not key.startswith(timings) and not key.endswith(("_per_second", "prefix_cache_hit_rate"))
    }


def a_rank_is_killed_in_training(run: Any) -> None:
    run.hold("training", after=1)
    pid = run.pid_of("ray::TrainerRank")
    os.kill(pid, signal.SIGKILL)
    assert run.ends() == 1
    assert f"(process {pid} on node" in run.said and "the other ranks were ended" in run.said
    assert "--load auto" in run.said and "Traceback" not in run.said
    assert run.said.count("error:") == 1 and "A worker died" not in run.said


def the_driver_is_killed(run: Any) -> None:
    run.hold("training", after=1)
    assert any("forkserver" in line for line in run.processes().values()), "a reward worker is there"
    run.process.kill()
    assert run.ends() == -signal.SIGKILL


def the_head_is_killed(run: Any) -> None:
    run.hold("training", after=1)
    os.kill(run.pid_of("gcs_server"), signal.SIGKILL)
    assert run.ends() == 1
    assert "error: the Ray head (gcs_server), process" in run.said and "--load auto" in run.said


def the_node_manager_is_killed(run: Any) -> None:
    run.hold("training", after=1)
    os.kill(run.pid_of("raylet"), signal.SIGKILL)
    assert run.ends() == 1
    assert "error: Ray's node manager (raylet), process" in run.said and "--load auto" in run.said


def ctrl_c_in_a_rollout(run: Any) -> None:
    """As a terminal sends it: to the whole process group."""
    run.hold("rollout", after=1)
    saved = run.last_checkpoint
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.ends() == 130
    assert run.last_checkpoint == saved and f"interrupted after {saved} of 8 rollouts" in run.said


def a_termination(run: Any) -> None:
    run.hold("training", after=1)
    saved = run.last_checkpoint
    run.process.terminate()
    run.until(lambda: "stopping at the step boundary" in run.said)
    run.let_go()
    assert run.ends() == 143
    assert run.last_checkpoint == saved + 1, "the step was taken to its end"


def ctrl_c_twice(run: Any) -> None:
    run.hold("training", after=1)
    os.killpg(run.process.pid, signal.SIGINT)
    run.until(lambda: "once more to stop at once" in run.said)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.ends() == 130 and "stopped at once" in run.said


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
