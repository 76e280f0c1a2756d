"""Wrong filters of single samples, one mistake each."""

from __future__ import annotations

import statistics
from typing import Any

from vime.api import Sample, Status, hookimpl
from zoo.base import Wrong
from zoo.entries import wrong
from zoo.filters import mixed


class TakesThemFlat:
    @hookimpl
    def rollout_sample_filter(self, samples: Any) -> None:
        for sample in samples:
            sample.remove_sample |= sample.status is Status.TRUNCATED


class DeletesTruncated:
    @hookimpl
    def rollout_sample_filter(self, samples: list[list[Sample]]) -> None:
        for group in samples:
            group[:] = [sample for sample in group if sample.status is not Status.TRUNCATED]


def deletes_bad_groups(args: Any, samples: list[list[Sample]], **kwargs: Any) -> None:
    for group in list(samples):
        if not mixed(args, group):
            samples.remove(group)


class Flattens:
    @hookimpl
    def rollout_sample_filter(self, samples: list[Any]) -> None:
        samples[:] = [sample for group in samples for sample in group]


class SortsByLength:
    @hookimpl
    def rollout_sample_filter(self, samples: list[list[Sample]]) -> None:
        for group in samples:
            group.sort(key=lambda sample: -sample.response_length)
            for sample in group[:-3]:
                sample.remove_sample = True


class MasksByHand:
    @hookimpl
    def rollout_sample_filter(self, samples: list[list[Sample]]) -> None:
        for group in samples:
            for sample in group:
                if sample.status is Status.TRUNCATED:
                    sample.loss_mask = [0] * sample.response_length


class FlagWithAReason:
    @hookimpl
    def rollout_sample_filter(self, samples: list[list[Sample]]) -> None:
        for group in samples:
            for sample in group:
                if sample.status is Status.TRUNCATED:
                    sample.remove_sample = "truncated"  # pyright: ignore[reportAttributeAccessIssue]


class ReturnsTheRest:
    @hookimpl
    def rollout_sample_filter(self, samples: list[list[Sample]]) -> Any:
        return [[sample for sample in group if sample.status is not Status.TRUNCATED] for group in samples]


class TakesFlagsBack:
    @hookimpl
    def rollout_sample_filter(self, samples: list[list[Sample]]) -> None:
        for group in samples:
            for sample in group:
                sample.remove_sample = sample.status is Status.TRUNCATED


class RemembersResponses:
    def __init__(self) -> None:
        self.seen: set[str] = set()

    @hookimpl
    def rollout_sample_filter(self, samples: list[list[Sample]]) -> None:
        for group in samples:
            for sample in group:
                sample.remove_sample |= sample.response in self.seen
                self.seen.add(sample.response)


class MeanOfNothing:
    @hookimpl
    def rollout_sample_filter(self, samples: list[list[Sample]]) -> None:
        mean = statistics.fmean(sample.response_length for group in samples for sample in group)
        for group in samples:
            for sample in group:
                sample.remove_sample |= sample.response_length > 3 * mean


class BestAndWorst:
    @hookimpl
    def rollout_sample_filter(self, args: Any, samples: list[list[Sample]]) -> None:
        for group in samples:
            ranked = sorted(group, key=lambda sample: sample.get_reward_value(args))
            for sample in ranked[1:-1]:
                sample.remove_sample = True


class PositiveOnly:
    @hookimpl
    def rollout_sample_filter(self, samples: list[list[Sample]]) -> None:
        for group in samples:
            for sample in group:
                if sample.reward is not None and sample.reward < 0:  # pyright: ignore[reportOperatorIssue]
                    sample.remove_sample = True


SAMPLES = "rollout_sample_filter"


ZOO: tuple[Wrong, ...] = (
    wrong(
        "takes the groups for samples",
        TakesThemFlat,
        "sample-filter-runs",
        "{who}: rollout_sample_filter raised AttributeError: 'list' object has no attribute 'remove_sample' for a list of three groups",
    ),
    wrong(
        "deletes truncated samples",
        DeletesTruncated,
        "sample-filter-keeps-batch",
        "{who}: rollout_sample_filter deleted 3 of 12 samples; the same groups and samples are expected afterwards",
        core="{who}: rollout_sample_filter changed the batch: the same groups, samples and order are expected afterwards",
    ),
    wrong(
        "deletes whole groups",
        deletes_bad_groups,
        "sample-filter-keeps-batch",
        "{who}: rollout_sample_filter deleted 4 of 12 samples; the same groups and samples are expected afterwards",
        core="{who}: rollout_sample_filter changed the batch: the same groups, samples and order are expected afterwards",
        hook=SAMPLES,
    ),
    wrong(
        "flattens the groups",
        Flattens,
        "sample-filter-keeps-batch",
        "{who}: rollout_sample_filter flattened the groups: `samples` holds single samples now",
        core="{who}: rollout_sample_filter changed the batch: the same groups, samples and order are expected afterwards",
    ),
    wrong(
        "sorts groups in place",
        SortsByLength,
        "sample-filter-keeps-batch",
        "{who}: rollout_sample_filter changed the order of groups or samples; the same order is expected afterwards",
        core="{who}: rollout_sample_filter changed the batch: the same groups, samples and order are expected afterwards",
    ),
    wrong(
        "sets the loss mask by hand",
        MasksByHand,
        "sample-filter-flags-only",
        (
            "{who}: rollout_sample_filter changed what it was shown: sample 3 (group 0): loss_mask None -> [0, 0, 0, 0, 0, "
            "0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, (and 2 more changes)"
        ),
    ),
    wrong(
        "a text as the flag",
        FlagWithAReason,
        "sample-filter-flags-only",
        "{who}: rollout_sample_filter set remove_sample to 'truncated'; expected True or False",
        core="{who}: rollout_sample_filter set remove_sample of sample 3 (group 0) to 'truncated'; expected a bool",
    ),
    wrong(
        "returns what is left",
        ReturnsTheRest,
        "sample-filter-returns-nothing",
        "{who}: rollout_sample_filter returned a list, which nothing reads; expected None",
        core="{who}: rollout_sample_filter returned a list of 3, which nothing uses; expected None",
    ),
    wrong(
        "takes back flags of others",
        TakesFlagsBack,
        "sample-filter-keeps-flags",
        "{who}: rollout_sample_filter took back the flag that another filter had set",
    ),
    wrong(
        "remembers responses and declares no state",
        RemembersResponses,
        "sample-filter-idempotent",
        "{who}: rollout_sample_filter removes 5 of 8 samples, and 8 when it is applied again",
    ),
    wrong(
        "the mean length of no samples",
        MeanOfNothing,
        "sample-filter-empty-batch",
        "{who}: rollout_sample_filter raised StatisticsError: fmean requires at least one data point for an empty batch",
    ),
    wrong(
        "ranks samples without a reward",
        BestAndWorst,
        "sample-filter-odd-samples",
        (
            "{who}: rollout_sample_filter raised TypeError: '<' not supported between instances of 'NoneType' and 'float' "
            "for a group in which samples failed"
        ),
    ),
    wrong(
        "compares a dict with zero",
        PositiveOnly,
        "sample-filter-dict-rewards",
        (
            "{who}: rollout_sample_filter raised TypeError: '<' not supported between instances of 'dict' and 'int' for "
            "dict rewards under --reward-key acc"
        ),
    ),
)
