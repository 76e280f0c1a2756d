"""Functions written for slime and upstream vime run unmodified, each through its own flag."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from vime.cli.app import main
from vime.config.eval import EvalDatasetConfig
from vime.config.run_config import RunConfig
from vime.data.dataset import load_dataset
from vime.plugins.manager import PluginManager
from vime.rollout.context import RolloutContext
from vime.rollout.evaluate import EvalDataset
from vime.rollout.rewards import RewardScorer
from vime.rollout.runner import RolloutRunner
from vime.rollout.vllm_rollout import VllmRollout
from vime.runtime.build import build_data_source
from vime.testing import FakeEngine, FakeTokenizer
from vime.train.batch import build_train_batch

NUM_GPUS = 0

FUNCTIONS = Path(__file__).with_name("functions.py")


class Run:
    """A run on a fake engine, built from flags alone, as `vime train` builds it: one rollout and one evaluation."""

    def __init__(self, tmp_path: Path, **flags: Any) -> None:
        data = tmp_path / "sums.jsonl"
        data.write_text("".join(json.dumps({"prompt": f"{a}+1=", "answer": str(a + 1)}) + "\n" for a in range(9)))
        dataset = EvalDatasetConfig(name="sums", path=f"{data}@[0:2]", n_samples_per_eval_prompt=1)
        keys = {"prompt_data": str(data), "input_key": "prompt", "label_key": "answer"}
        shape = {"rollout_batch_size": 3, "n_samples_per_prompt": 4, "rollout_max_response_len": 8, "num_rollout": 2}
        paths = {"custom_rm_path": "reward_func"} | {name: value for name, value in flags.items() if name.endswith("_path")}
        options = {name: value for name, value in flags.items() if name not in paths}
        self.config = config = RunConfig(
            **(keys | shape | options), **{flag: f"{FUNCTIONS}:{name}" for flag, name in paths.items()}, eval_datasets=[dataset]
        )
        self.plugins = PluginManager.load(config)
        tokenizer = FakeTokenizer()
        self.source: Any = build_data_source(config, self.plugins, tokenizer)
        self.scorer = RewardScorer(config, self.plugins)
        rows = load_dataset(dataset.path, tokenizer=tokenizer, input_key="prompt", label_key="answer")
        context = RolloutContext(config, FakeEngine(), self.plugins, self.scorer, deterministic=True)
        self.runner = RolloutRunner(context, VllmRollout(context, self.source, [EvalDataset(config.eval_datasets[0], rows)]))

    def train(self, rollout_id: int = 0) -> Any:
        try:
            return asyncio.run(asyncio.wait_for(self.runner.train(rollout_id), 30))
        finally:
            self.scorer.close()

    def evaluate(self) -> tuple[Any, dict[str, float], bool]:
        return asyncio.run(asyncio.wait_for(self.runner.evaluate(0), 30))


def digits(sample: Any) -> float:
    return sum(character.isdigit() for character in sample.response) / max(1, sample.response_length)


def test_a_reward_of_one_sample(tmp_path: Path) -> None:
    groups = Run(tmp_path, custom_rm_path="reward_func").train().groups
    assert all(sample.reward == digits(sample) for group in groups for sample in group)


def test_a_reward_of_a_group(tmp_path: Path) -> None:
    groups = Run(tmp_path, custom_rm_path="batched_reward_func", group_rm=True).train().groups
    for group in groups:
        scores = [digits(sample) for sample in group]
        assert [sample.reward for sample in group] == [score - min(scores) for score in scores]


def test_a_dynamic_filter_that_returns_a_bool(tmp_path: Path) -> None:
    flags = {"dynamic_sampling_filter_path": "not_all_equal", "n_samples_per_prompt": 2, "rollout_max_response_len": 1}
    rollout = Run(tmp_path, **flags, dynamic_sampling_max_rounds=100).train()
    assert all(group[0].reward != group[1].reward for group in rollout.groups)
    (reason,) = {reason for _, reason in rollout.dropped}
    assert reason == "not_all_equal" and all(group[0].reward == group[1].reward for group, _ in rollout.dropped)


def test_a_dynamic_filter_that_gives_its_reason(tmp_path: Path) -> None:
    rollout = Run(tmp_path, dynamic_sampling_filter_path="drop_small_sums").train()
    assert [int(group[0].label) for group in rollout.groups] == [3, 4, 5]
    assert {key: value for key, value in rollout.metrics.items() if "/drop_" in key} == {
        "dynamic_filter/drop_sum_1": 1,
        "dynamic_filter/drop_sum_2": 1,
    }


def test_a_buffer_filter_that_empties_the_buffer_itself(tmp_path: Path) -> None:
    run = Run(tmp_path, buffer_filter_path="pop_newest")
    run.source.add_samples(run.source.get_samples(5))
    groups = run.train().groups
    assert [group[0].group_index for group in groups] == [2, 3, 4]
    assert all(sample.metadata["popped"] for group in groups for sample in group)
    assert [group[0].group_index for group in run.source.buffer] == [0, 1]


def test_a_rollout_sample_filter(tmp_path: Path) -> None:
    rollout = Run(tmp_path, rollout_sample_filter_path="remove_worst").train()
    for group in rollout.groups:
        (removed,) = [sample for sample in group if sample.remove_sample]
        assert removed.reward == min(sample.reward for sample in group)
    assert (rollout.metrics["removed_samples"], rollout.metrics["samples_trained"]) == (3, 9)


def test_all_samples_are_processed(tmp_path: Path) -> None:
    flags = {"rollout_all_samples_process_path": "count_all_samples", "dynamic_sampling_filter_path": "drop_small_sums"}
    run = Run(tmp_path, **flags)
    rollout = run.train()
    assert run.source.metadata["seen"]["groups"] == len(rollout.groups) + len(rollout.dropped) == 5


def test_a_generate_function(tmp_path: Path) -> None:
    samples = [sample for group in Run(tmp_path, custom_generate_function_path="generate").train().groups for sample in group]
    for sample in samples:
        assert sample.metadata["turns"] == 2 and " ok " in sample.response
        assert sample.effective_response_length == sample.response_length - len(" ok ")
        assert len(sample.rollout_log_probs) == sample.response_length


def test_a_generate_function_that_returns_several_samples(tmp_path: Path) -> None:
    run = Run(tmp_path, custom_generate_function_path="generate_segments")
    groups = run.train().groups
    assert [len(group) for group in groups] == [8, 8, 8]
    batch = build_train_batch(run.config, run.plugins, groups)
    assert batch.rollout_ids == [rollout for rollout in range(12) for _ in range(2)]


def test_rewards_are_post_processed(tmp_path: Path) -> None:
    run = Run(tmp_path, custom_reward_post_process_path="center_by_prompt")
    groups = run.train().groups
    batch = build_train_batch(run.config, run.plugins, groups)
    assert batch.raw_rewards == [sample.reward for group in groups for sample in group]
    for start in range(0, 12, 4):
        mean = sum(batch.raw_rewards[start : start + 4]) / 4
        assert batch.rewards[start : start + 4] == pytest.approx([raw - mean for raw in batch.raw_rewards[start : start + 4]])


def test_a_rollout_function_makes_rollouts_and_evaluations(tmp_path: Path) -> None:
    run = Run(tmp_path, rollout_function_path="generate_rollout")
    rollout = run.train(5)
    assert {sample.response for group in rollout.groups for sample in group} == {"12"} and rollout.metrics["table"] == 5.0
    output, metrics, _ = run.evaluate()
    assert list(output.data) == ["table"] and metrics["table"] == pytest.approx(2 / 3)


def test_a_rollout_function_around_the_built_in_one(tmp_path: Path) -> None:
    flags = {"rollout_function_path": "generate_rollout_with_metrics", "custom_generate_function_path": "generate"}
    run = Run(tmp_path, **flags)
    assert run.train().metrics["wrapped_turns"] == 2.0
    _, metrics, _ = run.evaluate()
    assert metrics["wrapped"] == 1.0 and "sums" in metrics


def test_log_functions(tmp_path: Path) -> None:
    flags = {"custom_rollout_log_function_path": "log_rollout_data", "custom_eval_rollout_log_function_path": "log_eval_rollout_data"}
    run = Run(tmp_path, **flags)
    rollout = run.train()
    assert rollout.metrics["labels"] == 3.0 and not rollout.logged_by_plugin
    output, metrics, logged_by_plugin = run.evaluate()
    assert metrics["sums/best"] == max(output.data["sums"]["rewards"]) and not logged_by_plugin


def test_a_data_source_class_and_the_buffer_filter_of_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path, data_source_path="ShuffledDataSource", buffer_filter_path="pop_newest")
    run.source.add_samples(run.source.get_samples(2))
    samples = [sample for group in run.train().groups for sample in group]
    assert all(sample.metadata["source"] == "shuffled" for sample in samples)
    assert sum(sample.metadata.get("popped", False) for sample in samples) == 8


# Wrong ones, refused before anything is built

WRONG = """
def nothing(): ...
def one(a): ...
def two(a, b): ...
def six(a, b, c, d, e, f): ...
def rollout(args, rollout_id, data_source, model): ...
def generator(args, samples): yield True
class Source:
    def __init__(self, args): ...
    def get_samples(self, n): ...
"""
MODEL_AND_DATA = ("--model", ".", "--prompt-data", "data.jsonl", "--label-key", "label")
CASES = [
    ("custom_rm_path", "one", "it takes 1 positional argument, and gets 2"),
    ("custom_rm_path", "six", "it needs the argument 'c', which is not passed"),
    ("dynamic_sampling_filter_path", "generator", "dynamic_sampling_filter is a generator (it has `yield`), which would never run"),
    ("dynamic_sampling_filter_path", "one", "it takes 1 positional argument, and gets 2"),
    ("buffer_filter_path", "two", "it takes 2 positional arguments, and gets 4"),
    ("rollout_sample_filter_path", "nothing", "it takes 0 positional arguments, and gets 2"),
    ("rollout_all_samples_process_path", "two", "it takes 2 positional arguments, and gets 3"),
    ("custom_generate_function_path", "two", "it takes 2 positional arguments, and gets 3"),
    ("custom_reward_post_process_path", "one", "it takes 1 positional argument, and gets 2"),
    ("rollout_function_path", "rollout", "it needs the argument 'model', which is not passed"),
    ("eval_function_path", "two", "it takes 2 positional arguments, and gets 3"),
    ("custom_rollout_log_function_path", "six", "it needs the argument 'f', which is not passed"),
    ("custom_eval_rollout_log_function_path", "two", "it takes 2 positional arguments, and gets 4"),
    ("data_source_path", "Source", "class Source has no add_samples, save, load, __len__"),
]


@pytest.mark.parametrize(("flag", "name", "message"), CASES)
def test_a_wrong_signature_is_one_line_and_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong.py").write_text(WRONG)
    Path("config.json").write_text('{"model_type": "llama"}')
    Path("model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    Path("tokenizer.json").write_text("{}")
    Path("data.jsonl").write_text('{"input": "1+1=", "label": "2"}')
    flag = "--" + flag.replace("_", "-")
    code = main(["train", *MODEL_AND_DATA, flag, f"./wrong.py:{name}", "--run-dir", "run"])
    *doubts, first, second = capsys.readouterr().err.splitlines()
    assert all(line.startswith("warning: ") for line in doubts)
    assert code == 2
    assert first == f"error: {flag} ./wrong.py:{name}: {message}"
    assert second.startswith("  hint: ")
    assert not Path("run").exists()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
