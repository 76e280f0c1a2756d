"""The loop that fills a batch: bounds, ends, over-sampling, and where every group goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vime.api import DynamicFilterOutput, Sample, hookimpl
from vime.config.run_config import RunConfig
from vime.errors import ContractError, DataError
from vime.plugins.manager import PluginManager
from vime.rollout.context import RolloutContext
from vime.rollout.data_source import RolloutDataSourceWithBuffer
from vime.rollout.dynamic_sampling import Collected, DynamicSampling
from vime.rollout.generate import request_seed
from vime.rollout.metrics import batch_metrics, dropped_metrics
from vime.rollout.rewards import RewardScorer
from vime.testing.fakes import FakeEngine, FakeTokenizer

NUM_GPUS = 0

Reward = Callable[[Sample], float]


class NonZeroStd:
    @hookimpl
    def dynamic_sampling_filter(self, samples: list[Sample]) -> DynamicFilterOutput:
        rewards = {float(sample.reward) for sample in samples if isinstance(sample.reward, float)}
        if len(rewards) > 1:
            return DynamicFilterOutput(keep=True)
        return DynamicFilterOutput(keep=False, reason=f"zero_std_{min(rewards):.1f}")


def plugin_of(name: str, **hooks: Any) -> Any:
    module = ModuleType(name)
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))
    return module


class Setup:
    """A rollout on FakeEngine over prompts `p0`, `p1`, ... with a reward by sample."""

    def __init__(
        self, tmp_path: Path, reward: Reward, *, prompts: int = 64, filters: tuple[Any, ...] = (NonZeroStd,), **options: Any
    ) -> None:
        engine_options = {key: options.pop(key) for key in ("latency", "failure_rate", "policy") if key in options}
        deterministic = options.pop("deterministic", True)
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(json.dumps({"input": f"p{i}"}) + "\n" for i in range(prompts)))
        options.setdefault("num_rollout", 1)
        self.config = RunConfig(prompt_data=str(path), rollout_max_response_len=8, **options)
        self.engine = FakeEngine(**engine_options)
        self.plugins = PluginManager()

        async def custom_rm(args: Any, sample: Sample) -> float:
            return reward(sample)

        self.plugins.add(plugin_of("reward", custom_rm=custom_rm), name="reward")
        for number, target in enumerate(filters):
            self.plugins.add(target, name=f"filter{number}")
        self.source = RolloutDataSourceWithBuffer(self.config, tokenizer=FakeTokenizer())
        self.context = RolloutContext(self.config, self.engine, self.plugins, RewardScorer(self.config, self.plugins), deterministic)

    def collect(self, rollout_id: int = 0) -> Collected:
        async def run() -> Collected:
            return await asyncio.wait_for(DynamicSampling(self.context, self.source, rollout_id).collect(), 30)

        return asyncio.run(run())


def alternating(sample: Sample) -> float:
    assert sample.index is not None
    return float(sample.index % 2)


def indices(groups: list[list[Sample]]) -> list[int | None]:
    return [group[0].group_index for group in groups]


@pytest.mark.parametrize("deterministic", [True, False])
def test_every_group_filtered_stops_after_the_bound(tmp_path: Path, deterministic: bool) -> None:
    setup = Setup(
        tmp_path, lambda s: 0.0, rollout_batch_size=2, n_samples_per_prompt=2, dynamic_sampling_max_rounds=3, deterministic=deterministic
    )
    with pytest.raises(ContractError, match=r"0 of 2 groups kept, 6 dropped \(zero_std_0.0 6\)"):
        setup.collect()
    assert len(setup.engine.requests) == 12


def test_fallback_fills_up_with_dropped_groups(tmp_path: Path) -> None:
    setup = Setup(
        tmp_path, lambda s: 0.0, rollout_batch_size=2, n_samples_per_prompt=2, dynamic_sampling_max_rounds=3, on_exhausted="fallback"
    )
    collected = setup.collect()
    assert indices(collected.kept) == [0, 1]
    assert collected.fetch_rounds == 3


def test_underfill_goes_on_with_what_there_is(tmp_path: Path) -> None:
    setup = Setup(
        tmp_path,
        lambda s: float(s.index == 1),
        rollout_batch_size=2,
        n_samples_per_prompt=2,
        dynamic_sampling_max_rounds=3,
        on_exhausted="underfill",
    )
    assert indices(setup.collect().kept) == [0]


def test_source_that_runs_out_is_an_error_at_once(tmp_path: Path) -> None:
    setup = Setup(tmp_path, alternating, prompts=1, rollout_batch_size=2, n_samples_per_prompt=2, num_rollout=None, num_epoch=1)
    with pytest.raises(DataError, match="ran out after 1 groups: 1 of 2 groups kept"):
        setup.collect()


def test_over_sampling_batch_smaller_than_the_batch(tmp_path: Path) -> None:
    setup = Setup(tmp_path, alternating, rollout_batch_size=3, n_samples_per_prompt=2, over_sampling_batch_size=1)
    collected = setup.collect()
    assert indices(collected.kept) == [0, 1, 2]
    assert collected.fetch_rounds == 3


@pytest.mark.parametrize("deterministic", [True, False])
def test_surplus_groups_come_back_with_their_rewards_and_are_not_generated_again(tmp_path: Path, deterministic: bool) -> None:
    setup = Setup(
        tmp_path, alternating, rollout_batch_size=2, n_samples_per_prompt=2, over_sampling_batch_size=4, deterministic=deterministic
    )
    first = setup.collect(0)
    assert len(first.kept) == 2 and len(first.surplus) == 2
    assert not {*indices(first.kept)} & {*indices(first.surplus)}
    if deterministic:
        assert indices(first.kept) == [0, 1]
    generated = len(setup.engine.requests)
    second = setup.collect(1)
    assert second.samples_from_buffer == 4
    assert {*indices(first.surplus)} <= {*indices(second.kept), *indices(second.surplus)}
    assert all(sample.reward is not None for group in second.kept for sample in group)
    assert len(setup.engine.requests) == generated + 2 * 2  # the wave of four took two groups out of the buffer


def test_unfinished_groups_are_aborted_and_requeued_from_scratch(tmp_path: Path) -> None:
    latency_calls: list[None] = []

    def slow_after_four(token_ids: Any, params: Any) -> float:
        latency_calls.append(None)
        return 0.01 if len(latency_calls) <= 4 else 5.0

    setup = Setup(
        tmp_path,
        alternating,
        rollout_batch_size=2,
        n_samples_per_prompt=2,
        over_sampling_batch_size=4,
        deterministic=False,
        latency=slow_after_four,
    )
    collected = setup.collect()
    assert indices(collected.kept) == [0, 1]
    assert {*indices(collected.aborted)} == {2, 3}
    assert all(s.response_length == 0 and s.status is Sample.Status.PENDING for group in setup.source.buffer for s in group)


def test_counts_add_up_by_sample(tmp_path: Path) -> None:
    def reward(sample: Sample) -> float:
        assert sample.index is not None and sample.group_index is not None
        return 1.0 if sample.group_index % 3 == 0 else float(sample.index % 2)

    setup = Setup(tmp_path, reward, rollout_batch_size=4, n_samples_per_prompt=2, over_sampling_batch_size=5)
    for rollout_id in range(4):
        collected = setup.collect(rollout_id)
        collected.kept[0][0].remove_sample = True
        metrics = dropped_metrics(collected) | batch_metrics(setup.config, collected.kept, [group for group, _ in collected.dropped])
        into = metrics["samples_generated"] + metrics["samples_from_buffer"]
        out = sum(
            metrics[key]
            for key in ("samples_trained", "removed_samples", "samples_filtered", "samples_to_buffer", "samples_aborted", "samples_failed")
        )
        assert into == out
        assert metrics["removed_samples"] == 1


def test_means_of_kept_and_of_all_groups(tmp_path: Path) -> None:
    def reward(sample: Sample) -> float:
        assert sample.index is not None and sample.group_index is not None
        return 1.0 if sample.group_index < 2 else float(sample.index % 2)

    setup = Setup(tmp_path, reward, rollout_batch_size=2, n_samples_per_prompt=2)
    collected = setup.collect()
    metrics = batch_metrics(setup.config, collected.kept, [group for group, _ in collected.dropped])
    assert metrics["reward_kept"] == metrics["raw_reward"] == 0.5
    assert metrics["reward_all"] == 0.75
    assert metrics["zero_std/count_1.0"] == 2
    assert dropped_metrics(collected)["dynamic_filter/drop_zero_std_1.0"] == 2


def test_keep_when_insufficient_saves_a_fetch(tmp_path: Path) -> None:
    def lenient(samples: list[Sample]) -> DynamicFilterOutput:
        return DynamicFilterOutput(keep=False, reason="lenient", keep_when_insufficient=True)

    setup = Setup(
        tmp_path,
        lambda s: 0.0,
        rollout_batch_size=2,
        n_samples_per_prompt=2,
        over_sampling_batch_size=4,
        filters=(plugin_of("lenient", dynamic_sampling_filter=lenient),),
    )
    collected = setup.collect()
    assert indices(collected.kept) == [2, 3]
    assert [reason for _, reason in collected.dropped] == ["lenient", "lenient"]
    assert collected.fetch_rounds == 1


def test_the_first_refusal_gives_the_reason_and_a_bool_is_enough(tmp_path: Path) -> None:
    def refuse(samples: list[Sample]) -> bool:
        return samples[0].group_index != 0

    setup = Setup(
        tmp_path,
        alternating,
        rollout_batch_size=1,
        n_samples_per_prompt=2,
        filters=(plugin_of("a", dynamic_sampling_filter=refuse), NonZeroStd),
    )
    collected = setup.collect()
    assert indices(collected.kept) == [1]
    assert [reason for _, reason in collected.dropped] == ["filter0"]


def test_a_filter_that_deletes_samples_is_named(tmp_path: Path) -> None:
    def deleting(samples: list[Sample]) -> bool:
        samples.pop()
        return True

    setup = Setup(
        tmp_path,
        alternating,
        rollout_batch_size=1,
        n_samples_per_prompt=2,
        filters=(plugin_of("deleting", dynamic_sampling_filter=deleting),),
    )
    with pytest.raises(ContractError, match=r"filter0.*dynamic_sampling_filter was shown a group of 2 samples and left 1 in it"):
        setup.collect()


def test_failed_requests_are_retried_and_then_counted(tmp_path: Path) -> None:
    setup = Setup(tmp_path, alternating, rollout_batch_size=4, n_samples_per_prompt=2, failure_rate=0.5, dynamic_sampling_max_rounds=20)
    collected = setup.collect()
    assert len(collected.kept) == 4
    assert collected.retries > 0
    assert all(s.status is not Sample.Status.FAILED for group in collected.kept for s in group)


def test_an_engine_that_always_fails_ends_with_its_reason(tmp_path: Path) -> None:
    setup = Setup(tmp_path, alternating, rollout_batch_size=1, n_samples_per_prompt=2, failure_rate=1.0, dynamic_sampling_max_rounds=2)
    with pytest.raises(ContractError, match=r"2 failed; 4 x FakeEngine"):
        setup.collect()


def test_two_runs_give_the_same_tokens(tmp_path: Path) -> None:
    def tokens() -> list[list[int]]:
        setup = Setup(tmp_path, alternating, rollout_batch_size=4, n_samples_per_prompt=2)
        return [sample.tokens for group in setup.collect().kept for sample in group]

    assert tokens() == tokens()


def fan_out(samples_per_rollout: int, calls: list[int]) -> Any:
    async def custom_generate(args: Any, sample: Sample, sampling_params: dict[str, Any], engine: Any) -> list[Sample]:
        assert sample.index is not None
        calls.append(sample.index)
        siblings = []
        for number in range(samples_per_rollout):
            sibling = Sample.from_dict(sample.to_dict())
            sibling.tokens = [*engine.tokenizer.encode(str(sample.prompt)), number + 1]
            out = await engine.generate(sibling.tokens, sampling_params)
            sibling.append_response_tokens(args, tokens=out.token_ids, log_probs=out.log_probs, text=out.text)
            sibling.status = Sample.Status.ABORTED if out.finish_reason == "abort" else Sample.Status.COMPLETED
            siblings.append(sibling)
        return siblings

    return plugin_of("fan-out", custom_generate=custom_generate)


def shape(group: list[Sample]) -> list[int | None]:
    return [sample.rollout_id for sample in group]


def test_a_fan_out_whose_reward_fails_once_is_generated_anew_as_a_whole(tmp_path: Path) -> None:
    calls: list[int] = []

    def flaky(sample: Sample) -> float:
        if calls.count(1) == 1 and sample.index == 1:
            raise ValueError("not yet")
        return float(sample.index == 0)

    setup = Setup(
        tmp_path, flaky, rollout_batch_size=1, n_samples_per_prompt=2, filters=(NonZeroStd, fan_out(2, calls)), on_reward_error="drop"
    )
    collected = setup.collect()
    assert sorted(calls) == [0, 1, 1]
    assert shape(collected.kept[0]) == [0, 0, 1, 1]
    assert collected.samples_generated == 4
    assert collected.retries == 1


def test_an_aborted_fan_out_goes_back_as_one_prompt(tmp_path: Path) -> None:
    calls: list[int] = []
    setup = Setup(
        tmp_path,
        alternating,
        rollout_batch_size=1,
        n_samples_per_prompt=2,
        over_sampling_batch_size=2,
        filters=(NonZeroStd, fan_out(2, calls)),
        deterministic=False,
        latency=lambda token_ids, params: 0.01 if len(calls) <= 2 else 5.0,
    )
    collected = setup.collect()
    assert indices(collected.kept) == [0]
    (returned,) = setup.source.buffer
    assert [(s.index, s.rollout_id, s.response_length, s.status) for s in returned] == [
        (2, None, 0, Sample.Status.PENDING),
        (3, None, 0, Sample.Status.PENDING),
    ]
    assert collected.samples_aborted == 4


def test_a_partial_sample_is_continued_and_its_old_part_masked(tmp_path: Path) -> None:
    seen: list[int] = []

    def latency(token_ids: Any, params: Any) -> float:
        seen.append(len(token_ids))
        return 0.2 if len(seen) <= 2 else 0.8

    setup = Setup(
        tmp_path,
        alternating,
        rollout_batch_size=1,
        n_samples_per_prompt=2,
        over_sampling_batch_size=2,
        deterministic=False,
        latency=latency,
        partial_rollout=True,
        mask_offpolicy_in_partial_rollout=True,
        policy=lambda token_ids, params: list(range(10, 10 + params["max_new_tokens"])),
        filters=(),
    )
    setup.collect(0)
    (returned,) = setup.source.buffer
    parts = [sample.response_length for sample in returned]
    assert min(parts) > 0 and max(parts) < 8
    setup.engine.latency = 0.0
    setup.engine.update_weights([], 5)
    (group,) = setup.collect(1).kept
    for sample, part in zip(group, parts, strict=True):
        assert sample.response_length == 8
        assert sample.response == setup.engine.tokenizer.decode(sample.tokens[-8:])
        assert sample.loss_mask is None if part == 0 else sample.loss_mask == [0] * part + [1] * (8 - part)
        assert sample.rollout_log_probs is not None and len(sample.rollout_log_probs) == 8


def test_an_error_in_a_filter_is_not_replaced_by_one_from_cleaning_up(tmp_path: Path) -> None:
    def broken(samples: list[Sample]) -> bool:
        raise KeyError("difficulty")

    setup = Setup(
        tmp_path,
        alternating,
        rollout_batch_size=1,
        n_samples_per_prompt=2,
        over_sampling_batch_size=3,
        deterministic=False,
        latency=lambda token_ids, params: 0.01 * len(setup.engine.requests),
        filters=(plugin_of("broken", dynamic_sampling_filter=broken),),
    )
    with pytest.raises(KeyError, match="difficulty") as caught:
        setup.collect()
    assert any("filter0" in note for note in caught.value.__notes__)


def test_seeds_differ_by_sample_attempt_and_scope() -> None:
    seeds = {request_seed(1, index, attempt, scope) for index in range(10) for attempt in range(3) for scope in ("train", "eval/a")}
    assert len(seeds) == 60
    assert request_seed(1, 5, 0) == request_seed(1, 5, 0)
    assert all(0 <= seed < 2**63 for seed in seeds)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
