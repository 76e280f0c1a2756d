"""The main job on a small random model: what a run measures, leaves behind, and survives."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROLLOUTS = 6


@dataclass
class Job:
    """The flags of one job and where it was run."""

    flags: list[str]
    path: Path
    output: str

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]

    def by_step(self, namespace: str) -> list[dict[str, float]]:
        return [line for line in self.metrics if any(key.startswith(f"{namespace}/") for key in line)]

    def comparable(self) -> dict[tuple[int, str], float]:
        """Every number but the timings, by step and key."""
        return {
            (line["step"], key): value
            for line in self.metrics
            for key, value in line.items()
            if key not in ("step", "time") and not key.startswith(("perf/", "hooks/")) and not key.endswith("_per_second")
        }


def flags(model: Path, data: Path) -> list[str]:
    return [
        "train",
        *("--plugin", "math", "--plugin", "nonzero-std"),
        *("--model", str(model), "--prompt-data", str(data), "--input-key", "prompt", "--label-key", "answer"),
        *("--rollout-batch-size", "4", "--n-samples-per-prompt", "8", "--rollout-max-response-len", "12"),
        *("--num-rollout", str(ROLLOUTS), "--lr", "1e-3", "--rollout-shuffle", "--dynamic-sampling-max-rounds", "40"),
        *("--eval-prompt-data", "sums", str(data), "--eval-temperature", "0", "--eval-interval", "3", "--save-interval", "2"),
    ]


@pytest.fixture(scope="module")
def job(model_factory: Callable[[bool], Path], sums: Path, vime: Any, tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("job")
    arguments = flags(model_factory(True), sums)
    result = vime(*arguments, "--run-dir", "run", cwd=folder)
    assert result.returncode == 0, result.stderr
    return Job(arguments, folder / "run", result.stderr)


def test_every_step_has_its_metrics(job: Job) -> None:
    for namespace, keys in {
        "rollout": ("raw_reward", "reward_kept", "reward_all", "response_len/mean", "truncated_ratio", "groups_kept", "tokens_per_second"),
        "train": ("loss", "pg_loss", "grad_norm", "lr", "train_rollout_logprob_abs_diff", "padding_fraction"),
        "perf": ("rollout_time", "train_time", "sync_time", "step_time", "overhead_fraction"),
    }.items():
        lines = job.by_step(namespace)
        assert [line["step"] for line in lines] == list(range(ROLLOUTS))
        for line in lines:
            assert {f"{namespace}/{key}" for key in keys} <= line.keys()
    assert any(key.startswith("rollout/dynamic_filter/drop_") for line in job.by_step("rollout") for key in line)
    assert {line["step"] for line in job.by_step("eval")} == {0, 3, 6}


def test_trainer_and_engine_agree_on_every_step(job: Job) -> None:
    assert all(line["train/train_rollout_logprob_abs_diff"] < 1e-4 for line in job.by_step("train"))
    assert all(line["train/grad_norm"] > 0 for line in job.by_step("train"))


def test_samples_add_up_on_every_step(job: Job) -> None:
    ends = ("samples_trained", "removed_samples", "samples_filtered", "samples_to_buffer", "samples_aborted", "samples_failed")
    for line in job.by_step("rollout"):
        came_in = line["rollout/samples_generated"] + line["rollout/samples_from_buffer"]
        assert came_in == sum(line[f"rollout/{end}"] for end in ends)


def test_the_run_folder_is_complete(job: Job) -> None:
    for name in ("config.yaml", "plugins.lock.json", "metrics.jsonl", "samples", "tensorboard", "checkpoints"):
        assert (job.path / name).exists()
    assert sorted(path.name for path in (job.path / "checkpoints").iterdir()) == ["step_2", "step_4", "step_6"]
    assert list((job.path / "tensorboard").iterdir())
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(next((job.path / "samples").glob("train*0.parquet")))
    assert table.num_rows >= 32
    assert {"prompt", "response", "reward", "status"} <= set(table.column_names)


def greedy_score(checkpoint: Path, data: Path) -> float:
    """Mean reward of greedy answers by transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from vime_rm_math import grade

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    rewards = []
    for line in data.read_text().splitlines():
        row = json.loads(line)
        ids = torch.tensor([tokenizer.encode(row["prompt"])])
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
        rewards.append(grade(tokenizer.decode([t for t in output.tolist() if t != tokenizer.eos_token_id]), row["answer"]))
    return sum(rewards) / len(rewards)


def test_the_checkpoint_scores_in_transformers_as_the_run_reported(job: Job, sums: Path) -> None:
    reported = job.by_step("eval")[-1]["eval/sums"]
    assert greedy_score(job.path / "checkpoints" / "step_6", sums) == pytest.approx(reported, abs=1.5 / 64)


def test_models_of_a_list_score_as_the_run_reported(job: Job, sums: Path, model_factory: Callable[[bool], Path], vime: Any) -> None:
    models = [str(model_factory(True)), *(str(job.path / "checkpoints" / f"step_{step}") for step in (2, 6)), str(model_factory(False))]
    keys = ("--input-key", "prompt", "--label-key", "answer", "--rollout-max-response-len", "12", "--eval-temperature", "0")
    result = vime(
        *("eval", "--plugin", "math", "--checkpoints", *models, *keys, "--eval-prompt-data", "sums", str(sums), "--run-dir", "eval"),
        cwd=job.path,
    )
    assert result.returncode == 0, result.stderr
    header, *rows = (line.split() for line in result.stdout.splitlines())
    assert header == ["checkpoint", "dataset", "reward", "pass@1", "truncated", "length"] and [row[1] for row in rows] == ["sums"] * 4
    lines = Job([], job.path / "eval", result.stderr).by_step("eval")
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    reported = job.by_step("eval")
    for line, expected in ((lines[0], reported[0]), (lines[2], reported[-1])):  # before the first step, and after the last
        assert {k: v for k, v in line.items() if k.startswith("eval/")} == {k: v for k, v in expected.items() if k.startswith("eval/")}
    results = json.loads((job.path / "eval" / "evaluation.json").read_text())
    assert [entry["checkpoint"] for entry in results] == models
    assert [entry["metrics"]["eval/sums"] for entry in results] == [line["eval/sums"] for line in lines]
    assert len(list((job.path / "eval" / "samples").glob("eval_sums_*.parquet"))) == 4


def test_an_evaluation_leaves_every_sample(job: Job, sums: Path) -> None:
    import pyarrow.parquet

    for step in (0, 3, 6):
        rows = pyarrow.parquet.read_table(job.path / "samples" / f"eval_sums_{step:06d}.parquet").to_pylist()
        prompts = [json.loads(line) for line in sums.read_text().splitlines()]
        assert [(row["prompt"], row["label"]) for row in rows] == [(row["prompt"], row["answer"]) for row in prompts]
        assert [row["index"] for row in rows] == [row["group_index"] for row in rows] == list(range(64))
        assert {row["step"] for row in rows} == {step} and {row["status"] for row in rows} <= {"completed", "truncated"}
        assert all(row["prompt_length"] == 4 and 0 < row["response_length"] <= 12 for row in rows)
        score = next(line["eval/sums"] for line in job.by_step("eval") if line["step"] == step)
        assert sum(row["reward"] for row in rows) / 64 == pytest.approx(score)


def test_a_resume_that_is_refused_leaves_the_record_of_the_run(job: Job, vime: Any) -> None:
    files = {name: (job.path / name).read_bytes() for name in ("config.yaml", "plugins.lock.json", "report.html", "metrics.jsonl")}
    refused = vime(*job.flags, "--run-dir", ".", "--load", "auto", "--advantage-estimator", "ppo", cwd=job.path)
    assert refused.returncode != 0 and "critic" in refused.stderr, refused.stderr
    assert {name: (job.path / name).read_bytes() for name in files} == files


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(job: Job, vime: Any, tmp_path: Path, signum: int, code: int) -> None:
    command = [sys.executable, "-m", "vime", *job.flags, "--run-dir", "run"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(f"step 3/{ROLLOUTS}"):
                break
        process.send_signal(signum)
        rest = process.stderr.read()
    assert process.returncode == code, rest
    if code != -9:
        assert "go on with --load auto" in rest
    result = vime(*job.flags, "--run-dir", "run", "--load", "auto", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    resumed = Job(job.flags, tmp_path / "run", result.stderr)
    assert resumed.comparable() == job.comparable()


def test_an_engine_with_other_weights_stops_the_run_with_the_numbers(job: Job, vime: Any, tmp_path: Path) -> None:
    (tmp_path / "corrupt.py").write_text(
        """
def disturb(model):
    weight = model.model.layers[1].post_attention_layernorm.weight
    weight.data[:] = weight.data * 3

async def generate(args, sample, sampling_params, engine):
    if sample.index == 64:
        engine.llm_engine.apply_model(disturb)
    sample.tokens = engine.tokenizer.encode(sample.prompt)
    out = await engine.generate(sample.tokens, sampling_params)
    sample.append_response_tokens(args, tokens=out.token_ids, log_probs=out.log_probs, text=out.text,
                                  meta_info={"weight_version": out.weight_version})
    sample.status = sample.Status.COMPLETED
    return sample
"""
    )
    start = time.monotonic()
    result = vime(*job.flags, "--custom-generate-function-path", "./corrupt.py:generate", cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    assert time.monotonic() - start < 300
    error = next(line for line in result.stderr.splitlines() if line.startswith("error:"))
    assert "the engine does not hold the trainer's weights" in error
    assert "in the mean" in error and "the tolerance is 0.001" in error


def test_supervised_fine_tuning_and_its_evaluation_need_no_engine(
    model_factory: Callable[[bool], Path], sums: Path, vime: Any, tmp_path: Path
) -> None:
    data = ("--input-key", "prompt", "--label-key", "answer", "--eval-prompt-data", "held", f"{sums}@[:24]")
    supervised = ("--plugin", "sft", "--loss-type", "sft_loss", *data)
    result = vime(
        *("train", *supervised, "--model", str(model_factory(False)), "--prompt-data", str(sums), "--eval-interval", "4"),
        *("--rollout-batch-size", "16", "--num-rollout", "8", "--lr", "3e-3", "--run-dir", "run"),
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert "vLLM" not in result.stderr
    run = Job([], tmp_path / "run", "")
    losses = [line["train/loss"] for line in run.by_step("train")]
    assert losses[-1] < 0.5 * losses[0]
    assert (tmp_path / "run" / "checkpoints" / "step_8" / "model.safetensors").is_file()
    held = {line["step"]: line for line in run.by_step("eval")}
    assert sorted(held) == [0, 4, 8]
    assert held[8]["eval/held/loss"] < held[4]["eval/held/loss"] < held[0]["eval/held/loss"]
    assert held[8]["eval/held/perplexity"] == pytest.approx(math.exp(held[8]["eval/held/loss"]))
    assert held[8]["eval/held/trained_tokens"] == 2 * 24
    assert re.search(r"held/loss: \d\.\d+ -> \d\.\d+", result.stderr)

    checkpoint = str(tmp_path / "run" / "checkpoints" / "step_8")
    result = vime("eval", *supervised, "--model", checkpoint, "--rollout-batch-size", "5", "--run-dir", "alone", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "vLLM" not in result.stderr and "DeepSpeed" not in result.stderr
    (alone,) = Job([], tmp_path / "alone", "").by_step("eval")
    assert alone["eval/held/loss"] == pytest.approx(held[8]["eval/held/loss"], abs=1e-6)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
