"""Wrong filters of groups, one mistake each."""

from __future__ import annotations

import statistics
import time
from typing import Any

from vime.api import DynamicFilterOutput, Sample, Status, hookimpl, rollouts
from zoo.base import Wrong
from zoo.entries import wrong


def values(args: Any, group: list[Sample]) -> list[float]:
    """One reward per rollout, without failed samples: as it should be read, for the wrong filters to build on."""
    firsts = [siblings[0] for siblings in rollouts(group)]
    return [sample.get_reward_value(args) for sample in firsts if sample.reward is not None and sample.status is not Status.FAILED]


def mixed(args: Any, group: list[Sample]) -> bool:
    """Whether the rewards of a group differ."""
    found = values(args, group)
    return bool(found) and max(found) - min(found) > 1e-5


class ReturnsTheGoodOnes:
    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> list[Sample]:
        return [sample for sample in samples if sample.get_reward_value(args) > 0]


def verdict_and_reason(args: Any, samples: list[Sample], **kwargs: Any) -> tuple[bool, str]:
    return mixed(args, samples), "all_equal"


class OnlySaysNo:
    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> DynamicFilterOutput | None:
        if not mixed(args, samples):
            return DynamicFilterOutput(keep=False, reason="all_equal")
        return None


class NeedsDifficulty:
    @hookimpl
    def dynamic_sampling_filter(self, samples: list[Sample]) -> bool:
        return all(sample.metadata["difficulty"] < 5 for sample in samples)


class WithoutReason:
    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> DynamicFilterOutput:
        return DynamicFilterOutput(keep=mixed(args, samples))


class MeanInTheReason:
    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> DynamicFilterOutput:
        found = values(args, samples)
        mean = sum(found) / max(1, len(found))
        return DynamicFilterOutput(keep=0.3 < mean < 0.6, reason=f"mean_{mean}")


class GroupInTheReason:
    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> DynamicFilterOutput:
        keep = mixed(args, samples) and min(values(args, samples)) > 0.0
        return DynamicFilterOutput(keep, f"group_{samples[0].group_index}" if samples else "empty")


class SentenceAsReason:
    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> DynamicFilterOutput:
        return DynamicFilterOutput(mixed(args, samples), "all rewards of the group are equal")


class DeletesFromTheGroup:
    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> bool:
        for sample in list(samples):
            if sample.reward is not None and sample.get_reward_value(args) == 0.0:
                samples.remove(sample)
        return mixed(args, samples)


class SortsTheGroup:
    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> bool:
        samples.sort(key=lambda sample: 0.0 if sample.reward is None else sample.get_reward_value(args))
        return mixed(args, samples)


class FlagsInTheWrongPlace:
    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> bool:
        for sample in samples:
            sample.remove_sample = sample.status is Status.TRUNCATED
        return mixed(args, samples)


class NormalisesRewards:
    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> bool:
        found = values(args, samples)
        for sample in samples:
            if isinstance(sample.reward, float):
                sample.reward -= sum(found) / max(1, len(found))
        return mixed(args, samples)


class EverySecond:
    def __init__(self) -> None:
        self.count = 0

    @hookimpl
    def dynamic_sampling_filter(self) -> bool:
        self.count += 1
        return self.count % 2 == 1


class OneMemoryForAll:
    seen: set[str] = set()  # noqa: RUF012

    @hookimpl
    def dynamic_sampling_filter(self, samples: list[Sample]) -> DynamicFilterOutput:
        responses = {sample.response for sample in samples}
        known = bool(responses & self.seen)
        self.seen.update(responses)
        return DynamicFilterOutput(not known, "seen_before")

    def state_dict(self) -> dict[str, Any]:
        return {"seen": sorted(self.seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen.update(state["seen"])


class FirstSampleOnly:
    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> bool:
        found = values(args, samples)
        return not found or found[0] < 1.0


def deviation_of_one(args: Any, samples: list[Sample], **kwargs: Any) -> bool:
    return statistics.stdev(values(args, samples)) > 1e-5


class RelativeDeviation:
    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> bool:
        found = values(args, samples)
        return len(found) > 1 and statistics.pstdev(found) / statistics.fmean(found) > 0.01


class ReadsRewardItself:
    @hookimpl
    def dynamic_sampling_filter(self, samples: list[Sample]) -> bool:
        found: list[Any] = [siblings[0].reward for siblings in rollouts(samples) if siblings[0].reward is not None]
        return bool(found) and 0.0 < sum(found) < len(found)


class CountsSiblings:
    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> DynamicFilterOutput:
        found = [sample.get_reward_value(args) for sample in samples if sample.reward is not None]
        mean = sum(found) / max(1, len(found))
        return DynamicFilterOutput(keep=0.2 <= mean <= 0.6, reason="too_easy_or_hard")


class ForgetsFailedSamples:
    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> bool:
        found = [siblings[0].get_reward_value(args) for siblings in rollouts(samples)]
        return bool(found) and min(found) < max(found)


class FirstOfNothing:
    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> bool:
        return len(str(samples[0].prompt)) < 1000 and mixed(args, samples)


class AsksAServer:
    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> bool:
        time.sleep(0.06)
        return mixed(args, samples)


DYNAMIC = "dynamic_sampling_filter"


ZOO: tuple[Wrong, ...] = (
    wrong(
        "returns samples in the place of a verdict",
        ReturnsTheGoodOnes,
        "filter-verdict",
        (
            "{who}: dynamic_sampling_filter returned list [Sample(group_index=0, index=0, rollout_id=None, "
            "prompt='1+1 for group 0; expected DynamicFilterOutput or bool"
        ),
        core=(
            "{who}: dynamic_sampling_filter returned list [Sample(group_index=0, index=0, rollout_id=None, "
            "prompt='1+1 for group 0; expected DynamicFilterOutput or bool"
        ),
    ),
    wrong(
        "returns a verdict and a reason as a pair",
        verdict_and_reason,
        "filter-verdict",
        "{who}: dynamic_sampling_filter returned tuple (True, 'all_equal') for group 0; expected DynamicFilterOutput or bool",
        core="{who}: dynamic_sampling_filter returned tuple (True, 'all_equal') for group 0; expected DynamicFilterOutput or bool",
        hook=DYNAMIC,
    ),
    wrong(
        "says nothing about groups that it keeps",
        OnlySaysNo,
        "filter-verdict",
        "{who}: dynamic_sampling_filter returned None for group 0; expected DynamicFilterOutput or bool",
        core="{who}: dynamic_sampling_filter returned None for group 0; expected DynamicFilterOutput or bool",
    ),
    wrong(
        "needs metadata that groups may lack",
        NeedsDifficulty,
        "filter-verdict",
        "{who}: dynamic_sampling_filter raised KeyError: 'difficulty' for a group with the rewards [1.0, 0.0, 1.0, 0.0]",
    ),
    wrong(
        "drops without a reason",
        WithoutReason,
        "filter-reason",
        (
            "{who}: dynamic_sampling_filter drops a group with the rewards [0.47214271545271336, 0.47214271545271336, "
            "0.47214271545271336, 0.47214271545271336] without a reason"
        ),
    ),
    wrong(
        "the mean is part of the reason",
        MeanInTheReason,
        "filter-reason-is-stable",
        "{who}: dynamic_sampling_filter gives the reason 'mean_0.8378652312255158'; expected a short text without spaces or long numbers",
    ),
    wrong(
        "the group is part of the reason",
        GroupInTheReason,
        "filter-reason-is-stable",
        "{who}: dynamic_sampling_filter gives a new reason for nearly every group: group_0, group_1, group_2, ... (30 for 40 groups)",
    ),
    wrong(
        "the reason is a sentence",
        SentenceAsReason,
        "filter-reason-is-stable",
        (
            "{who}: dynamic_sampling_filter gives the reason 'all rewards of the group are equal'; expected a short text "
            "without spaces or long numbers"
        ),
    ),
    wrong(
        "deletes samples in the place of a flag",
        DeletesFromTheGroup,
        "filter-pure",
        "{who}: dynamic_sampling_filter was shown a group of 4 samples and left 2 in it",
        core="{who}: dynamic_sampling_filter was shown a group of 4 samples and left 2 in it",
    ),
    wrong(
        "sorts the group",
        SortsTheGroup,
        "filter-pure",
        "{who}: dynamic_sampling_filter was shown a group of 4 samples and put them in another order",
        core="{who}: dynamic_sampling_filter was shown a group of 4 samples and put them in another order",
    ),
    wrong(
        "flags single samples",
        FlagsInTheWrongPlace,
        "filter-pure",
        "{who}: dynamic_sampling_filter changed what it was shown: sample 0 (group 0): remove_sample False -> True (and 1 more changes)",
    ),
    wrong(
        "normalises the rewards in place",
        NormalisesRewards,
        "filter-pure",
        "{who}: dynamic_sampling_filter changed what it was shown: sample 0 (group 0): reward 1.0 -> 0.5 (and 3 more changes)",
        also=("filter-fan-out",),
    ),
    wrong(
        "keeps every second group",
        EverySecond,
        "filter-same-verdict",
        "{who}: dynamic_sampling_filter gives the same group another verdict the next time",
    ),
    wrong(
        "a memory that all instances share",
        OneMemoryForAll,
        "filter-same-verdict",
        "{who}: dynamic_sampling_filter knows in one instance what another one has seen",
    ),
    wrong(
        "looks at the first sample only",
        FirstSampleOnly,
        "filter-any-order",
        "{who}: dynamic_sampling_filter drops the group [1.0, 0.0, 0.0, 0.0], and keeps it in the reverse order",
    ),
    wrong(
        "the deviation of a single reward",
        deviation_of_one,
        "filter-group-of-one",
        "{who}: dynamic_sampling_filter raised StatisticsError: stdev requires at least two data points for a group of one sample",
        hook=DYNAMIC,
        also=("filter-failed-samples", "filter-empty-group"),
    ),
    wrong(
        "divides by a mean of zero",
        RelativeDeviation,
        "filter-equal-rewards",
        "{who}: dynamic_sampling_filter raised ZeroDivisionError: float division by zero for a group whose rewards are all 0",
    ),
    wrong(
        "reads sample.reward itself",
        ReadsRewardItself,
        "filter-dict-rewards",
        (
            "{who}: dynamic_sampling_filter raised TypeError: unsupported operand type(s) for +: 'int' and 'dict' for a "
            "group with dict rewards under --reward-key acc"
        ),
    ),
    wrong(
        "counts every sample of a rollout",
        CountsSiblings,
        "filter-fan-out",
        (
            "{who}: dynamic_sampling_filter keeps a group with the rewards [1.0, 0.0, 0.0, 0.0], and drops it when the "
            "first rollout has five samples"
        ),
    ),
    wrong(
        "forgets that failed samples have no reward",
        ForgetsFailedSamples,
        "filter-failed-samples",
        (
            "{who}: dynamic_sampling_filter raised TypeError: '<' not supported between instances of 'NoneType' and "
            "'float' for a group in which samples failed"
        ),
    ),
    wrong(
        "the first sample of an empty list",
        FirstOfNothing,
        "filter-empty-group",
        "{who}: dynamic_sampling_filter raised IndexError: list index out of range for an empty list",
    ),
    wrong(
        "asks a server and waits",
        AsksAServer,
        "filter-event-loop",
        "{who}: dynamic_sampling_filter holds up the event loop: it waits or computes at `time.sleep(0.06)` in dynamic_sampling_filter",
    ),
)
