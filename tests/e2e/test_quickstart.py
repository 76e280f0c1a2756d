"""The README's main job as it stands: the quickstart model learns."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_the_main_job_learns_and_says_so(vime: Any, tmp_path: Path) -> None:
    result = vime("train", "--plugin", "math", cwd=tmp_path, timeout=800)
    assert result.returncode == 0, result.stderr
    assert "the quickstart model that comes with vime" in result.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.endswith("-quickstart")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    sampled = [line["eval/heldout"] for line in lines if "eval/heldout" in line]
    greedy = [line["eval/heldout-greedy"] for line in lines if "eval/heldout-greedy" in line]
    assert sampled[-1] - sampled[0] >= 0.2
    assert len(greedy) == len(sampled) >= 2
    assert all(line["train/train_rollout_logprob_abs_diff"] < 1e-4 for line in lines if "train/loss" in line)
    for score in (sampled[0], sampled[-1], greedy[0], greedy[-1]):
        assert f"{score:.3f}" in result.stderr
    assert list((run / "checkpoints").iterdir())
    assert undocumented({key for line in lines for key in line}) == set()
    assert (run / "report.html").stat().st_size > 200_000
    assert "alert" not in result.stderr
    for row in pyarrow.parquet.read_table(run / "samples" / "train_000003.parquet").to_pylist():
        assert "".join(row["token_texts"]).startswith(row["response"])
        assert all(abs(a - b) < 1e-4 for a, b in zip(row["log_probs"], row["train_log_probs"], strict=True))
        assert len(set(row["advantages"])) == 1


def undocumented(names: set[str]) -> set[str]:
    """The names of metrics that the documentation does not have."""
    spec = importlib.util.spec_from_file_location("test_metrics_page", Path(__file__).parents[1] / "test_metrics_page.py")
    assert spec is not None and spec.loader is not None
    docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(docs)
    return docs.undocumented(names)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
