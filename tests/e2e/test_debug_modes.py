"""Rollouts of one run train in another: with the engine alone, with the trainer alone, and the same numbers come out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def lines(run: Path, namespace: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if any(key.startswith(f"{namespace}/") for key in line)]


def flags(model: Path) -> list[str]:
    return [
        *("train", "--model", str(model), "--plugin", "math", "--lr", "1e-3", "--n-samples-per-prompt", "4"),
        *("--rollout-batch-size", "4", "--rollout-max-response-len", "8"),
    ]


def data(path: Path) -> list[str]:
    return ["--prompt-data", str(path), "--input-key", "prompt", "--label-key", "answer"]


def without(line: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in ("time", *keys)}


def test_saved_rollouts_train_alone_to_the_same_weights(
    model_factory: Callable[[bool], Path], sums: Path, vime: Any, tmp_path: Path
) -> None:
    job = [*flags(model_factory(True)), "--num-rollout", "2"]
    template = "saved/{rollout_id}.parquet"
    whole = vime(*job, *data(sums), "--save-debug-rollout-data", template, "--run-dir", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["0.parquet", "1.parquet"]

    alone = vime(*flags(model_factory(True)), "--load-debug-rollout-data", template, "--run-dir", "alone", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    assert "vLLM" not in alone.stderr, "nothing generates, so no engine is started"
    assert [without(line) for line in lines(tmp_path / "alone", "train")] == [without(line) for line in lines(tmp_path / "whole", "train")]
    rewards = [[line["rollout/raw_reward"] for line in lines(tmp_path / name, "rollout")] for name in ("whole", "alone")]
    assert rewards[0] == rewards[1]
    assert (tmp_path / "alone" / "checkpoints" / "step_2").is_dir()


def test_rollouts_are_made_without_a_trainer(model_factory: Callable[[bool], Path], sums: Path, vime: Any, tmp_path: Path) -> None:
    job = [*flags(model_factory(True)), *data(sums), "--num-rollout", "2", "--debug-rollout-only"]
    done = vime(*job, "--save-debug-rollout-data", "saved/{rollout_id}.parquet", "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "starting the trainer" not in done.stderr
    assert len(lines(tmp_path / "run", "rollout")) == 2
    assert lines(tmp_path / "run", "train") == []
    assert len(list((tmp_path / "saved").iterdir())) == 2


def test_rollouts_that_are_not_there_or_do_not_fit_end_in_one_line(
    model_factory: Callable[[bool], Path], sums: Path, vime: Any, tmp_path: Path
) -> None:
    none = vime(*flags(model_factory(True)), "--load-debug-rollout-data", "none/{rollout_id}.parquet", cwd=tmp_path)
    assert none.returncode == 2
    assert "there is no none/0.parquet" in none.stderr
    assert "Traceback" not in none.stderr
    assert "PyTorch" not in none.stderr, "it is refused before anything is loaded"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
