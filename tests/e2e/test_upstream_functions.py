"""Functions written for slime and upstream vime, as many as go together, in one run on the real engine and trainer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

FUNCTIONS = Path(__file__).resolve().parents[1] / "upstream" / "functions.py"
ROLLOUTS, GROUPS, SIZE = 2, 4, 4

PATHS = {
    "--custom-rm-path": "./functions.py:reward_func",
    "--custom-generate-function-path": "./functions.py:generate",
    "--dynamic-sampling-filter-path": "team.functions.drop_small_sums",
    "--buffer-filter-path": "team.functions:pop_newest",
    "--rollout-sample-filter-path": "team.functions.remove_worst",
    "--rollout-all-samples-process-path": "team.functions:count_all_samples",
    "--custom-reward-post-process-path": "team.functions.center_by_prompt",
    "--rollout-function-path": "team.functions:generate_rollout_with_metrics",
    "--custom-rollout-log-function-path": "./functions.py:log_rollout_data",
    "--custom-eval-rollout-log-function-path": "team.functions.log_eval_rollout_data",
    "--data-source-path": "team.functions.ShuffledDataSource",
}
"""By flag, in all three forms of a path. --rollout-function-path names one that calls the built-in rollout."""


@dataclass
class Finished:
    path: Path
    output: str

    def lines(self, namespace: str) -> list[dict[str, float]]:
        lines = [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if any(key.startswith(f"{namespace}/") for key in line)]

    def samples(self, step: int) -> list[dict[str, Any]]:
        import pyarrow.parquet

        (file,) = (self.path / "samples").glob(f"train*{step}.parquet")
        return pyarrow.parquet.read_table(file).to_pylist()


@pytest.fixture(scope="module")
def run(model_factory: Callable[[bool], Path], sums: Path, vime: Any, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("upstream")
    (folder / "team").mkdir()
    (folder / "team" / "__init__.py").touch()
    shutil.copy(FUNCTIONS, folder / "functions.py")
    shutil.copy(FUNCTIONS, folder / "team" / "functions.py")
    result = vime(
        *("train", "--model", str(model_factory(True)), "--prompt-data", str(sums), "--input-key", "prompt", "--label-key", "answer"),
        *("--rollout-batch-size", str(GROUPS), "--n-samples-per-prompt", str(SIZE), "--over-sampling-batch-size", "12"),
        *("--rollout-max-response-len", "12", "--num-rollout", str(ROLLOUTS), "--lr", "1e-3", "--save-interval", "1"),
        *("--eval-prompt-data", "sums", f"{sums}@[0:8]", "--eval-interval", "2"),
        *(word for pair in PATHS.items() for word in pair),
        *("--run-dir", "run"),
        cwd=folder,
    )
    assert result.returncode == 0, result.stderr
    return Finished(folder / "run", result.stderr)


def test_every_function_did_its_work(run: Finished) -> None:
    rollouts, evaluations = run.lines("rollout"), run.lines("eval")
    assert [line["step"] for line in rollouts] == list(range(ROLLOUTS))
    for line in rollouts:
        assert 0 < line["rollout/raw_reward"] < 1, "the reward is a share of digits"
        assert line["rollout/wrapped_turns"] == 2.0, "the rollout function counts the turns of the generate function"
        assert line["rollout/removed_samples"] == GROUPS and line["rollout/samples_trained"] == GROUPS * (SIZE - 1)
        assert 1 <= line["rollout/labels"] <= GROUPS, "the log function adds a number to the metrics"
        came_in = line["rollout/samples_generated"] + line["rollout/samples_from_buffer"]
        ends = ("samples_trained", "removed_samples", "samples_filtered", "samples_to_buffer", "samples_aborted", "samples_failed")
        assert came_in == sum(line[f"rollout/{end}"] for end in ends)
    reasons = {key.rpartition("/")[2] for line in rollouts for key in line if "/drop_" in key}
    assert reasons and reasons <= {"drop_sum_0", "drop_sum_1", "drop_sum_2"}
    assert rollouts[0]["rollout/samples_to_buffer"] > 0 and rollouts[1]["rollout/samples_from_buffer"] > 0
    assert {line["step"] for line in evaluations} == {0, 2}
    for line in evaluations:
        assert line["eval/sums/best"] >= line["eval/sums"] and line["eval/wrapped"] == 1.0
    for line in run.lines("train"):
        assert line["train/grad_norm"] > 0 and line["train/train_rollout_logprob_abs_diff"] < 1e-3


def test_the_marks_that_the_functions_left_are_in_the_samples(run: Finished) -> None:
    for sample in run.samples(0) + run.samples(1):
        assert " ok " in sample["response"]
        assert sample["reward"] == pytest.approx(sum(c.isdigit() for c in sample["response"]) / sample["response_length"])


def test_the_checkpoint_has_what_the_functions_counted(run: Finished) -> None:
    manifest = json.loads((run.path / "checkpoints" / f"step_{ROLLOUTS}" / "manifest.json").read_text())
    seen = manifest["contents"]["data_source"]["metadata"]["seen"]
    judged = sum(line["rollout/groups_kept"] + line["rollout/groups_dropped"] for line in run.lines("rollout"))
    assert seen["groups"] == judged and seen["popped"] > 0


def test_the_time_of_every_function_is_measured(run: Finished) -> None:
    measured = {key.removeprefix("hooks/path:").removesuffix("_ms") for line in run.lines("hooks") for key in line if "path:" in key}
    assert {key.rpartition("/")[0] for key in measured} == set(PATHS.values())


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
