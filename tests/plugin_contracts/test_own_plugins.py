"""Every plugin of this repository, enabled alone, keeps the contract of each hook that it implements."""

from __future__ import annotations

import asyncio
import json
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from vime.api import DynamicFilterOutput, Sample, Status
from vime.config.run_config import RunConfig
from vime.outputs import RolloutFnTrainOutput
from vime.plugins.manager import PluginManager
from vime.rollout.buffer import take_with_filter
from vime.rollout.data_source import RolloutDataSourceWithBuffer
from vime.rollout.guards import check_train_output, normalise_train_output
from vime.rollout.rewards import RewardScorer
from vime.rollout.unchanged import Snapshot
from vime.testing.fakes import FakeTokenizer

NUM_GPUS = 0

HOOKS_OF = {
    **{name: {"custom_rm"} for name in ("math", "dapo", "deepscaler", "remote", "exact", "f1", "choice", "format", "random")},
    "nonzero-std": {"dynamic_sampling_filter"},
    "reward-range": {"dynamic_sampling_filter"},
    "dedup": {"dynamic_sampling_filter"},
    "truncated": {"rollout_sample_filter"},
    "length": {"rollout_sample_filter"},
    "overlong": {"rollout_sample_hook", "shape_reward"},
    "freshest": {"buffer_filter"},
    "sft": {"generate_rollout"},
}
GROUP_FILTERS = sorted(name for name, hooks in HOOKS_OF.items() if "dynamic_sampling_filter" in hooks)


def loaded(name: str, **options: object) -> tuple[RunConfig, PluginManager]:
    config = RunConfig(plugin=[name], **options)
    return config, PluginManager.load(config)


def finished(index: int, reward: float, status: Status = Status.COMPLETED) -> Sample:
    sample = Sample(group_index=0, index=index, prompt="p", tokens=[1, 2, 3], response="x", response_length=2, label="1", status=status)
    sample.reward = reward
    return sample


def test_this_file_covers_every_entry_point_of_the_repository() -> None:
    ours = {"vime-filters-basic", "vime-rm-math", "vime-rm-qa", "vime-rm-remote", "vime-rollout-sft"}
    installed = {entry.name for entry in entry_points(group="vime.plugins") if entry.dist is not None and entry.dist.name in ours}
    assert installed == set(HOOKS_OF)


@pytest.mark.parametrize("name", sorted(HOOKS_OF))
def test_the_plugin_loads_alone_and_twice_alike(name: str) -> None:
    first, second = loaded(name)[1], loaded(name)[1]
    (plugin,) = first.plugins
    assert set(plugin.hooks) == HOOKS_OF[name]
    assert plugin.version is not None
    assert first.lock() == second.lock()


ANSWERS = [
    ("math", r"so \boxed{4}", "4", 1.0),
    ("math", r"so \boxed{5}", "4", 0.0),
    ("math", "", "4", 0.0),
    ("dapo", "Answer: 4", "4", {"score": 1.0, "acc": 1.0, "pred": "4"}),
    ("dapo", "Answer: 5", "4", {"score": -1.0, "acc": 0.0, "pred": "5"}),
    ("deepscaler", r"<think>2 + 2</think>\boxed{4}", "4", 1.0),
    ("deepscaler", r"\boxed{4}", "4", 0.0),
    ("exact", "The Paris.", "Paris", 1.0),
    ("f1", "Austen", "Jane Austen", 2 / 3),
    ("choice", "The answer is (B).", "B", 1.0),
    ("format", "<think>a</think><answer>b</answer>", None, 1.0),
]


@pytest.mark.parametrize(("name", "response", "label", "reward"), ANSWERS)
def test_rewards_score_known_answers_and_change_nothing_else(
    name: str, response: str, label: str | None, reward: float | dict[str, object]
) -> None:
    config, plugins = loaded(name, reward_key="score" if isinstance(reward, dict) else None)
    scorer = RewardScorer(config, plugins)
    sample = Sample(index=0, prompt="2+2", response=response, tokens=[1, 2], response_length=1, label=label, status=Status.COMPLETED)
    before = sample.to_dict()
    try:
        asyncio.run(scorer.score([sample]))
    finally:
        scorer.close()
    assert sample.reward == (reward if isinstance(reward, dict) else pytest.approx(reward))
    after = sample.to_dict()
    assert {key for key in before if before[key] != after[key]} == {"reward"}


@pytest.mark.parametrize(
    ("rm_type", "name"),
    [
        ("remote_rm", "remote"),
        ("gpqa", "choice"),
        ("f1", "f1"),
        ("random", "random"),
        ("math", "math"),
        ("dapo", "dapo"),
        ("deepscaler", "deepscaler"),
    ],
)
def test_upstreams_reward_names_find_the_plugin(rm_type: str, name: str) -> None:
    config = RunConfig(plugin=[name, "exact"], rm_type=rm_type, rm_url="http://judge/score")
    scorer = RewardScorer(config, PluginManager.load(config))
    (resolved,) = scorer.resolver.resolve(finished(0, 0.0))
    assert resolved.function.plugin == name
    scorer.close()


@pytest.mark.parametrize("name", GROUP_FILTERS)
@pytest.mark.parametrize(("rewards", "keep"), [([0.0, 1.0], True), ([1.0, 1.0], False)])
def test_group_filters_give_a_verdict_with_a_reason_and_leave_the_group_alone(name: str, rewards: list[float], keep: bool) -> None:
    config, plugins = loaded(name)
    group = [finished(index, reward) for index, reward in enumerate(rewards)]
    group[0].response += "" if len(set(rewards)) == 1 else "!"
    before = Snapshot(group, config)
    verdict = plugins.implementations("dynamic_sampling_filter")[0].call(args=config, samples=group)
    assert isinstance(verdict, DynamicFilterOutput)
    assert verdict.keep is keep
    assert keep or verdict.reason
    assert before.changes("dynamic_sampling_filter") == []


@pytest.mark.parametrize(("name", "settings"), [("truncated", {}), ("length", {"max_tokens": 2})])
def test_sample_filters_set_flags_and_nothing_else(name: str, settings: dict[str, int]) -> None:
    config, plugins = loaded(name, plugin_settings={name: settings})
    groups = [[finished(0, 1.0), finished(1, 0.0, Status.TRUNCATED)]]
    groups[0][1].append_response_tokens(tokens=[4], trainable=False)
    before, members = Snapshot(groups[0], config), [list(group) for group in groups]
    result = plugins.implementations("rollout_sample_filter")[0].call(args=config, samples=groups)
    assert result is None
    assert groups == members
    assert before.changes("rollout_sample_filter") == []
    assert [sample.remove_sample for sample in groups[0]] == [False, True]


def test_overlong_returns_a_number_and_leaves_the_sample_alone() -> None:
    config, plugins = loaded("overlong", rollout_max_response_len=2)
    sample = finished(0, 1.0)
    before = Snapshot([sample], config)
    assert plugins.implementations("shape_reward")[0].call(args=config, sample=sample) == -1.0
    assert before.changes("shape_reward") == []


def test_freshest_chooses_groups_of_the_buffer_and_leaves_them_alone() -> None:
    config, plugins = loaded("freshest")
    buffer = [[finished(index, 1.0)] for index in range(3)]
    buffer[1][0].weight_versions = [1]
    groups, before = list(buffer), Snapshot([sample for group in buffer for sample in group], config)
    chosen = take_with_filter(plugins.implementations("buffer_filter")[0], config, 0, buffer, 2)
    assert chosen == [groups[1], groups[0]]
    assert buffer == [groups[2]]
    assert before.changes("buffer_filter") == []


def test_sft_makes_batches_that_the_core_accepts(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"input": f"{i}+1=", "label": str(i + 1)}) + "\n" for i in range(5)))
    config, plugins = loaded(
        "sft", loss_type="sft_loss", prompt_data=str(data), label_key="label", rollout_batch_size=3, n_samples_per_prompt=1, num_rollout=2
    )
    source = RolloutDataSourceWithBuffer(config, tokenizer=FakeTokenizer())
    function = plugins.claimed("generate_rollout")
    assert function is not None
    for rollout_id in range(2):
        result = asyncio.run(
            function.acall(args=config, rollout_id=rollout_id, data_source=source, evaluation=False, engine=None),
        )
        output = normalise_train_output(function.label, result)
        assert isinstance(output, RolloutFnTrainOutput)
        check_train_output(config, function.label, output, fewer_allowed=False)
        assert all(sum(sample.loss_mask or []) > 0 for group in output.samples for sample in group)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
