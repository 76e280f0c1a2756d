"""Rewards without a mistake, of the kinds that people write: none of them may fail a check."""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
from collections import Counter
from typing import Any

import numpy as np

from vime.api import Sample, Settings, Status, hookimpl
from vime.testing.checks.base import RewardCase


def exact(args: Any, sample: Sample, **kwargs: Any) -> float:
    """Upstream's style, synchronous."""
    if sample.label is None:
        raise ValueError(f"sample {sample.index} has no label")
    return 1.0 if sample.response.strip() == str(sample.label) else 0.0


async def boxed(args: Any, sample: Sample, **kwargs: Any) -> float:
    """Upstream's style, asynchronous."""
    if sample.label is None:
        raise ValueError("no label")
    found = re.findall(r"\\boxed\{([^{}]*)\}", sample.response)
    return 1.0 if found and found[-1] == str(sample.label) else 0.0


async def batched(args: Any, samples: list[Sample], **kwargs: Any) -> list[float]:
    """Upstream's style for groups."""
    return list(await asyncio.gather(*(boxed(args, sample) for sample in samples)))


def scores_both(args: Any, sample: Any, **kwargs: Any) -> Any:
    """A path function that takes a sample or a group."""
    return [exact(args, one) for one in sample] if isinstance(sample, list) else exact(args, sample)


SLOTS = asyncio.Semaphore(3)


async def with_few_slots(args: Any, sample: Sample, **kwargs: Any) -> float:
    """A module that limits its requests, as clients of servers do."""
    async with SLOTS:
        await asyncio.sleep(0.002)
        return exact(args, sample)


class Judge:
    """Asks a model, which takes its time; the answers differ a little."""

    def __init__(self) -> None:
        self.slots = asyncio.Semaphore(64)

    @hookimpl
    async def custom_rm(self, sample: Sample) -> float:
        async with self.slots:
            await asyncio.sleep(0.03)
        if sample.label is None:
            raise ValueError("the judge needs a reference answer")
        return 0.9 * float(str(sample.label) in sample.response) + 0.1 * random.random()


class SlowJudge:
    """Takes a second for an answer."""

    @hookimpl
    async def custom_rm(self, sample: Sample) -> float:
        await asyncio.sleep(1.0)
        return exact(None, sample)


class Parts:
    """A dict, with values that are kept for the log."""

    @hookimpl
    def custom_rm(self, sample: Sample) -> dict[str, Any]:
        if sample.label is None:
            raise ValueError("no label")
        answer = sample.response.rpartition("</think>")[2].strip()
        return {"acc": answer == str(sample.label), "format": float("</think>" in sample.response), "answer": answer[:100]}


class Rank:
    """The shortest right answer of a group gets the most; equal answers get the same."""

    @hookimpl
    def custom_rm(self, samples: list[Sample]) -> list[float]:
        lengths = sorted({len(sample.response) for sample in samples})
        return [exact(None, sample) - 0.1 * lengths.index(len(sample.response)) for sample in samples]


class Whitened:
    @hookimpl
    async def custom_rm(self, samples: list[Sample]) -> list[float]:
        rewards = [exact(None, sample) for sample in samples]
        spread = statistics.pstdev(rewards)
        return [(reward - statistics.fmean(rewards)) / (spread + 1e-6) for reward in rewards]


class Both:
    @hookimpl
    def custom_rm(self, sample: Sample | None, samples: list[Sample] | None) -> Any:
        if samples is not None:
            return [exact(None, one) for one in samples]
        return exact(None, sample) if sample else 0.0


class Words:
    """Needs metadata, and says so."""

    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        wanted = sample.metadata.get("keywords")
        if not isinstance(wanted, list) or not wanted:
            raise ValueError(f"sample {sample.index}: metadata['keywords'] has to be a list of words, got {wanted!r}")
        return sum(word in sample.response for word in wanted) / len(wanted)


WORDS = (
    RewardCase("Name two cities.", "Paris and Rome", None, 1.0, {"keywords": ["Paris", "Rome"]}),
    RewardCase("Name two cities.", "Paris", None, 0.5, {"keywords": ["Paris", "Rome"]}),
)


class LengthPenalty:
    """Looks at no label."""

    class Settings(Settings):
        most: int = 400
        """Characters that are free."""

    def __init__(self, settings: LengthPenalty.Settings) -> None:
        self.settings = settings

    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        return -max(0, len(sample.response) - self.settings.most) / 1000


class Overlap:
    """F1 over words, as for question answering."""

    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        if not isinstance(sample.label, str):
            raise TypeError(f"the label has to be text, got {type(sample.label).__name__}")
        said, wanted = Counter(sample.response.lower().split()), Counter(sample.label.lower().split())
        common = sum((said & wanted).values())
        return 2 * common / (said.total() + wanted.total()) if common else 0.0


class ValidJson:
    @hookimpl
    def custom_rm(self, sample: Sample) -> bool:
        try:
            json.loads(sample.response)
        except (ValueError, RecursionError):
            return False
        return True


class Tolerance:
    """A number within a tolerance; a response that is no number is a wrong answer."""

    @hookimpl
    def custom_rm(self, sample: Sample) -> Any:
        expected = float(sample.label)
        found = re.findall(r"-?\d{1,15}(?:\.\d{1,15})?", sample.response[-200:])
        return np.float32(bool(found) and abs(float(found[-1]) - expected) < 1e-3)


class NumberOrText:
    """Compares as numbers where both are, and as texts otherwise."""

    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        if sample.label is None:
            raise ValueError("no label")
        try:
            return float(float(sample.response) == float(sample.label))
        except (TypeError, ValueError):
            return float(sample.response.strip() == str(sample.label))


class Curriculum:
    """Keeps a state, and declares it."""

    def __init__(self) -> None:
        self.mean = 0.0

    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        reward = exact(None, sample)
        self.mean += 0.1 * (reward - self.mean)
        return reward - self.mean

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"]


class Verbose:
    """Truncated answers are worth less than wrong ones."""

    @hookimpl
    async def custom_rm(self, sample: Sample) -> float:
        return -1.0 if sample.status is Status.TRUNCATED else exact(None, sample)
