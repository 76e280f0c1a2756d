"""The quickstart on two trainer ranks and two engines learns as it does in one process, and leaves the same things behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow.parquet
import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.ray, pytest.mark.timeout(900)]

ROLLOUTS = 50


@pytest.fixture(scope="module")
def run(start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A finished run with its folder."""
    flags = ["--plugin", "math", "--runtime", "ray", "--trainer-ranks", "2", "--engines", "2", "--zero-stage", "2"]
    run = start(tmp_path_factory.mktemp("whole"), *flags, "--num-rollout", str(ROLLOUTS), "--sample-every", "1", "--run-dir", "run")
    assert run.ends() == 0, run.said
    assert run.left() == {}
    return run


def test_it_learns(run: Any, metrics: Any) -> None:
    scores = [line["eval/heldout"] for line in metrics(run.folder / "run") if "eval/heldout" in line]
    assert scores[-1] - scores[0] >= 0.15, scores


def test_every_step_trains_on_what_the_engines_generated(run: Any, metrics: Any) -> None:
    lines = [line for line in metrics(run.folder / "run") if "train/loss" in line]
    assert [line["step"] for line in lines] == list(range(ROLLOUTS))
    assert all(line["train/train_rollout_logprob_abs_diff"] < 1e-4 for line in lines)
    assert all(line["train/skipped_steps"] == 0.0 and line["train/grad_norm"] > 0 for line in lines)


def test_samples_know_what_training_made_of_them(run: Any) -> None:
    for name in ("train_000000.parquet", f"train_{ROLLOUTS - 1:06}.parquet"):
        rows = pyarrow.parquet.read_table(run.folder / "run" / "samples" / name).to_pylist()
        assert len(rows) == 128
        for row in rows:
            assert len(set(row["advantages"])) == 1
            assert all(abs(a - b) < 1e-4 for a, b in zip(row["log_probs"], row["train_log_probs"], strict=True))


def test_the_folder_has_all_of_a_run(run: Any) -> None:
    folder = run.folder / "run"
    assert {"config.yaml", "plugins.lock.json", "metrics.jsonl", "report.html", "samples", "checkpoints", "logs"} <= {
        path.name for path in folder.iterdir()
    }
    assert "runtime: ray" in (folder / "config.yaml").read_text()
    logs = [path.name for path in (folder / "logs").iterdir()]
    assert logs and set(logs) <= {f"{name}.log" for name in ACTORS}, "of those that said something"
    checkpoint = folder / "checkpoints" / f"step_{ROLLOUTS}"
    files = json.loads((checkpoint / "manifest.json").read_text())["files"]
    assert {"model.safetensors", "trainer/driver.json", "trainer/rank_0.json", "trainer/rank_1.json"} <= files.keys()
    assert (folder / "report.html").stat().st_size > 200_000


def test_it_says_what_it_starts_and_where(run: Any) -> None:
    for line in (
        "Ray: 2 trainer ranks and 2 engines, in a Ray of its own on this machine",
        "starting Ray ...",
        "placing the run ...",
        "127.0.0.1: trainer ranks 0, 1, engines 0, 1",
        "starting the trainer: 2 ranks ...",
        "starting vLLM: 2 engines ...",
    ):
        assert line in run.said
    assert "ray::" not in run.said and "(raylet)" not in run.said


ACTORS = ("trainer-rank-0", "trainer-rank-1", "engine-0", "engine-1")


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
