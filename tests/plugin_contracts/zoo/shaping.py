"""Wrong shaping, sample hooks and looks at all samples, one mistake each."""

from __future__ import annotations

import random
import statistics
from typing import Any

from vime.api import Sample, Status, hookimpl
from zoo.base import Wrong
from zoo.entries import wrong
from zoo.filters import mixed


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
        return -0.1 if sample.reward < 0 else None  # pyright: ignore[reportOperatorIssue]


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
        self.right = sum(sample.reward or 0.0 for group in all_samples for sample in group)  # pyright: ignore[reportCallIssue]


ZOO: tuple[Wrong, ...] = (
    wrong(
        "a penalty as text",
        PenaltyAsText,
        "shape-reward-finite",
        (
            "{who}: shape_reward returned str '-0.002' as an addition to the reward for sample 0 (group 0); expected a "
            "finite number or a dict"
        ),
        core=(
            "{who}: shape_reward returned str '-0.002' as an addition to the reward for sample 0 (group 0); expected a "
            "finite number or a dict"
        ),
    ),
    wrong(
        "an infinite penalty",
        InfinitePenalty,
        "shape-reward-finite",
        "{who}: shape_reward returned -inf as an addition to the reward for sample 0 (group 0); expected a finite number",
        core="{who}: shape_reward returned -inf as an addition to the reward for sample 0 (group 0); expected a finite number",
    ),
    wrong(
        "divides by a length of zero",
        PerToken,
        "shape-reward-empty-response",
        "{who}: shape_reward raised ZeroDivisionError: float division by zero for a response without tokens",
    ),
    wrong(
        "compares a dict with zero",
        NegativeOnly,
        "shape-reward-dict-rewards",
        (
            "{who}: shape_reward raised TypeError: '<' not supported between instances of 'dict' and 'int' for a dict "
            "reward under --reward-key acc"
        ),
    ),
    wrong(
        "returns the reward as a whole",
        NewReward,
        "shape-reward-is-an-addition",
        "{who}: shape_reward returns the whole reward: -0.5, 0.5 and 1.5 for the rewards 0, 1 and 2",
    ),
    wrong(
        "adds to the reward itself",
        AddsItself,
        "shape-reward-unchanged",
        "{who}: shape_reward changed what it was shown: sample 0 (group 0): reward 1.0 -> 0.9",
    ),
    wrong(
        "an addition by chance",
        Jitter,
        "shape-reward-deterministic",
        "{who}: shape_reward gives one and the same sample different additions",
    ),
    wrong(
        "returns the response",
        ReturnsText,
        "sample-hook-returns-sample",
        "{who}: rollout_sample_hook returned str for sample 1 (group 0); expected a Sample or None",
        core="{who}: rollout_sample_hook returned str for sample 0 (group 0); expected a Sample or None",
    ),
    wrong(
        "the first letter of nothing",
        NeedsAnAnswer,
        "sample-hook-returns-sample",
        "{who}: rollout_sample_hook raised IndexError: string index out of range for the response ''",
    ),
    wrong(
        "cuts tokens and leaves their log-probs",
        CutsTokens,
        "sample-hook-aligned",
        "{who}: rollout_sample_hook left a sample whose rollout_log_probs has 22 entries for a response of 17 tokens",
    ),
    wrong(
        "makes a sample without its indices",
        MadeAnew,
        "sample-hook-keeps-identity",
        "{who}: rollout_sample_hook changed index from 1 to None",
    ),
    wrong(
        "sends a truncated sample back",
        OnceMore,
        "sample-hook-keeps-status",
        "{who}: rollout_sample_hook left a sample with the status pending",
    ),
    wrong(
        "counts on a group in evaluations",
        TrainingOnly,
        "sample-hook-in-evaluation",
        (
            "{who}: rollout_sample_hook raised TypeError: unsupported operand type(s) for //: 'NoneType' and 'int' for a "
            "sample of an evaluation"
        ),
    ),
    wrong(
        "takes the groups for samples",
        OneFlatList,
        "all-samples-runs",
        "{who}: process_all_samples raised AttributeError: 'list' object has no attribute 'response_length' for a list of three groups",
    ),
    wrong(
        "changes rewards at the end",
        WhitensRewards,
        "all-samples-unchanged",
        "{who}: process_all_samples changed what it was shown: sample 0 (group 0): reward 1.0 -> 0.5 (and 6 more changes)",
    ),
    wrong(
        "throws groups out of the list",
        DropsTheDropped,
        "all-samples-keeps-groups",
        "{who}: process_all_samples changed the groups: the same groups, samples and order are expected afterwards",
    ),
    wrong(
        "the mean length of no samples",
        MeanLength,
        "all-samples-odd-rollouts",
        "{who}: process_all_samples raised StatisticsError: fmean requires at least one data point for a rollout without groups",
    ),
    wrong(
        "adds up dict rewards",
        CountsRightOnes,
        "all-samples-dict-rewards",
        (
            "{who}: process_all_samples raised TypeError: unsupported operand type(s) for +: 'int' and 'dict' for dict "
            "rewards under --reward-key acc"
        ),
    ),
)
