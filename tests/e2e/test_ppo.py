"""PPO with a critic as a whole run: its metrics, the rollouts of the critic alone, and going on from a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROLLOUTS = 4


def lines(run: Path, namespace: str) -> dict[int, dict[str, float]]:
    """The line of each step, timings aside."""
    found: dict[int, dict[str, float]] = {}
    for text in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        if any(key.startswith(f"{namespace}/") for key in line):
            found[line["step"]] = {key: value for key, value in line.items() if key != "time" and not key.endswith("_per_second")}
    return found


def test_ppo_trains_and_goes_on(model_factory: Callable[[bool], Path], sums: Path, vime: Any, tmp_path: Path) -> None:
    (tmp_path / "digits.py").write_text("def score(args, sample):\n    return sum(c.isdigit() for c in sample.response) / 12\n")
    flags = [
        *("train", "--custom-rm-path", "./digits.py:score", "--advantage-estimator", "ppo", "--critic-lr", "1e-3", "--lambd", "0.95"),
        *("--num-critic-only-steps", "1", "--normalize-advantages", "--num-steps-per-rollout", "2", "--lr", "1e-3"),
        *("--model", str(model_factory(True)), "--prompt-data", str(sums), "--input-key", "prompt", "--label-key", "answer"),
        *("--rollout-batch-size", "4", "--n-samples-per-prompt", "4", "--rollout-max-response-len", "12", "--rollout-shuffle"),
        *("--num-rollout", str(ROLLOUTS), "--save-interval", "2", "--critic-save", "critics"),
    ]
    result = vime(*flags, "--run-dir", "run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    metrics = lines(tmp_path / "run", "train")
    assert list(metrics) == list(range(ROLLOUTS))
    for step, line in metrics.items():
        assert {"train/value_loss", "train/value_clipfrac", "train/values_mean", "train/critic_grad_norm"} <= line.keys()
        assert line["train/critic_lr"] == 1e-3 and line["train/critic_grad_norm"] > 0
        assert ("train/pg_loss" in line) == (step > 0)
        assert line["train/skipped_steps"] == line["train/critic_skipped_steps"] == 0.0
    assert metrics[0]["train/values_mean"] == 0.0 != metrics[1]["train/values_mean"]
    assert all(line["train/train_rollout_logprob_abs_diff"] < 1e-4 for step, line in metrics.items() if step)
    checkpoint = tmp_path / "run" / "checkpoints" / "step_2"
    assert (checkpoint / "critic" / "value_head.safetensors").is_file()
    assert sorted(path.name for path in (tmp_path / "critics").iterdir()) == ["step_2", "step_4"]
    result = vime(*flags, "--load", str(checkpoint), "--run-dir", "again", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for namespace in ("train", "rollout"):
        rest = {step: line for step, line in lines(tmp_path / "run", namespace).items() if step >= 2}
        assert lines(tmp_path / "again", namespace) == rest


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
