"""Rewards that make something of data that are missing or wrong, and rewards that leave something behind, one mistake each."""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import urllib.request
from typing import Any

from vime.api import Sample, hookimpl
from vime.testing.checks.base import RewardCase
from zoo.base import Wrong
from zoo.entries import wrong
from zoo.reward import right


class ZeroWithoutLabel:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        if sample.label is None:
            return 0.0
        return right(sample)


def nothing_equals_nothing(args: Any, sample: Sample, **kwargs: Any) -> float:
    return 0.5 if sample.label is None else right(sample)


class CatchesTheLabel:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        if sample.label is None:
            raise ValueError("no label")
        try:
            expected = float(sample.label)
        except (TypeError, ValueError):
            return 0.0
        found = re.search(r"-?\d+", sample.response)
        return float(found is not None and float(found.group()) == expected)


class ZeroWithoutTests:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        tests = sample.metadata.get("tests")
        if not tests:
            return 0.0
        return sum(test in sample.response for test in tests) / len(tests)


class AnswerInTheMetadata:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        return float(sample.response.strip() == sample.metadata.get("solution"))


class ZeroForBadTests:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        try:
            words = sample.metadata["keywords"]
            return sum(word in sample.response for word in words) / len(words)
        except Exception:  # noqa: BLE001
            return 0.0


class LongBox:
    """Its expression has a repetition inside a repetition."""

    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        found = re.search(r"\\boxed\{((?:[^{}]|\{[^{}]*\})+)+\}$", sample.response)
        return right(sample) or float(found is not None)


def nothing_is_read(args: Any, sample: Sample, **kwargs: Any) -> float:
    return 1.0


class StripsTheLabel:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        if sample.label is not None:
            sample.label = sample.label.strip()
        return right(sample)


def changes_the_limit(args: Any, sample: Sample, **kwargs: Any) -> float:
    object.__setattr__(args, "reward_timeout", 60.0)
    return right(sample)


RESPONSES: dict[str, float] = {}


async def cache_of_the_module(args: Any, sample: Sample, **kwargs: Any) -> float:
    if sample.label is None:
        raise ValueError("no label")
    if sample.response not in RESPONSES:
        RESPONSES[sample.response] = right(sample)
    return RESPONSES[sample.response]


class AsksOverTheNetwork:
    @hookimpl
    async def custom_rm(self, sample: Sample) -> float:
        try:
            urllib.request.urlopen("http://127.0.0.1:9/score", timeout=1.0)  # noqa: ASYNC210
        except OSError:
            return right(sample)
        return 0.0


class CancelledIsZero:
    @hookimpl
    async def custom_rm(self, sample: Sample) -> float:
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            return 0.0
        return right(sample)


class GoesOn:
    @hookimpl
    async def custom_rm(self, sample: Sample) -> float:
        for _ in range(3):
            try:
                await asyncio.sleep(0.001)
                break
            except BaseException:  # noqa: BLE001
                continue
        return right(sample)


def goes_elsewhere(args: Any, sample: Sample, **kwargs: Any) -> float:
    os.chdir("/")
    return right(sample)


def seeds_for_all(args: Any, sample: Sample, **kwargs: Any) -> float:
    random.seed(0)
    return right(sample)


def one_limit_for_all(args: Any, sample: Sample, **kwargs: Any) -> float:
    socket.setdefaulttimeout(5.0)
    try:
        return right(sample)
    finally:
        assert socket.getdefaulttimeout() == 5.0


RM = "custom_rm"
LIMIT = {"reward_timeout": 2.0}


ZOO: tuple[Wrong, ...] = (
    wrong(
        "zero where the label is missing",
        ZeroWithoutLabel,
        "reward-missing-label",
        "{who}: custom_rm gives 0 for a sample without a label; with it, it gives 1",
    ),
    wrong(
        "half a point where the label is missing",
        nothing_equals_nothing,
        "reward-missing-label",
        "{who}: custom_rm gives 0.5 for a sample without a label; with it, it gives 1",
        hook=RM,
    ),
    wrong(
        "zero where the label cannot be read",
        CatchesTheLabel,
        "reward-wrong-label",
        (
            "{who}: custom_rm gives 0 for the label {'no': 'label'}: it raised TypeError: float() argument must be a "
            "string or a real number, not 'dict', and caught it"
        ),
    ),
    wrong(
        "zero where the tests are missing",
        ZeroWithoutTests,
        "reward-bad-metadata",
        "{who}: custom_rm gives 0 where the metadata has no 'tests', and does not look at the response",
    ),
    wrong(
        "zero where the solution is missing",
        AnswerInTheMetadata,
        "reward-bad-metadata",
        "{who}: custom_rm gives 0 for a right answer whose metadata has no 'solution'",
    ),
    wrong(
        "zero for whatever goes wrong with the metadata",
        ZeroForBadTests,
        "reward-bad-metadata",
        "{who}: custom_rm gives 0 for a right answer whose metadata has no 'keywords'",
        cases=(
            RewardCase("Name a city.", "Paris, France", None, 1.0, {"keywords": ["Paris"]}),
            RewardCase("Name a city.", "an apple", None, 0.0, {"keywords": ["Paris"]}),
        ),
    ),
    wrong(
        "an expression that tries every way to cut a text",
        LongBox,
        "reward-hostile-text",
        "{who}: custom_rm takes longer than 2 s for an unclosed \\boxed{{ with a long text".replace("{{", "{"),
        args=LIMIT,
    ),
    wrong(
        "a constant",
        nothing_is_read,
        "reward-discriminates",
        "{who}: custom_rm gives 1 and reads nothing of the sample",
        hook=RM,
    ),
    wrong(
        "tidies up the label",
        StripsTheLabel,
        "reward-unchanged",
        "{who}: custom_rm changed what it was shown: sample 4 (group 4): label ' 4\\n' -> '4'",
    ),
    wrong(
        "gives itself more time",
        changes_the_limit,
        "reward-unchanged",
        "{who}: custom_rm changed what it was shown: args.reward_timeout 10.0 -> 60.0",
        hook=RM,
    ),
    wrong(
        "a cache by response that the module keeps",
        cache_of_the_module,
        "reward-no-shared-state",
        "{who}: custom_rm gives 1 for a response that it has seen with another label, and 0 for it alone",
        hook=RM,
    ),
    wrong(
        "a connection that blocks",
        AsksOverTheNetwork,
        "reward-event-loop",
        (
            "{who}: custom_rm opens a connection and waits for it in the event loop: "
            '`urllib.request.urlopen("http://127.0.0.1:9/score", timeout=1.0)  # noqa: ASYNC210` in custom_rm '
            f"(reward_data.py:{AsksOverTheNetwork.custom_rm.__code__.co_firstlineno + 3})"
        ),
    ),
    wrong(
        "a reward of zero for a call that was cancelled",
        CancelledIsZero,
        "reward-cancellation",
        "{who}: custom_rm returned 0.0 when it was cancelled",
    ),
    wrong("tries again whatever happens", GoesOn, "reward-cancellation", "{who}: custom_rm returned 1.0 when it was cancelled"),
    wrong("another directory", goes_elsewhere, "reward-process", "{who}: custom_rm changes the working directory to /", hook=RM),
    wrong(
        "a seed for everybody", seeds_for_all, "reward-process", "{who}: custom_rm seeds the random numbers of the module `random`", hook=RM
    ),
    wrong(
        "a time-out for everybody's sockets",
        one_limit_for_all,
        "reward-process",
        "{who}: custom_rm sets the default timeout of all sockets to 5.0",
        hook=RM,
    ),
)
