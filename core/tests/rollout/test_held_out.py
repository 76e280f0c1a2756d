"""Evaluation by loss: held-out rows become samples as training rows do, and their loss is one number whatever the batches."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vime.api import ContractError, Sample, Status, hookimpl
from vime.config.eval import EvalDatasetConfig
from vime.config.run_config import RunConfig
from vime.data.dataset import load_dataset
from vime.plugins.manager import PluginManager
from vime.rollout.evaluate import EvalDataset
from vime.rollout.held_out import as_eval_data, held_out_samples, loss_evaluation, loss_metrics
from vime.testing.fakes import FakeTokenizer

NUM_GPUS = 0


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> list[list[Sample]]:
    """Prompt and label as tokens, the label trained, cut to rollout_max_response_len."""
    groups = data_source.get_samples(args.rollout_batch_size)
    for (sample,) in groups:
        assert sample.status is Status.PENDING and not evaluation
        prompt = data_source.tokenizer.encode(sample.prompt)
        response = data_source.tokenizer.encode(sample.label)
        kept = response[: args.rollout_max_response_len]
        sample.tokens, sample.response_length, sample.loss_mask = prompt + kept, len(kept), [1] * len(kept)
        sample.status = Status.COMPLETED if kept == response else Status.TRUNCATED
        sample.reward = 0.0
    return groups


def manager(function: Any = generate_rollout) -> PluginManager:
    module = ModuleType("supervised")
    setattr(module, "generate_rollout", hookimpl(function))  # noqa: B010
    plugins = PluginManager()
    plugins.add(module, name="supervised")
    return plugins


def config_of(**fields: Any) -> RunConfig:
    return RunConfig(**{"loss_type": "sft_loss", "rollout_max_response_len": 8, **fields})


@pytest.fixture
def dataset(tmp_path: Path) -> EvalDataset:
    path = tmp_path / "held.jsonl"
    path.write_text("".join(json.dumps({"input": f"p{i}", "label": "x" * i}) + "\n" for i in range(1, 8)))
    rows = load_dataset(str(path), tokenizer=FakeTokenizer(), input_key="input", label_key="label")
    return EvalDataset(EvalDatasetConfig(name="held", path=str(path), n_samples_per_eval_prompt=4), rows)


def samples_of(dataset: EvalDataset, function: Any = generate_rollout, **fields: Any) -> list[Sample]:
    config, plugins = config_of(**fields), manager(function)
    claimed = loss_evaluation(config, plugins)
    assert claimed is not None
    return asyncio.run(held_out_samples(config, claimed, dataset, FakeTokenizer(), 3))


@pytest.mark.parametrize("batch", [1, 3, 7, 100])
def test_every_row_is_one_sample_whatever_the_batch(dataset: EvalDataset, batch: int) -> None:
    samples = samples_of(dataset, rollout_batch_size=batch)
    assert [sample.label for sample in samples] == ["x" * i for i in range(1, 8)]
    assert [sample.response_length for sample in samples] == list(range(1, 8))
    assert [sample.index for sample in samples] == list(range(7))


def test_an_asynchronous_function_makes_them_too(dataset: EvalDataset) -> None:
    async def function(args: Any, rollout_id: int, data_source: Any) -> Any:
        return generate_rollout(args, rollout_id, data_source)

    function.__name__ = "generate_rollout"
    assert len(samples_of(dataset, function)) == 7


def test_the_limit_of_the_dataset_cuts(dataset: EvalDataset) -> None:
    short = EvalDataset(dataset.config.model_copy(update={"max_response_len": 2}), dataset.rows)
    samples = samples_of(short)
    assert [sample.response_length for sample in samples] == [1, 2, 2, 2, 2, 2, 2]
    assert loss_metrics("held", samples, [[-1.0] * sample.response_length for sample in samples])["held-truncated_ratio"] == 5 / 7


def test_what_the_function_returns_is_checked_as_in_training(dataset: EvalDataset) -> None:
    def fewer(args: Any, rollout_id: int, data_source: Any) -> Any:
        return generate_rollout(args, rollout_id, data_source)[1:]

    fewer.__name__ = "generate_rollout"
    with pytest.raises(ContractError, match=r"supervised.*returned 2 groups, expected 3"):
        samples_of(dataset, fewer, rollout_batch_size=3)

    def back(args: Any, rollout_id: int, data_source: Any) -> Any:
        data_source.add_samples(data_source.get_samples(1))

    back.__name__ = "generate_rollout"
    with pytest.raises(ContractError, match="held-out rows were given back"):
        samples_of(dataset, back)


def test_the_loss_is_weighted_by_tokens() -> None:
    samples = [Sample(status=Status.COMPLETED), Sample(status=Status.TRUNCATED), Sample(status=Status.COMPLETED, remove_sample=True)]
    metrics = loss_metrics("held", samples, [[-1.0], [-2.0, -3.0, -6.0], []])
    assert metrics["held/loss"] == 3.0  # 12 / 4, not the mean of 1 and 11/3
    assert metrics["held/perplexity"] == math.exp(3.0)
    assert metrics["held/trained_tokens"] == 4 and metrics["held/removed_samples"] == 1 and metrics["held-truncated_ratio"] == 1 / 3
    data = as_eval_data(samples, [[-1.0], [-2.0, -3.0, -6.0], []])
    assert data["rewards"] == [-1.0, -11 / 3, 0.0] and data["truncated"] == [False, True, False] and data["samples"] is samples


def test_nothing_to_train_on_is_no_loss_and_an_absurd_one_no_perplexity() -> None:
    assert loss_metrics("held", [], []) == {"held/trained_tokens": 0.0, "held/removed_samples": 0.0}
    assert "held/perplexity" not in loss_metrics("held", [Sample()], [[-1e6]])


def test_when_an_evaluation_is_by_loss() -> None:
    plugins = manager()
    assert loss_evaluation(config_of(), plugins) is not None
    assert loss_evaluation(config_of(loss_type="policy_loss"), plugins) is None
    assert loss_evaluation(config_of(eval_function_path="vime.rollout.vllm_rollout.generate_rollout"), plugins) is None
    assert loss_evaluation(config_of(rollout_function_path="vime.rollout.vllm_rollout.generate_rollout"), plugins) is None
    assert loss_evaluation(config_of(), PluginManager()) is None


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
