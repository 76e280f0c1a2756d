"""The agents of examples/ train on the quickstart's model: tools and turns between, the engine's own tokens."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHORT = ["--num-rollout", "2", "--rollout-batch-size", "4", "--n-samples-per-prompt", "4", "--run-dir", "run", "--skip-eval-before-train"]


def train(vime: Any, folder: Path, *flags: str) -> list[dict[str, Any]]:
    """Run a short training in `folder`; its samples. Trainer and engine agree on every trained token."""
    import pyarrow.parquet as parquet

    done = vime("train", "--plugin", "math", *SHORT, *flags, cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "train/loss" in line]
    assert len(steps) == 2
    assert all(line["train/train_rollout_logprob_abs_diff"] < 1e-4 for line in steps)
    return parquet.read_table(folder / "run" / "samples" / "train_000001.parquet").to_pylist()


def test_the_calculator_trains(vime: Any, tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "calculator" / "calculator.py", tmp_path)
    page = (EXAMPLES / "calculator" / "README.md").read_text()
    (shown,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "use.py").write_text(shown)
    samples = train(vime, tmp_path, "--custom-generate-function-path", "use:boxes.custom_generate", "--rollout-max-response-len", "48")
    assert any(re.search(r"\\boxed\{\d+\} = \d+ ", sample["response"]) for sample in samples), samples[0]["response"]


def test_an_agent_that_speaks_http_trains(vime: Any, tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "http_agent" / "agent.py", tmp_path)
    flags = ["--serve-engine", "--no-apply-chat-template", "--custom-generate-function-path", "./agent.py:generate"]
    samples = train(vime, tmp_path, *flags, "--rollout-max-response-len", "80")
    assert all("Check it, and answer once more." in sample["response"] for sample in samples)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
