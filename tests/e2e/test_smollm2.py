"""The example on SmolLM2-135M: converted as its README says, two rollouts of its configuration, which are smaller."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2"


def test_two_rollouts(vime: Any, tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(EXAMPLE / "prepare.py"), "--out", str(tmp_path)], check=True, timeout=600, capture_output=True)
    held_out = [json.loads(line)["prompt"] for line in (tmp_path / "data" / "heldout.jsonl").read_text().splitlines()]
    train = [json.loads(line)["prompt"] for line in (tmp_path / "data" / "train.jsonl").read_text().splitlines()]
    assert len(held_out) > 30 and not set(held_out) & set(train)
    result = vime(
        *("train", "--config", str(EXAMPLE / "config.yaml"), "--plugin", "math", "--plugin", "nonzero-std"),
        *("--model", str(tmp_path / "model"), "--prompt-data", str(tmp_path / "data" / "train.jsonl")),
        *("--eval-prompt-data", "heldout", f"{tmp_path / 'data' / 'heldout.jsonl'}@[:16]", "--n-samples-per-eval-prompt", "1"),
        *("--rollout-batch-size", "2", "--num-rollout", "2", "--eval-interval", "2", "--run-dir", "run"),
        cwd=tmp_path,
        timeout=1100,
    )
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if "train/loss" in line]
    assert [line["step"] for line in trained] == [0, 1]
    assert all(line["train/train_rollout_logprob_abs_diff"] < 5e-2 and line["train/grad_norm"] > 0 for line in trained)
    rollouts = [line for line in lines if "rollout/raw_reward" in line]
    assert all(line["rollout/groups_kept"] == 2 and 0 < line["rollout/raw_reward"] < 1 for line in rollouts)
    scores = [line["eval/heldout"] for line in lines if "eval/heldout" in line]
    assert len(scores) == 2 and scores[0] > 0


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
