"""Wrong filters, shaping and sample hooks, one mistake each."""

from __future__ import annotations

import copy
import random
import statistics
import time
from typing import Any

from vime.api import DynamicFilterOutput, Sample, Status, hookimpl, rollouts
from zoo.base import Wrong


def values(args: Any, group: list[Sample]) -> list[float]:
    """One reward per rollout, without failed samples: as it should be read, for the wrong filters to build on."""
    firsts = [siblings[0] for siblings in rollouts(group)]
    return [sample.get_reward_value(args) for sample in firsts if sample.reward is not None and sample.status is not Status.FAILED]


def mixed(args: Any, group: list[Sample]) -> bool:
    """Whether the rewards of a group differ."""
    found = values(args, group)
    return bool(found) and max(found) - min(found) > 1e-5


# ---------------------------------------------------------------- dynamic_sampling_filter


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
        found = [siblings[0].reward for siblings in rollouts(samples) if siblings[0].reward is not None]
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


# ---------------------------------------------------------------- rollout_sample_filter


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


# ---------------------------------------------------------------- buffer_filter


class DictOfGroups:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> Any:
        return dict(enumerate(buffer[:num_samples]))


class LazyChoice:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> Any:
        return (group for group in buffer[:num_samples])


def flat_choice(args: Any, rollout_id: int, buffer: list[list[Sample]], num_samples: int) -> Any:
    return [sample for group in buffer[:num_samples] for sample in group]


class Copies:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return copy.deepcopy(buffer[:num_samples])


class WholeBuffer:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]]) -> list[list[Sample]]:
        return sorted(buffer, key=lambda group: -group[0].response_length)


class OneTwice:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return [max(buffer, key=lambda group: group[0].response_length) for _ in range(num_samples)] if buffer else []


class HalfGroups:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return [group[:2] for group in buffer[:num_samples]]


class FillsUp:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        chosen = buffer[:num_samples]
        buffer.extend(copy.deepcopy(chosen))
        return chosen


class ByIndex:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return [buffer[place] for place in range(num_samples)]


class TheLastOnes:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return buffer[-num_samples:]


class LongestFirst:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        longest = max(group[0].response_length for group in buffer)
        return [group for group in buffer if group[0].response_length <= longest][:num_samples]


class AgeInRollouts:
    @hookimpl
    def buffer_filter(self, rollout_id: int, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return [group for group in buffer if group[0].metadata.get("rollout", 0) >= rollout_id - 10][:num_samples]


class SecondSample:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return sorted(buffer, key=lambda group: group[1].response_length)[:num_samples]


class OneSamplePerRollout:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        for group in buffer:
            indices = [sample.rollout_id for sample in group if sample.rollout_id is not None]
            if len(set(indices)) != len(indices):
                raise ValueError(f"group {group[0].group_index} has a rollout twice")
        return buffer[:num_samples]


class StartsThemAnew:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        for sample in (sample for group in buffer[:num_samples] for sample in group):
            sample.reset_for_generation()
        return buffer[:num_samples]


class ClearsTheBuffer:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        chosen = buffer[:num_samples]
        buffer.clear()
        return chosen


class RemovesEqualOnes:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        chosen = list(reversed(buffer))[:num_samples]
        for group in chosen:
            buffer.remove(group)
        return chosen


class NeverAny:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return [group for group in buffer if all(sample.metadata.get("ready") for sample in group)][:num_samples]


class Shuffles:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return random.sample(buffer, min(num_samples, len(buffer)))


# ---------------------------------------------------------------- shape_reward, rollout_sample_hook, process_all_samples


class PenaltyAsText:
    @hookimpl
    def shape_reward(self, sample: Sample) -> Any:
        return f"-{sample.response_length / 1000}"


class InfinitePenalty:
    @hookimpl
    def shape_reward(self, sample: Sample) -> float | None:
        return -float("inf") if sample.status is Status.TRUNCATED else None


class PerToken:
    @hookimpl
    def shape_reward(self, sample: Sample) -> float:
        return 0.1 * sample.response.count("so") / sample.response_length


class NegativeOnly:
    @hookimpl
    def shape_reward(self, sample: Sample) -> float | None:
        return -0.1 if sample.reward < 0 else None  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]


class NewReward:
    @hookimpl
    def shape_reward(self, args: Any, sample: Sample) -> float:
        return sample.get_reward_value(args) - 0.5


class AddsItself:
    @hookimpl
    def shape_reward(self, sample: Sample) -> None:
        if isinstance(sample.reward, float):
            sample.reward -= 0.1


class Jitter:
    @hookimpl
    def shape_reward(self) -> float:
        return random.uniform(-1e-3, 1e-3)


class ReturnsText:
    @hookimpl
    def rollout_sample_hook(self, sample: Sample) -> Any:
        return sample.response.strip()


class NeedsAnAnswer:
    @hookimpl
    def rollout_sample_hook(self, sample: Sample) -> None:
        sample.metadata["first"] = sample.response[0]


class CutsTokens:
    @hookimpl
    def rollout_sample_hook(self, sample: Sample) -> None:
        if sample.response_length > 10:
            del sample.tokens[-5:]
            sample.response_length -= 5


class MadeAnew:
    @hookimpl
    def rollout_sample_hook(self, sample: Sample) -> Sample:
        return Sample(
            prompt=sample.prompt,
            tokens=list(sample.tokens),
            response=sample.response,
            response_length=sample.response_length,
            label=sample.label,
            status=sample.status,
        )


class OnceMore:
    @hookimpl
    def rollout_sample_hook(self, sample: Sample) -> None:
        if sample.status is Status.TRUNCATED:
            sample.status = Status.PENDING


class TrainingOnly:
    @hookimpl
    def rollout_sample_hook(self, sample: Any) -> None:
        sample.metadata["half"] = sample.group_index // 2


class OneFlatList:
    @hookimpl
    def process_all_samples(self, all_samples: Any) -> None:
        self.length = sum(sample.response_length for sample in all_samples)


class WhitensRewards:
    @hookimpl
    def process_all_samples(self, all_samples: list[list[Sample]]) -> None:
        for group in all_samples:
            for sample in group:
                if isinstance(sample.reward, float):
                    sample.reward /= 2.0


class DropsTheDropped:
    @hookimpl
    def process_all_samples(self, args: Any, all_samples: list[list[Sample]]) -> None:
        all_samples[:] = [group for group in all_samples if mixed(args, group)]


class MeanLength:
    @hookimpl
    def process_all_samples(self, all_samples: list[list[Sample]]) -> None:
        self.mean = statistics.fmean(sample.response_length for group in all_samples for sample in group)


class CountsRightOnes:
    @hookimpl
    def process_all_samples(self, all_samples: list[list[Sample]]) -> None:
        self.right = sum(sample.reward or 0.0 for group in all_samples for sample in group)  # pyright: ignore[reportArgumentType]


DYNAMIC, SAMPLES, BUFFER = "dynamic_sampling_filter", "rollout_sample_filter", "buffer_filter"
ZOO: tuple[Wrong, ...] = (
    Wrong(
        "returns samples in the place of a verdict",
        ReturnsTheGoodOnes,
        "filter-verdict",
        "plugin 'ReturnsTheGoodOnes': dynamic_sampling_filter returned list; expected DynamicFilterOutput or bool",
        core="plugin 'ReturnsTheGoodOnes': dynamic_sampling_filter returned list; expected DynamicFilterOutput or bool",
    ),
    Wrong(
        "returns a verdict and a reason as a pair",
        verdict_and_reason,
        "filter-verdict",
        "path function zoo.filters:verdict_and_reason: dynamic_sampling_filter returned tuple; expected DynamicFilterOutput or bool",
        core="path function zoo.filters:verdict_and_reason: dynamic_sampling_filter returned tuple; expected DynamicFilterOutput or bool",
        hook=DYNAMIC,
    ),
    Wrong(
        "says nothing about groups that it keeps",
        OnlySaysNo,
        "filter-verdict",
        "plugin 'OnlySaysNo': dynamic_sampling_filter returned NoneType; expected DynamicFilterOutput or bool",
        core="plugin 'OnlySaysNo': dynamic_sampling_filter returned NoneType; expected DynamicFilterOutput or bool",
    ),
    Wrong(
        "needs metadata that groups may lack",
        NeedsDifficulty,
        "filter-verdict",
        "plugin 'NeedsDifficulty': dynamic_sampling_filter raised KeyError: 'difficulty' for a group with the rewards [1.0, 0.0, 1.0, 0.0]",
    ),
    Wrong(
        "drops without a reason",
        WithoutReason,
        "filter-reason",
        "plugin 'WithoutReason': dynamic_sampling_filter drops a group with the rewards [0.47214271545271336, 0.47214271545271336, 0.47214271545271336, 0.47214271545271336] without a reason",
    ),
    Wrong(
        "the mean is part of the reason",
        MeanInTheReason,
        "filter-reason-is-stable",
        "plugin 'MeanInTheReason': dynamic_sampling_filter gives the reason 'mean_0.8378652312255158'; expected a short text without spaces or long numbers",
    ),
    Wrong(
        "the group is part of the reason",
        GroupInTheReason,
        "filter-reason-is-stable",
        "plugin 'GroupInTheReason': dynamic_sampling_filter gives a new reason for nearly every group: group_0, group_1, group_2, ... (30 for 40 groups)",
    ),
    Wrong(
        "the reason is a sentence",
        SentenceAsReason,
        "filter-reason-is-stable",
        "plugin 'SentenceAsReason': dynamic_sampling_filter gives the reason 'all rewards of the group are equal'; expected a short text without spaces or long numbers",
    ),
    Wrong(
        "deletes samples in the place of a flag",
        DeletesFromTheGroup,
        "filter-pure",
        "plugin 'DeletesFromTheGroup': dynamic_sampling_filter changed a group of 4 samples; it has 2 now",
        core="plugin 'DeletesFromTheGroup': dynamic_sampling_filter changed a group of 4 samples; it has 2 now",
    ),
    Wrong(
        "sorts the group",
        SortsTheGroup,
        "filter-pure",
        "plugin 'SortsTheGroup': dynamic_sampling_filter changed a group of 4 samples; it has 4 now",
        core="plugin 'SortsTheGroup': dynamic_sampling_filter changed a group of 4 samples; it has 4 now",
    ),
    Wrong(
        "flags single samples",
        FlagsInTheWrongPlace,
        "filter-pure",
        "plugin 'FlagsInTheWrongPlace': dynamic_sampling_filter changed what it was shown: sample 0 (group 0): remove_sample False -> True (and 1 more changes)",
    ),
    Wrong(
        "normalises the rewards in place",
        NormalisesRewards,
        "filter-pure",
        "plugin 'NormalisesRewards': dynamic_sampling_filter changed what it was shown: sample 0 (group 0): reward 1.0 -> 0.5 (and 3 more changes)",
        also=("filter-fan-out",),
    ),
    Wrong(
        "keeps every second group",
        EverySecond,
        "filter-same-verdict",
        "plugin 'EverySecond': dynamic_sampling_filter gives the same group another verdict the next time",
    ),
    Wrong(
        "looks at the first sample only",
        FirstSampleOnly,
        "filter-any-order",
        "plugin 'FirstSampleOnly': dynamic_sampling_filter drops the group [1.0, 0.0, 0.0, 0.0], and keeps it in the reverse order",
    ),
    Wrong(
        "the deviation of a single reward",
        deviation_of_one,
        "filter-group-of-one",
        "path function zoo.filters:deviation_of_one: dynamic_sampling_filter raised StatisticsError: stdev requires at least two data points for a group of one sample",
        hook=DYNAMIC,
        also=("filter-failed-samples", "filter-empty-group"),
    ),
    Wrong(
        "divides by a mean of zero",
        RelativeDeviation,
        "filter-equal-rewards",
        "plugin 'RelativeDeviation': dynamic_sampling_filter raised ZeroDivisionError: float division by zero for a group whose rewards are all 0",
    ),
    Wrong(
        "reads sample.reward itself",
        ReadsRewardItself,
        "filter-dict-rewards",
        "plugin 'ReadsRewardItself': dynamic_sampling_filter raised TypeError: unsupported operand type(s) for +: 'int' and 'dict' for a group with dict rewards under --reward-key acc",
    ),
    Wrong(
        "counts every sample of a rollout",
        CountsSiblings,
        "filter-fan-out",
        "plugin 'CountsSiblings': dynamic_sampling_filter keeps a group with the rewards [1.0, 0.0, 0.0, 0.0], and drops it when the first rollout has five samples",
    ),
    Wrong(
        "forgets that failed samples have no reward",
        ForgetsFailedSamples,
        "filter-failed-samples",
        "plugin 'ForgetsFailedSamples': dynamic_sampling_filter raised TypeError: '<' not supported between instances of 'NoneType' and 'float' for a group in which samples failed",
    ),
    Wrong(
        "the first sample of an empty list",
        FirstOfNothing,
        "filter-empty-group",
        "plugin 'FirstOfNothing': dynamic_sampling_filter raised IndexError: list index out of range for an empty list",
    ),
    Wrong(
        "asks a server and waits",
        AsksAServer,
        "filter-event-loop",
        "plugin 'AsksAServer': dynamic_sampling_filter holds up the event loop: it waits or computes at `time.sleep(0.06)` in dynamic_sampling_filter",
    ),
    Wrong(
        "takes the groups for samples",
        TakesThemFlat,
        "sample-filter-runs",
        "plugin 'TakesThemFlat': rollout_sample_filter raised AttributeError: 'list' object has no attribute 'remove_sample' for a list of three groups",
    ),
    Wrong(
        "deletes truncated samples",
        DeletesTruncated,
        "sample-filter-keeps-batch",
        "plugin 'DeletesTruncated': rollout_sample_filter deleted 3 of 12 samples; the same groups and samples are expected afterwards",
        core="plugin 'DeletesTruncated': rollout_sample_filter changed the batch: the same groups, samples and order are expected afterwards",
    ),
    Wrong(
        "deletes whole groups",
        deletes_bad_groups,
        "sample-filter-keeps-batch",
        "path function zoo.filters:deletes_bad_groups: rollout_sample_filter deleted 4 of 12 samples; the same groups and samples are expected afterwards",
        core="path function zoo.filters:deletes_bad_groups: rollout_sample_filter changed the batch: the same groups, samples and order are expected afterwards",
        hook=SAMPLES,
    ),
    Wrong(
        "flattens the groups",
        Flattens,
        "sample-filter-keeps-batch",
        "plugin 'Flattens': rollout_sample_filter flattened the groups: `samples` holds single samples now",
        core="?",
    ),
    Wrong(
        "sorts groups in place",
        SortsByLength,
        "sample-filter-keeps-batch",
        "plugin 'SortsByLength': rollout_sample_filter changed the order of groups or samples; the same order is expected afterwards",
        core="plugin 'SortsByLength': rollout_sample_filter changed the batch: the same groups, samples and order are expected afterwards",
    ),
    Wrong(
        "sets the loss mask by hand",
        MasksByHand,
        "sample-filter-flags-only",
        "plugin 'MasksByHand': rollout_sample_filter changed what it was shown: sample 3 (group 0): loss_mask None -> [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, (and 2 more changes)",
    ),
    Wrong(
        "a text as the flag",
        FlagWithAReason,
        "sample-filter-flags-only",
        "plugin 'FlagWithAReason': rollout_sample_filter set remove_sample to 'truncated'; expected True or False",
    ),
    Wrong(
        "returns what is left",
        ReturnsTheRest,
        "sample-filter-returns-nothing",
        "plugin 'ReturnsTheRest': rollout_sample_filter returned a list, which nothing reads; expected None",
    ),
    Wrong(
        "takes back flags of others",
        TakesFlagsBack,
        "sample-filter-keeps-flags",
        "plugin 'TakesFlagsBack': rollout_sample_filter took back the flag that another filter had set",
    ),
    Wrong(
        "remembers responses and declares no state",
        RemembersResponses,
        "sample-filter-idempotent",
        "plugin 'RemembersResponses': rollout_sample_filter removes 5 of 8 samples, and 8 when it is applied again",
    ),
    Wrong(
        "the mean length of no samples",
        MeanOfNothing,
        "sample-filter-empty-batch",
        "plugin 'MeanOfNothing': rollout_sample_filter raised StatisticsError: fmean requires at least one data point for an empty batch",
    ),
    Wrong(
        "ranks samples without a reward",
        BestAndWorst,
        "sample-filter-odd-samples",
        "plugin 'BestAndWorst': rollout_sample_filter raised TypeError: '<' not supported between instances of 'NoneType' and 'float' for a group in which samples failed",
    ),
    Wrong(
        "compares a dict with zero",
        PositiveOnly,
        "sample-filter-dict-rewards",
        "plugin 'PositiveOnly': rollout_sample_filter raised TypeError: '<' not supported between instances of 'dict' and 'int' for dict rewards under --reward-key acc",
    ),
    Wrong(
        "a dict of groups",
        DictOfGroups,
        "buffer-filter-choice",
        "plugin 'DictOfGroups', hook buffer_filter: expected a list of groups, got dict",
        core="plugin 'DictOfGroups', hook buffer_filter: expected a list of groups, got dict",
    ),
    Wrong(
        "a generator of groups",
        LazyChoice,
        "buffer-filter-choice",
        "plugin 'LazyChoice', hook buffer_filter: expected a list of groups, got generator",
        core="plugin 'LazyChoice', hook buffer_filter: expected a list of groups, got generator",
    ),
    Wrong(
        "samples in the place of groups",
        flat_choice,
        "buffer-filter-choice",
        "path function zoo.filters:flat_choice, hook buffer_filter: expected at most 2 groups, got 8",
        core="path function zoo.filters:flat_choice, hook buffer_filter: expected at most 2 groups, got 8",
        hook=BUFFER,
    ),
    Wrong(
        "copies of the groups",
        Copies,
        "buffer-filter-choice",
        "plugin 'Copies', hook buffer_filter: expected whole groups of the buffer, got a group that is not in the buffer",
        core="plugin 'Copies', hook buffer_filter: expected whole groups of the buffer, got a group that is not in the buffer",
    ),
    Wrong(
        "more than was asked for",
        WholeBuffer,
        "buffer-filter-choice",
        "plugin 'WholeBuffer', hook buffer_filter: expected at most 2 groups, got 5",
        core="plugin 'WholeBuffer', hook buffer_filter: expected at most 2 groups, got 5",
    ),
    Wrong(
        "one group twice",
        OneTwice,
        "buffer-filter-choice",
        "plugin 'OneTwice', hook buffer_filter: group 2 came back twice",
        core="plugin 'OneTwice', hook buffer_filter: group 0 came back twice",
    ),
    Wrong(
        "parts of groups",
        HalfGroups,
        "buffer-filter-choice",
        "plugin 'HalfGroups', hook buffer_filter: expected whole groups of the buffer, got a part of a group, or samples of several groups",
        core="plugin 'HalfGroups', hook buffer_filter: expected whole groups of the buffer, got a part of a group, or samples of several groups",
    ),
    Wrong(
        "puts copies back into the buffer",
        FillsUp,
        "buffer-filter-choice",
        "plugin 'FillsUp', hook buffer_filter: it put groups into the buffer, or changed some, that were not there before",
        core="plugin 'FillsUp', hook buffer_filter: it put groups into the buffer, or changed some, that were not there before",
    ),
    Wrong(
        "counts on enough groups",
        ByIndex,
        "buffer-filter-more-than-there-are",
        "plugin 'ByIndex': buffer_filter raised IndexError: list index out of range for 6 groups out of a buffer of 5",
        also=("buffer-filter-one-group", "buffer-filter-empty-buffer"),
    ),
    Wrong(
        "the last zero groups",
        TheLastOnes,
        "buffer-filter-none-asked-for",
        "plugin 'TheLastOnes', hook buffer_filter: expected at most 0 groups, got 5",
        core="plugin 'TheLastOnes', hook buffer_filter: expected at most 0 groups, got 5",
    ),
    Wrong(
        "the maximum of nothing",
        LongestFirst,
        "buffer-filter-empty-buffer",
        "plugin 'LongestFirst': buffer_filter raised ValueError: max() arg is an empty sequence for an empty buffer",
    ),
    Wrong(
        "calculates with a rollout_id that is None",
        AgeInRollouts,
        "buffer-filter-no-rollout-id",
        "plugin 'AgeInRollouts': buffer_filter raised TypeError: unsupported operand type(s) for -: 'NoneType' and 'int' for rollout_id None",
    ),
    Wrong(
        "the second sample of a group of one",
        SecondSample,
        "buffer-filter-one-group",
        "plugin 'SecondSample': buffer_filter raised IndexError: list index out of range for groups of one sample",
    ),
    Wrong(
        "refuses rollouts with several samples",
        OneSamplePerRollout,
        "buffer-filter-odd-groups",
        "plugin 'OneSamplePerRollout': buffer_filter raised ValueError: group 8 has a rollout twice for groups that are unfinished or have no rewards",
    ),
    Wrong(
        "starts aborted samples anew",
        StartsThemAnew,
        "buffer-filter-unchanged",
        "plugin 'StartsThemAnew': buffer_filter changed what it was shown: sample 8 (group 2): tokens [5, 76, 5, 84, 32, 28] -> [5, 76, 5, 84] (and 20 more changes)",
    ),
    Wrong(
        "clears the buffer",
        ClearsTheBuffer,
        "buffer-filter-loses-nothing",
        "plugin 'ClearsTheBuffer': buffer_filter emptied the buffer: it returned 2 of 5 groups, and the other 3 are gone",
    ),
    Wrong(
        "removes by equality",
        RemovesEqualOnes,
        "buffer-filter-loses-nothing",
        "plugin 'RemovesEqualOnes': buffer_filter removes other groups than it returns, where groups are equal: 2 of 5 are gone",
    ),
    Wrong(
        "waits for a mark that nothing sets",
        NeverAny,
        "buffer-filter-takes-some",
        "plugin 'NeverAny': buffer_filter returns no group at all, whatever the buffer holds",
    ),
    Wrong(
        "shuffles without a seed",
        Shuffles,
        "buffer-filter-same-choice",
        "plugin 'Shuffles': buffer_filter chooses differently each time, so that a resumed run goes on with other groups",
    ),
    Wrong(
        "a penalty as text",
        PenaltyAsText,
        "shape-reward-finite",
        "plugin 'PenaltyAsText': shape_reward returned str '-0.002' as an addition to the reward for sample 0 (group 0); expected a finite number or a dict",
        core="plugin 'PenaltyAsText': shape_reward returned str '-0.002' as an addition to the reward for sample 0 (group 0); expected a finite number or a dict",
    ),
    Wrong(
        "an infinite penalty",
        InfinitePenalty,
        "shape-reward-finite",
        "plugin 'InfinitePenalty': shape_reward returned -inf as an addition to the reward for sample 0 (group 0); expected a finite number",
        core="plugin 'InfinitePenalty': shape_reward returned -inf as an addition to the reward for sample 0 (group 0); expected a finite number",
    ),
    Wrong(
        "divides by a length of zero",
        PerToken,
        "shape-reward-empty-response",
        "plugin 'PerToken': shape_reward raised ZeroDivisionError: float division by zero for a response without tokens",
    ),
    Wrong(
        "compares a dict with zero",
        NegativeOnly,
        "shape-reward-dict-rewards",
        "plugin 'NegativeOnly': shape_reward raised TypeError: '<' not supported between instances of 'dict' and 'int' for a dict reward under --reward-key acc",
    ),
    Wrong(
        "returns the reward as a whole",
        NewReward,
        "shape-reward-is-an-addition",
        "plugin 'NewReward': shape_reward returns the whole reward: -0.5, 0.5 and 1.5 for the rewards 0, 1 and 2",
    ),
    Wrong(
        "adds to the reward itself",
        AddsItself,
        "shape-reward-unchanged",
        "plugin 'AddsItself': shape_reward changed what it was shown: sample 0 (group 0): reward 1.0 -> 0.9",
    ),
    Wrong(
        "an addition by chance",
        Jitter,
        "shape-reward-deterministic",
        "plugin 'Jitter': shape_reward gives one and the same sample different additions",
    ),
    Wrong(
        "returns the response",
        ReturnsText,
        "sample-hook-returns-sample",
        "plugin 'ReturnsText': rollout_sample_hook returned str for sample 1 (group 0); expected a Sample or None",
        core="plugin 'ReturnsText': rollout_sample_hook returned str for sample 0 (group 0); expected a Sample or None",
    ),
    Wrong(
        "the first letter of nothing",
        NeedsAnAnswer,
        "sample-hook-returns-sample",
        "plugin 'NeedsAnAnswer': rollout_sample_hook raised IndexError: string index out of range for the response ''",
    ),
    Wrong(
        "cuts tokens and leaves their log-probs",
        CutsTokens,
        "sample-hook-aligned",
        "plugin 'CutsTokens': rollout_sample_hook left a sample whose rollout_log_probs has 22 entries for a response of 17 tokens",
    ),
    Wrong(
        "makes a sample without its indices",
        MadeAnew,
        "sample-hook-keeps-identity",
        "plugin 'MadeAnew': rollout_sample_hook changed index from 1 to None",
    ),
    Wrong(
        "sends a truncated sample back",
        OnceMore,
        "sample-hook-keeps-status",
        "plugin 'OnceMore': rollout_sample_hook left a sample with the status pending",
    ),
    Wrong(
        "counts on a group in evaluations",
        TrainingOnly,
        "sample-hook-in-evaluation",
        "plugin 'TrainingOnly': rollout_sample_hook raised TypeError: unsupported operand type(s) for //: 'NoneType' and 'int' for a sample of an evaluation",
    ),
    Wrong(
        "takes the groups for samples",
        OneFlatList,
        "all-samples-runs",
        "plugin 'OneFlatList': process_all_samples raised AttributeError: 'list' object has no attribute 'response_length' for a list of three groups",
    ),
    Wrong(
        "changes rewards at the end",
        WhitensRewards,
        "all-samples-unchanged",
        "plugin 'WhitensRewards': process_all_samples changed what it was shown: sample 0 (group 0): reward 1.0 -> 0.5 (and 6 more changes)",
    ),
    Wrong(
        "throws groups out of the list",
        DropsTheDropped,
        "all-samples-keeps-groups",
        "plugin 'DropsTheDropped': process_all_samples changed the groups: the same groups, samples and order are expected afterwards",
    ),
    Wrong(
        "the mean length of no samples",
        MeanLength,
        "all-samples-odd-rollouts",
        "plugin 'MeanLength': process_all_samples raised StatisticsError: fmean requires at least one data point for a rollout without groups",
    ),
    Wrong(
        "adds up dict rewards",
        CountsRightOnes,
        "all-samples-dict-rewards",
        "plugin 'CountsRightOnes': process_all_samples raised TypeError: unsupported operand type(s) for +: 'int' and 'dict' for dict rewards under --reward-key acc",
    ),
)
