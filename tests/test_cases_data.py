"""Faults that users of such systems reported, cut down. These go through several parts; the others stand beside what they are about."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from vime.api import RolloutFnEvalOutput, Sample, Status, hookimpl
from vime.config.eval import EvalDatasetConfig
from vime.config.load import load_config
from vime.config.rules import warnings_about
from vime.config.run_config import RunConfig
from vime.data.dataset import load_dataset
from vime.errors import ConfigError, ContractError
from vime.plugins.manager import PluginManager
from vime.rollout.context import RolloutContext
from vime.rollout.data_source import RolloutDataSourceWithBuffer
from vime.rollout.evaluate import EvalDataset, eval_metrics
from vime.rollout.metrics import batch_metrics
from vime.rollout.rewards import RewardScorer
from vime.rollout.runner import RolloutRunner
from vime.rollout.vllm_rollout import VllmRollout
from vime.testing.fakes import FakeEngine

NUM_GPUS = 0


class Solved:
    """Right answers for every prompt, and a filter that drops prompts that were solved before."""

    def __init__(self) -> None:
        self.solved: set[str] = set()

    @hookimpl
    async def custom_rm(self, args: Any, sample: Sample) -> float:
        return 1.0

    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> bool:
        prompt = str(samples[0].prompt)
        if prompt in self.solved:
            return False
        self.solved.add(prompt)
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"solved": sorted(self.solved)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.solved = set(state["solved"])


class Run:
    """Rollouts over eight prompts, with one plugin and evaluation data."""

    def __init__(self, folder: Path, plugin: Any, *, datasets: dict[str, tuple[str, int]] | None = None, **options: Any) -> None:
        prompts = folder / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"input": f"p{number}"}) + "\n" for number in range(8)))
        self.config = RunConfig(**{"prompt_data": str(prompts), "num_rollout": 1, "n_samples_per_prompt": 2, **options})
        self.plugins = PluginManager()
        self.plugins.add(plugin, name="own")
        engine = FakeEngine()
        self.source = RolloutDataSourceWithBuffer(self.config, tokenizer=engine.tokenizer)
        context = RolloutContext(self.config, engine, self.plugins, RewardScorer(self.config, self.plugins), deterministic=True)
        self.datasets = []
        for name, (rows, n) in (datasets or {}).items():
            path = f"{prompts}{rows}"
            config = EvalDatasetConfig(name=name, path=path, n_samples_per_eval_prompt=n, **SAMPLING)
            self.datasets.append(EvalDataset(config, load_dataset(path)))
        self.runner = RolloutRunner(context, VllmRollout(context, self.source, self.datasets))

    def train(self, number: int = 0) -> Any:
        return asyncio.run(self.runner.train(number))


SAMPLING: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_response_len": 4}


def prompts_of(rollout: Any) -> list[str]:
    return [group[0].prompt for group in rollout.groups]


def test_case_a13_a_filter_with_a_state_drops_the_same_prompts_after_a_load(tmp_path: Path) -> None:
    options = {"rollout_batch_size": 3, "rollout_max_response_len": 4}
    first, second = Run(tmp_path, Solved, **options), Run(tmp_path, Solved, **options)
    assert prompts_of(first.train()) == ["p0", "p1", "p2"]
    second.plugins.load_state_dict(json.loads(json.dumps(first.plugins.state_dict())))
    rollout = second.train()
    assert prompts_of(rollout) == ["p3", "p4", "p5"]
    assert [group[0].prompt for group, _ in rollout.dropped] == ["p0", "p1", "p2"]


def test_case_b7_dict_rewards_are_counted_among_those_without_spread() -> None:
    group = [Sample(index=index, reward={"acc": 1, "form": index}, response_length=1, status=Status.COMPLETED) for index in range(2)]
    assert batch_metrics(RunConfig(reward_key="acc"), [group], [])["zero_std/count_1.0"] == 1


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_case_c4_one_sample_a_prompt_is_doubtful_where_samples_are_compared(estimator: str) -> None:
    (line,) = warnings_about(RunConfig(n_samples_per_prompt=1, advantage_estimator=estimator))
    assert line.startswith(f"n_samples_per_prompt is 1: {estimator} compares the samples of a prompt with each other")


class Empty:
    @hookimpl
    def generate_rollout(self, args: Any, rollout_id: int, data_source: Any) -> list[Any]:
        return []


def test_case_d8_a_rollout_function_that_returns_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"own.*: generate_rollout returned 0 groups, expected 2"):
        Run(tmp_path, Empty, rollout_batch_size=2, rm_type="none").train()


def test_case_j1_an_unknown_key_suggests_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "eval.yaml"
    file.write_text("defaults: {temprature: 0}\ndatasets: {a: {path: a.jsonl}}\n")
    with pytest.raises(ConfigError, match="unknown key 'temprature'") as caught:
        load_config({"eval_config": str(file), "hf_checkpoint": "m"}, None, {}, check_files=False)
    assert caught.value.hint == "did you mean 'temperature'?"


def test_case_j2_each_data_set_has_its_own_number_of_samples(tmp_path: Path) -> None:
    run = Run(tmp_path, Solved, datasets={"A": ("@[0:2]", 2), "B": ("@[0:3]", 4)})
    output, metrics, _ = asyncio.run(run.runner.evaluate(0))
    assert [len(output.data[name]["rewards"]) for name in ("A", "B")] == [4, 12]
    assert {"A-pass@1", "A-pass@2", "B-pass@1", "B-pass@2", "B-pass@4"} == {name for name in metrics if "pass@" in name}
    assert metrics["A-pass@2"] == metrics["B-pass@4"] == 1.0


def test_case_j2_an_empty_data_set_has_no_mean() -> None:
    output = RolloutFnEvalOutput({"A": {"rewards": [], "truncated": [], "samples": []}})
    assert eval_metrics(RunConfig(), output, {"A": 2}) == {}


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
