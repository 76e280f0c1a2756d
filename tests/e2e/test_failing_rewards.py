"""Whole runs with a reward that hangs, raises or returns NaN for 1% of the samples each: what is counted is what was injected."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

REWARD = """
import time
from pathlib import Path

KINDS = {13: "hang", 37: "raise", 71: "nan"}

def score(args, sample, **kwargs):
    kind = KINDS.get(sample.index % 100, "fine")
    with open(Path(__file__).with_name("calls.log"), "a") as log:
        log.write(f"{sample.index} {kind}\\n")
    if kind == "hang":
        time.sleep(3600)
    if kind == "raise":
        raise KeyError("injected")
    return float("nan") if kind == "nan" else float(str(sample.label) in sample.response)
"""
COUNTED = {"hang": "timeout", "raise": "KeyError", "nan": "bad_value"}
"""The kind in the metric's name for each way to fail."""


def train(vime: Any, folder: Path, *flags: str) -> Any:
    """Three rollouts of 25 groups of 4 on the quickstart's model."""
    (folder / "failing.py").write_text(REWARD)
    size = ("--num-rollout", "3", "--rollout-batch-size", "25", "--over-sampling-batch-size", "5", "--n-samples-per-prompt", "4")
    reward = ("--custom-rm-path", "./failing.py:score", "--reward-timeout", "2", "--rollout-max-response-len", "32")
    return vime("train", *size, *reward, "--run-dir", "run", "--skip-eval-before-train", *flags, cwd=folder)


def test_a_run_that_drops_what_fails_finishes_and_counts_it(vime: Any, tmp_path: Path) -> None:
    done = train(vime, tmp_path, "--on-reward-error", "drop")
    assert done.returncode == 0, done.stderr
    kinds = [line.split()[1] for line in (tmp_path / "calls.log").read_text().splitlines()]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rollouts = [line for line in lines if "rollout/samples_trained" in line]
    assert len(rollouts) == 3
    in_training, in_evaluation = counted("rollout", lines), counted("eval", lines)
    assert set(in_training) == set(in_evaluation) == set(COUNTED.values())
    assert in_training + in_evaluation == Counter(COUNTED[kind] for kind in kinds if kind != "fine")
    for line in rollouts:
        came = line["rollout/samples_generated"] + line["rollout/samples_from_buffer"]
        gone = ("samples_trained", "removed_samples", "samples_filtered", "samples_to_buffer", "samples_aborted", "samples_failed")
        assert came == sum(line[f"rollout/{where}"] for where in gone) + line.get("rollout/samples_stale", 0)
        assert line["rollout/samples_trained"] == 100
    # Each failing sample is generated once more, and fails again with its group of four; in an evaluation it just fails.
    assert sum(line["rollout/samples_failed"] for line in rollouts) == 4 * in_training.total() / 2
    assert sum(value for line in lines for key, value in line.items() if key.endswith("/failed_samples")) == in_evaluation.total()


def counted(namespace: str, lines: list[dict[str, float]]) -> Counter[str]:
    """The failed rewards of a run by kind; all are of one function."""
    start = f"{namespace}/reward_errors/path:./failing.py:score/"
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update({key.removeprefix(start): int(value) for key, value in line.items() if key.startswith(start)})
    return counts


def test_a_run_that_raises_ends_with_one_error_that_names_sample_function_and_kind(vime: Any, tmp_path: Path) -> None:
    done = train(vime, tmp_path, "--reward-isolation", "thread", "--reward-concurrency", "4")
    assert done.returncode == 1
    [error] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: KeyError: 'injected' (at ") and "failing.py:" in error, done.stderr
    assert "note: in custom_rm of path function ./failing.py:score" in done.stderr
    assert "note: while scoring sample 37 (group 9)" in done.stderr


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
