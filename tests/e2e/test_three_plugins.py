"""Three plugins at once in a real run: drop reasons, removed samples and hook times are in the metrics, and the counts add up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROLLOUTS = 3
FILTER = "def leave_every_fourth_out(args, samples):\n    return samples[0].group_index % 4 != 1\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the quickstart's model whose answers are cut short now and then, and which fetches more than it needs."""
    folder = tmp_path_factory.mktemp("three")
    (folder / "own.py").write_text(FILTER)
    command = [
        *("--plugin", "math", "--plugin", "nonzero-std", "--plugin", "truncated"),
        *("--dynamic-sampling-filter-path", f"{folder}/own.py:leave_every_fourth_out"),
        *("--rollout-batch-size", "8", "--n-samples-per-prompt", "4", "--over-sampling-batch-size", "24"),
        *("--rollout-max-response-len", "4", "--num-rollout", str(ROLLOUTS), "--dynamic-sampling-max-rounds", "40"),
        *("--skip-eval-before-train", "--sample-every", "1", "--trace-hooks", "--check-hooks", "--run-dir", str(folder / "run")),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "vime", "train", *command], capture_output=True, text=True, timeout=500, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (folder / "output.txt").write_text(done.stderr + done.stdout)
    return folder


def lines(run: Path, namespace: str) -> list[dict[str, Any]]:
    """The numbers of each step under `namespace/`, without that prefix."""
    found = []
    for line in map(json.loads, (run / "run" / "metrics.jsonl").read_text().splitlines()):
        numbers = {key.removeprefix(f"{namespace}/"): value for key, value in line.items() if key.startswith(f"{namespace}/")}
        found += [numbers] if numbers else []
    return found


def rows(run: Path, step: int) -> list[dict[str, Any]]:
    import pyarrow.parquet as parquet

    return parquet.read_table(run / "run" / "samples" / f"train_{step:06d}.parquet").to_pylist()


IN = ("samples_generated", "samples_from_buffer")
OUT = (
    "samples_trained",
    "removed_samples",
    "samples_filtered",
    "samples_to_buffer",
    "samples_aborted",
    "samples_failed",
    "samples_stale",
)


def test_every_sample_ends_in_one_counted_place(run: Path) -> None:
    steps = lines(run, "rollout")
    assert len(steps) == ROLLOUTS
    for step in steps:
        assert sum(step[key] for key in IN) == sum(step[key] for key in OUT)
    for key in ("samples_from_buffer", "samples_to_buffer", "samples_filtered", "removed_samples", "samples_trained"):
        assert sum(step[key] for step in steps) > 0, key


def test_what_went_into_the_buffer_came_out_of_it_or_is_still_there(run: Path) -> None:
    waiting = 0
    for step in lines(run, "rollout"):
        waiting += step["samples_to_buffer"] + step["samples_aborted"] - step["samples_from_buffer"]
        assert step["buffer_groups"] * 4 == waiting
        assert step["buffer_discarded"] == 0


def test_drop_reasons_are_counted_by_name(run: Path) -> None:
    steps = lines(run, "rollout")
    reasons: Counter[str] = Counter()
    for step in steps:
        counts = {key: value for key, value in step.items() if key.startswith("dynamic_filter/drop_")}
        assert sum(counts.values()) == step["groups_dropped"]
        assert step["samples_filtered"] == 4 * step["groups_dropped"]
        reasons.update(counts)
    assert reasons["dynamic_filter/drop_zero_std_0.0"] > 0
    assert reasons["dynamic_filter/drop_leave_every_fourth_out"] > 0


def test_the_rows_of_the_samples_agree_with_the_counts(run: Path) -> None:
    for number, step in enumerate(lines(run, "rollout")):
        table = rows(run, number)
        kept = [row for row in table if row["kept"]]
        dropped = Counter(row["drop_reason"] for row in table if not row["kept"])
        assert len(kept) == step["samples_trained"] + step["removed_samples"] == 8 * 4
        assert sum(row["removed"] for row in kept) == step["removed_samples"]
        assert all(row["removed"] == (row["status"] == "truncated") for row in kept)
        assert sum(dropped.values()) == step["samples_filtered"] + step["samples_failed"]
        for reason, count in dropped.items():
            assert count == 4 * step[f"dynamic_filter/drop_{reason}"]
    every = [row["index"] for number in range(ROLLOUTS) for row in rows(run, number)]
    assert len(set(every)) == len(every)


def test_the_time_of_every_hook_is_there(run: Path) -> None:
    steps = lines(run, "hooks")
    assert len(steps) == ROLLOUTS
    for step in steps:
        for key in ("math/custom_rm_ms", "nonzero-std/dynamic_sampling_filter_ms", "truncated/rollout_sample_filter_ms"):
            assert step[key] > 0
        assert any("leave_every_fourth_out/dynamic_sampling_filter_ms" in key for key in step)


def test_each_call_is_traced(run: Path) -> None:
    output = (run / "output.txt").read_text()
    for key in ("math/custom_rm", "nonzero-std/dynamic_sampling_filter", "truncated/rollout_sample_filter"):
        assert f"hook {key}  " in output


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
