"""Wrong rewards of whole groups, one mistake each."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

import numpy as np

from vime.api import Sample, hookimpl
from zoo.base import Wrong
from zoo.entries import wrong
from zoo.reward import right


class ListsInTheList:
    @hookimpl
    def custom_rm(self, samples: list[Sample]) -> list[list[float]]:
        return [[right(sample)] for sample in samples]


class NotAwaited:
    @hookimpl
    async def custom_rm(self, samples: list[Sample]) -> list[Any]:
        return [self.one(sample) for sample in samples]

    async def one(self, sample: Sample) -> float:
        return right(sample)


class SetsThemItself:
    @hookimpl
    async def custom_rm(self, samples: list[Sample]) -> None:
        for sample in samples:
            sample.reward = right(sample)


class SortsTheGroup:
    @hookimpl
    def custom_rm(self, samples: list[Sample]) -> list[float]:
        samples.sort(key=lambda sample: len(sample.response))
        return [right(sample) for sample in samples]


async def one_reward_per_answer(args: Any, samples: list[Sample], **kwargs: Any) -> list[float]:
    rewards = {sample.response: right(sample) for sample in samples}
    return list(rewards.values())


def array_for_the_group(args: Any, samples: list[Sample], **kwargs: Any) -> Any:
    return np.array([right(sample) for sample in samples])


class DictByIndex:
    @hookimpl
    def custom_rm(self, samples: list[Sample]) -> dict[Any, float]:
        return {sample.index: right(sample) for sample in samples}


class OneForAll:
    @hookimpl
    def custom_rm(self, samples: list[Sample]) -> float:
        return statistics.fmean(right(sample) for sample in samples)


class Deviation:
    @hookimpl
    def custom_rm(self, samples: list[Sample]) -> list[float]:
        rewards = [right(sample) for sample in samples]
        return [reward - statistics.stdev(rewards) for reward in rewards]


class BestFirst:
    @hookimpl
    def custom_rm(self, samples: list[Sample]) -> list[float]:
        return sorted((right(sample) for sample in samples), reverse=True)


async def as_they_come(args: Any, samples: list[Sample], **kwargs: Any) -> list[float]:
    async def judge(sample: Sample) -> float:
        await asyncio.sleep(0.005 * min(len(sample.response), 40))
        return right(sample)

    return [await task for task in asyncio.as_completed([judge(sample) for sample in samples])]


class TwoOpinions:
    @hookimpl
    def custom_rm(self, sample: Sample, samples: list[Sample] | None) -> float | list[float]:
        if samples is not None:
            return [2.0 * right(one) for one in samples]
        return right(sample)


def as_many_as_configured(args: Any, samples: list[Sample], **kwargs: Any) -> list[float]:
    return [right(samples[place]) for place in range(args.n_samples_per_prompt)]


RM = "custom_rm"


ZOO: tuple[Wrong, ...] = (
    wrong(
        "lists in the list of a group",
        ListsInTheList,
        "reward-finite",
        "{who}: custom_rm returned list [1.0] as the reward for sample 1 (group 1); expected a finite number or a dict",
        core="{who}: custom_rm returned list [1.0] as the reward for sample 0 (group 0); expected a finite number or a dict",
        args={"group_rm": True},
    ),
    wrong(
        "coroutines in the list of a group",
        NotAwaited,
        "reward-finite",
        "{who}: custom_rm returned a coroutine in the place of a reward",
        core="{who}: custom_rm returned coroutine <coroutine object NotAwaited.one at",
        args={"group_rm": True},
    ),
    wrong(
        "sorts the group in place",
        SortsTheGroup,
        "reward-unchanged",
        "{who}: custom_rm changed the list of samples that it was shown: its order or its members",
        also=("reward-group-order",),
    ),
    wrong(
        "equal answers count once",
        one_reward_per_answer,
        "reward-group-shape",
        (
            "{who}: custom_rm returned a list of the wrong length for group 0 (samples 49, 50, 51, 52, 53, 54, 55, 56): "
            "expected 8 rewards, got 7"
        ),
        core="{who}: custom_rm returned a list of the wrong length for group 0 (samples 0, 1, 2, 3, 4): expected 5 rewards, got 4",
        hook=RM,
        args={"group_rm": True},
    ),
    wrong(
        "an array for a group",
        array_for_the_group,
        "reward-group-shape",
        "{who}: custom_rm returned ndarray for group 0 (samples 21, 22, 23, 24); expected a list of 4 rewards",
        core="{who}: custom_rm returned ndarray for group 0 (samples 0, 1, 2, 3, 4); expected a list of 5 rewards",
        hook=RM,
        args={"group_rm": True},
    ),
    wrong(
        "a dict by index for a group",
        DictByIndex,
        "reward-group-shape",
        "{who}: custom_rm returned dict for group 0 (samples 21, 22, 23, 24); expected a list of 4 rewards",
        core="{who}: custom_rm returned dict for group 0 (samples 0, 1, 2, 3, 4); expected a list of 5 rewards",
        args={"group_rm": True},
    ),
    wrong(
        "one number for a group",
        OneForAll,
        "reward-group-shape",
        "{who}: custom_rm returned float for group 0 (samples 21, 22, 23, 24); expected a list of 4 rewards",
        core="{who}: custom_rm returned float for group 0 (samples 0, 1, 2, 3, 4); expected a list of 5 rewards",
        args={"group_rm": True},
    ),
    wrong(
        "the deviation of a single reward",
        Deviation,
        "reward-group-shape",
        "{who}: custom_rm raised StatisticsError: stdev requires at least two data points for a group of 1",
    ),
    wrong(
        "sorted by reward",
        BestFirst,
        "reward-group-order",
        "{who}: custom_rm gives a sample 0 in the reversed group, and 1 in the group as it was",
    ),
    wrong(
        "in the order of completion",
        as_they_come,
        "reward-group-order",
        "{who}: custom_rm gives a sample 0 in the reversed group, and 1 in the group as it was",
        hook=RM,
        args={"group_rm": True},
    ),
    wrong(
        "a group scores twice as much",
        TwoOpinions,
        "reward-group-agrees",
        "{who}: custom_rm gives 2 for the response '4' in a group, and 1 on its own",
    ),
    wrong(
        "the size of a group out of the configuration",
        as_many_as_configured,
        "reward-group-with-failed",
        "{who}: custom_rm raised IndexError: list index out of range for a group of 4 of which one failed",
        hook=RM,
    ),
    wrong(
        "sets the rewards and returns nothing",
        SetsThemItself,
        "reward-group-shape",
        "{who}: custom_rm returned None for group 0 (samples 21, 22, 23, 24); expected a list of 4 rewards",
    ),
)
