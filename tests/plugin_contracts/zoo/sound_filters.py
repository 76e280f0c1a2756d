"""Filters, shaping and sample hooks without a mistake, of the kinds that people write: none of them may fail a check."""

from __future__ import annotations

import copy
import random
import statistics
from typing import Any

from vime.api import DynamicFilterOutput, Sample, Status, hookimpl, rollouts


def solved(args: Any, samples: list[Sample], **kwargs: Any) -> bool:
    """Upstream's style, with a bare bool."""
    return not all(sample.get_reward_value(args) == 1 for sample in samples)


async def varied(args: Any, samples: list[Sample], **kwargs: Any) -> DynamicFilterOutput:
    """Whether the responses differ."""
    keep = len({sample.response for sample in samples}) > 1 or len(samples) == 1
    return DynamicFilterOutput(keep, None if keep else "same_response")


class NeedsSamples:
    """Refuses an empty list in so many words."""

    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> DynamicFilterOutput:
        if not samples:
            raise ValueError("a group without samples has no mean reward")
        found = [siblings[0].get_reward_value(args) for siblings in rollouts(samples) if siblings[0].reward is not None]
        mean = statistics.fmean(found) if found else 0.0
        return DynamicFilterOutput(0.0 < mean < 1.0, "too_easy" if mean >= 1.0 else "too_hard")


class OncePerPrompt:
    """Drops prompts that were solved before: has a state, and declares it."""

    def __init__(self) -> None:
        self.solved: set[str] = set()

    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> DynamicFilterOutput:
        prompts = {str(sample.prompt) for sample in samples}
        known = bool(prompts & self.solved)
        if any(sample.reward is not None and sample.get_reward_value(args) > 0 for sample in samples):
            self.solved |= prompts
        return DynamicFilterOutput(not known, "solved_before" if known else None)

    def state_dict(self) -> dict[str, Any]:
        return {"solved": sorted(self.solved)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.solved = set(state["solved"])


def too_long(args: Any, samples: list[list[Sample]], **kwargs: Any) -> None:
    for group in samples:
        for sample in group:
            if sample.response_length > 500:
                sample.remove_sample = True


class WorstHalf:
    """Keeps the better half of every group."""

    @hookimpl
    def rollout_sample_filter(self, args: Any, samples: list[list[Sample]]) -> None:
        for group in samples:
            scored = [sample for sample in group if sample.reward is not None]
            for sample in sorted(scored, key=lambda sample: -sample.get_reward_value(args))[max(1, len(scored) // 2) :]:
                sample.remove_sample = True


def pop_first(args: Any, rollout_id: int, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
    """Upstream's own buffer filter."""
    count = min(len(buffer), num_samples)
    chosen = buffer[:count]
    del buffer[:count]
    return chosen


class FinishedFirst:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return sorted(buffer, key=lambda group: -sum(sample.response_length for sample in group))[:num_samples]


class SeededShuffle:
    @hookimpl
    def buffer_filter(self, args: Any, rollout_id: int | None, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return random.Random(f"{args.rollout_seed} {rollout_id}").sample(buffer, min(num_samples, len(buffer)))


class Brevity:
    @hookimpl
    def shape_reward(self, args: Any, sample: Sample) -> float | None:
        return None if sample.status is Status.TRUNCATED else 0.1 * sample.get_reward_value(args) / (1 + sample.response_length)


class Punishment:
    @hookimpl
    async def shape_reward(self, sample: Sample) -> float:
        return -0.5 * (sample.status is Status.TRUNCATED)


class MarksThinking:
    @hookimpl
    def rollout_sample_hook(self, sample: Sample) -> None:
        sample.metadata["thinks"] = "<think>" in sample.response


async def as_a_copy(args: Any, sample: Sample, rollout_id: int, **kwargs: Any) -> Sample:
    changed = copy.copy(sample)
    changed.response = sample.response.strip()
    return changed


class Counter:
    def __init__(self) -> None:
        self.seen = 0

    @hookimpl
    def process_all_samples(self, args: Any, all_samples: list[list[Sample]], data_source: Any) -> None:
        self.seen += sum(len(group) for group in all_samples)
        for group in all_samples:
            for sample in group:
                sample.metadata["seen"] = self.seen
        data_source.metadata["seen"] = self.seen
