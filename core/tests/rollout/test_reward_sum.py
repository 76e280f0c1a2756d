"""Several rewards of one sample: parts, weights, totals, whose failure costs what, and the metrics of each part."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest

from vime.api import Sample, Status, hookimpl
from vime.config.eval import EvalDatasetConfig
from vime.config.run_config import RunConfig
from vime.errors import ConfigError, ContractError
from vime.plugins.manager import PluginManager
from vime.rollout.metrics import part_means
from vime.rollout.rewards import RewardScorer

NUM_GPUS = 0

Reward = Callable[[Sample], Any]


def plugin(score: Reward, **how: bool) -> type:
    """A reward plugin around a function of the sample; `asynchronous`, or `grouped` to score groups."""

    class OfSamples:
        @hookimpl
        def custom_rm(self, sample: Sample) -> Any:
            return score(sample)

    class Asynchronous:
        @hookimpl
        async def custom_rm(self, sample: Sample) -> Any:
            return score(sample)

    class OfGroups:
        @hookimpl
        def custom_rm(self, samples: list[Sample]) -> Any:
            return [score(sample) + 10 * len(samples) for sample in samples]

    return OfGroups if how.get("grouped") else Asynchronous if how.get("asynchronous") else OfSamples


def manager_of(**rewards: Any) -> PluginManager:
    manager = PluginManager()
    for name, reward in rewards.items():
        manager.add(reward if isinstance(reward, type) else plugin(reward), name=name)
    return manager


def group_of(*responses: str, **fields: Any) -> list[Sample]:
    return [
        Sample(index=index, group_index=0, response=text, status=Status.COMPLETED, **copy.deepcopy(fields))
        for index, text in enumerate(responses)
    ]


def scored_and_counted(
    manager: PluginManager, samples: list[Sample], dataset: EvalDatasetConfig | None = None, **config: Any
) -> tuple[list[Any], dict[str, float]]:
    """The rewards of the samples, as a group, and the failed rewards that were counted."""
    scorer = RewardScorer(RunConfig(**config), manager)
    try:
        asyncio.run(scorer.score_group(samples, evaluation=dataset is not None, dataset=dataset))
    finally:
        scorer.close()
    counts = {key: count for key, count in scorer.take_metrics().items() if key != "reward_time"}
    return [sample.reward for sample in samples], counts


def scored(manager: PluginManager, samples: list[Sample], dataset: EvalDatasetConfig | None = None, **config: Any) -> list[Any]:
    """The rewards of the samples, of which none failed."""
    rewards, errors = scored_and_counted(manager, samples, dataset, **config)
    assert errors == {}
    return rewards


def length(sample: Sample) -> float:
    return float(len(sample.response))


def one(sample: Sample) -> float:
    return 1.0


def test_each_part_and_the_weighted_sum() -> None:
    manager = manager_of(length=length, one=one, other=one)
    config = RunConfig(rm_type="length+one", reward_weights="one=0.5")
    samples = group_of("abc", "")
    assert scored(manager, samples, rm_type="length+one", reward_weights="one=0.5") == [
        {"length": 3.0, "one": 1.0, "total": 3.5},
        {"length": 0.0, "one": 1.0, "total": 0.5},
    ]
    assert [sample.get_reward_value(config) for sample in samples] == [3.5, 0.5]


def test_a_box_for_one_part_only_and_upstreams_names() -> None:
    def four(sample: Sample) -> float:
        return float(sample.response == "4")

    manager = manager_of(exact=four, remote=length, choice=one)
    [reward] = scored(manager, group_of(r"so \boxed{4}"), rm_type="boxed_exact+exact+remote_rm+gpqa", reward_weights="remote=0")
    assert reward == {"boxed_exact": 1.0, "exact": 0.0, "remote_rm": 12.0, "gpqa": 1.0, "total": 2.0}


def test_a_row_and_an_evaluation_dataset_may_name_the_sum() -> None:
    manager = manager_of(length=length, one=one)
    by_row = group_of("ab", metadata={"rm_type": "length+one"})
    assert scored(manager, by_row, rm_type="one") == [{"length": 2.0, "one": 1.0, "total": 3.0}]
    assert by_row[0].get_reward_value(RunConfig(rm_type="one")) == 3.0
    settings = {"rm_type": "one", "eval_datasets": [{"name": "d", "path": "d", "rm_type": "length+one"}, {"name": "e", "path": "e"}]}
    first, second = RunConfig(**settings).eval_datasets
    assert scored(manager, group_of("ab"), first, **settings) == [{"length": 2.0, "one": 1.0, "total": 3.0}]
    assert scored(manager, group_of("ab"), second, **settings) == [1.0]
    assert scored(manager, group_of("ab"), **settings) == [1.0]


def test_a_dataset_with_one_reward_beside_a_training_with_several() -> None:
    settings = {"rm_type": "length+one", "eval_datasets": [{"name": "d", "path": "d", "rm_type": "one"}]}
    dataset = RunConfig(**settings).eval_datasets[0]
    assert scored(manager_of(length=length, one=one), group_of("ab"), dataset, **settings) == [1.0]


def test_one_reward_and_a_sum_do_not_mix_in_one_batch() -> None:
    samples = group_of("a", "b")
    samples[1].metadata = {"rm_type": "one"}
    with pytest.raises(
        ContractError, match=r"returned a number for sample 1 .*a dict with the keys \['length', 'one', 'total'\] for sample 0"
    ):
        scored(manager_of(length=length, one=one), samples, rm_type="length+one")


def test_parts_of_a_sample_run_side_by_side() -> None:
    barrier = threading.Barrier(3)

    def waits(sample: Sample) -> float:
        barrier.wait(timeout=30)  # passes only when all three run at once
        return 1.0

    [reward] = scored(manager_of(a=waits, b=waits, c=waits), group_of("x"), rm_type="a+b+c")
    assert reward["total"] == 3.0


def test_groups_and_samples_in_one_sum() -> None:
    manager = manager_of(length=plugin(length, grouped=True), one=one, slow=plugin(one, asynchronous=True))
    assert scored(manager, group_of("a", "bc"), rm_type="length+one+slow", group_rm=True) == [
        {"length": 21.0, "one": 1.0, "slow": 1.0, "total": 23.0},
        {"length": 22.0, "one": 1.0, "slow": 1.0, "total": 24.0},
    ]


def test_a_group_with_a_kept_reward_scores_the_others() -> None:
    samples = group_of("a", "bc")
    samples[0].reward = {"length": 5.0, "one": 5.0, "total": 5.0}
    manager = manager_of(length=plugin(length, grouped=True), one=one)
    assert scored(manager, samples, rm_type="length+one", group_rm=True) == [
        {"length": 5.0, "one": 5.0, "total": 5.0},
        {"length": 22.0, "one": 1.0, "total": 23.0},
    ]


# ---------------------------------------------------------------- dict rewards as parts


@pytest.mark.parametrize(
    ("value", "part", "number"),
    [
        ({"score": -1.0, "acc": True, "pred": "5"}, "dict", -1.0),
        ({"score": -1.0, "acc": True, "pred": "5"}, "dict:acc", 1.0),
        ({"acc": 0.5}, "dict", 0.5),
        ({"pred": "5", "score": 1}, "boxed_dict", 1.0),
    ],
)
def test_what_counts_of_a_dict(value: Any, part: str, number: float) -> None:
    [reward] = scored(manager_of(dict=lambda _: value, one=one), group_of("x"), rm_type=f"{part}+one")
    assert reward == {part.partition(":")[0]: number, "one": 1.0, "total": number + 1.0}


@pytest.mark.parametrize(
    ("value", "part", "message"),
    [
        ({"a": 1.0, "b": 2.0}, "dict", r"dict with the keys \['a', 'b'\] for sample 0 .*nothing says which value counts"),
        ({"a": 1.0}, "dict:b", "there is no 'b'"),
        (1.0, "dict:b", "returned 1.0 for sample 0 .* rm_type asks for its 'b'"),
    ],
)
def test_what_does_not_say_which_value_counts_ends_the_run(value: Any, part: str, message: str) -> None:
    manager = manager_of(dict=lambda _: value, one=one)
    with pytest.raises(ContractError, match=message) as refused:
        scored(manager, group_of("x"), rm_type=f"{part}+one", on_reward_error="zero")
    assert "plugin 'dict'" in str(refused.value)


# ---------------------------------------------------------------- what a failure costs


class Broken(Exception):
    pass


def breaks_on_b(sample: Sample) -> float:
    if "b" in sample.response:
        raise Broken("no")
    return 1.0


def nan_on_c(sample: Sample) -> float:
    return float("nan") if "c" in sample.response else 2.0


@pytest.mark.parametrize("policy", ["drop", "zero"])
def test_a_failed_part_costs_its_sample_and_is_counted_under_its_plugin(policy: str) -> None:
    samples = group_of("a", "b", "c", "bc")
    got, errors = scored_and_counted(manager_of(breaks=breaks_on_b, nan=nan_on_c), samples, rm_type="breaks+nan", on_reward_error=policy)
    lost = None if policy == "drop" else {"breaks": 0.0, "nan": 0.0, "total": 0.0}
    assert got == [{"breaks": 1.0, "nan": 2.0, "total": 3.0}, lost, lost, lost]
    assert [sample.status is Status.FAILED for sample in samples] == [False, *[policy == "drop"] * 3]
    assert errors == {"reward_errors/breaks/Broken": 2.0, "reward_errors/nan/bad_value": 2.0}


def test_every_part_that_fails_is_counted_also_after_the_first() -> None:
    class AtOnce:
        @hookimpl
        async def custom_rm(self, sample: Sample) -> float:
            raise Broken

    class Later:
        @hookimpl
        async def custom_rm(self, sample: Sample) -> float:
            unscored = sample.reward is None
            await asyncio.sleep(0.01)
            raise Broken if unscored else ValueError

    for order in ("now+later", "later+now"):
        rewards, errors = scored_and_counted(manager_of(now=AtOnce, later=Later), group_of("a"), rm_type=order, on_reward_error="zero")
        assert rewards == [{"now": 0.0, "later": 0.0, "total": 0.0}]
        assert errors == {"reward_errors/now/Broken": 1.0, "reward_errors/later/Broken": 1.0}


def test_raise_names_the_part_and_the_sample() -> None:
    with pytest.raises(Broken) as caught:
        scored(manager_of(breaks=breaks_on_b, nan=nan_on_c), group_of("a", "b"), rm_type="breaks+nan")
    notes = " ".join(caught.value.__notes__)
    assert "custom_rm of plugin 'breaks'" in notes and "sample 1 (group 0)" in notes


def test_a_failed_group_part_costs_its_group() -> None:
    def fails(sample: Sample) -> float:
        raise Broken

    samples = group_of("a", "b")
    manager = manager_of(group=plugin(fails, grouped=True), one=one)
    rewards, errors = scored_and_counted(manager, samples, rm_type="group+one", group_rm=True, on_reward_error="drop")
    assert rewards == [None, None]
    assert errors == {"reward_errors/group/Broken": 2.0}


def test_a_part_past_its_time_is_counted_and_the_other_is_not_asked_again() -> None:
    asked: list[int] = []

    class Hangs:
        @hookimpl
        async def custom_rm(self, sample: Sample) -> float:
            await asyncio.sleep(3600)
            return 1.0

    def notes(sample: Sample) -> float:
        assert sample.index is not None
        asked.append(sample.index)
        return 1.0

    samples = group_of("a", "b")
    manager = manager_of(hangs=Hangs, notes=notes)
    rewards, errors = scored_and_counted(manager, samples, rm_type="hangs+notes", reward_timeout=1.0, on_reward_error="drop")
    assert rewards == [None, None]
    assert errors == {"reward_errors/hangs/timeout": 2.0}
    assert sorted(asked) == [0, 1]


def test_a_total_that_is_no_number_is_a_failed_reward() -> None:
    manager = manager_of(a=lambda _: 1e308, b=lambda _: 1e308)
    with pytest.raises(ContractError, match=r"rm_type a\+b returned inf under 'total' for sample 0"):
        scored(manager, group_of("x"), rm_type="a+b", reward_weights="a=10")


# ---------------------------------------------------------------- what is refused


def test_an_unknown_part_is_refused_at_start_with_the_line_that_helps() -> None:
    manager = manager_of(length=length)
    with pytest.raises(ConfigError, match="training: no enabled plugin answers to rm_type 'f1'; enabled rewards: length"):
        RewardScorer(RunConfig(rm_type="length+f1"), manager)
    datasets = [{"name": "d", "path": "d", "metadata_overrides": {"rm_type": "length+nonsense"}}]
    with pytest.raises(ConfigError, match=r"evaluation dataset 'd': no enabled plugin answers to rm_type 'nonsense'"):
        RewardScorer(RunConfig(rm_type="length", eval_datasets=datasets), manager)
    with pytest.raises(ConfigError, match=r"rm_type 'length:acc'.*") as refused:
        RewardScorer(RunConfig(rm_type="length:acc"), manager)
    assert refused.value.hint == "--rm-type length --reward-key acc"


@pytest.mark.parametrize(
    ("rm_type", "message"),
    [
        ("length+nonsense", r"sample 0 \(group 0\): no enabled plugin answers to rm_type 'nonsense'"),
        ("length+", r"sample 0 \(group 0\): rm_type 'length\+': there is nothing on one side"),
        ("length+length", "are one reward"),
        (5, "rm_type is 5; expected the name of a reward"),
    ],
)
def test_a_sum_of_the_data_that_cannot_be_names_the_sample(rm_type: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scored(manager_of(length=length), group_of("a", metadata={"rm_type": rm_type}))


# ---------------------------------------------------------------- what parts write, and shaping


def test_what_the_parts_write_is_in_the_sample_afterwards(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def writes(name: str) -> Reward:
        def score(sample: Sample) -> float:
            sample.metadata[name] = sample.response
            sample.metadata["last"] = name
            sample.reward = 100.0
            setattr(sample, f"note_{name}", True)
            sample.metadata.pop(f"drop_{name}", None)
            return 1.0

        return score

    [sample] = samples = group_of(r"\boxed{4}", metadata={"row": 7, "drop_a": 1, "drop_b": 1})
    manager = manager_of(a=writes("a"), b=plugin(writes("b"), asynchronous=True), seven=lambda sample: sample.metadata["row"])
    assert scored(manager, samples, rm_type="a+boxed_b+seven") == [{"a": 1.0, "boxed_b": 1.0, "seven": 7.0, "total": 9.0}]
    assert sample.metadata == {"row": 7, "a": r"\boxed{4}", "b": "4", "last": "b"}
    assert (sample.response, vars(sample)["note_a"], vars(sample)["note_b"]) == (r"\boxed{4}", True, True)


def test_metadata_that_a_part_replaces_has_to_be_a_dict() -> None:
    def replaces(metadata: Any) -> Reward:
        def score(sample: Sample) -> float:
            sample.metadata = metadata
            return 1.0

        return score

    samples = group_of("a")
    scored(manager_of(a=replaces({"x": 1}), b=replaces({"y": 2})), samples, rm_type="a+b")
    assert samples[0].metadata == {"x": 1, "y": 2}
    with pytest.raises(ContractError, match=r"the reward 'b' set the metadata of sample 0 \(group 0\) to a list; expected a dict"):
        scored(manager_of(a=one, b=replaces([])), group_of("a"), rm_type="a+b")


def test_shaping_adds_to_the_total() -> None:
    class Shaper:
        @hookimpl
        def shape_reward(self, sample: Sample) -> float:
            return -0.25

    by_row = group_of("ab", metadata={"rm_type": "length+one"})
    manager = manager_of(length=length, one=one, shaper=Shaper)
    assert scored(manager, by_row, rm_type="one") == [{"length": 2.0, "one": 1.0, "total": 2.75}]


# ---------------------------------------------------------------- metrics


def test_the_means_of_dict_rewards() -> None:
    rewards = [{"a": 1.0, "pred": "x", "b c": True, "n": 2}, {"a": 0.0, "pred": 3.0, "b c": False, "n": 10**400}, {"a": 2.0}, 5.0, None]
    samples = [Sample(reward=reward) for reward in rewards]
    assert part_means(samples) == {"reward/a": 1.0, "reward/b_c": 0.5}
    assert part_means(samples, failed=1) == {"reward/a": 0.75, "reward/b_c": 1 / 3}


def test_each_part_is_in_the_metrics_of_a_rollout_and_of_an_evaluation(setup_run: Any) -> None:
    async def parity(args: Any, sample: Sample) -> float:
        return float((sample.index or 0) % 2)

    async def half(args: Any, sample: Sample) -> float:
        return 0.5

    run = setup_run(reward=[parity, half], rm_type="custom_rm-0+custom_rm-1", reward_weights={"custom_rm-1": 2}, eval_success_threshold=2.0)
    metrics = run.train().metrics
    assert {key: value for key, value in metrics.items() if key.startswith(("reward/", "raw_reward"))} == {
        "raw_reward": 1.5,
        "reward/custom_rm-0": 0.5,
        "reward/custom_rm-1": 0.5,
        "reward/total": 1.5,
    }
    _, metrics, _ = run.evaluate()
    assert metrics["held-out"] == metrics["held-out/reward/total"] == 1.5
    assert (metrics["held-out/reward/custom_rm-0"], metrics["held-out/reward/custom_rm-1"]) == (0.5, 0.5)
    assert (metrics["held-out-pass@1"], metrics["held-out-pass@2"]) == (0.5, 1.0)


def test_failed_answers_count_as_zero_in_every_mean_of_an_evaluation(setup_run: Any) -> None:
    async def fails_on_odd(args: Any, sample: Sample) -> float:
        if (sample.index or 0) % 2:
            raise Broken
        return 1.0

    run = setup_run(reward=[fails_on_odd, fails_on_odd], rm_type="custom_rm-0+custom_rm-1", on_reward_error="drop")
    _, metrics, _ = run.evaluate()
    assert metrics["held-out"] == metrics["held-out/reward/total"] == 1.0
    assert metrics["held-out/reward/custom_rm-0"] == 0.5
    assert metrics["reward_errors/custom_rm-0/Broken"] == metrics["reward_errors/custom_rm-1/Broken"] == 2.0


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
