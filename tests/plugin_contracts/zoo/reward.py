"""Rewards that return something wrong, one mistake each."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

import numpy as np

from vime.api import Sample, Settings, hookimpl
from vime.testing.checks.base import RewardCase
from zoo.base import Wrong
from zoo.entries import wrong

FOUR = RewardCase("What is 2 + 2?", "4", "4", 1.0)
FIVE = RewardCase("What is 2 + 3?", "6", "5", 0.0)


def right(sample: Sample) -> float:
    """A reward without a mistake, for the wrong ones to build on."""
    if sample.label is None:
        raise ValueError(f"sample {sample.index} has no label")
    return float(sample.response.strip() == str(sample.label))


class MisspeltField:
    @hookimpl
    def custom_rm(self, sample: Any) -> float:
        return float(sample.response == sample.labels)


async def runs_a_loop_of_its_own(args: Any, sample: Sample, **kwargs: Any) -> float:
    async def ask() -> float:
        return right(sample)

    question = ask()
    try:
        return asyncio.run(question)
    finally:
        question.close()


class NoReturn:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float | None:
        answers = {1.0: 1.0}
        return answers.get(right(sample))


def minus_infinity(args: Any, sample: Sample, **kwargs: Any) -> float:
    return right(sample) or -math.inf


def not_a_number(args: Any, sample: Sample, **kwargs: Any) -> float:
    return float(np.log(right(sample)) * right(sample))


class FormattedNumber:
    @hookimpl
    def custom_rm(self, sample: Sample) -> str:
        return f"{right(sample):.1f}"


def an_array(args: Any, sample: Sample, **kwargs: Any) -> Any:
    return np.array(right(sample))


def list_for_one_sample(args: Any, sample: Sample, **kwargs: Any) -> list[float]:
    return [right(sample)]


class EmptyDict:
    @hookimpl
    def custom_rm(self, sample: Sample) -> dict[str, float]:
        scores = {"answer": right(sample), "format": float("\\boxed" in sample.response)}
        return {name: score for name, score in scores.items() if score}


class AnotherKey:
    @hookimpl
    def custom_rm(self, sample: Sample) -> dict[str, float]:
        return {"score": right(sample)}


class TextUnderTheKey:
    @hookimpl
    def custom_rm(self, sample: Sample) -> dict[str, Any]:
        return {"acc": str(right(sample)), "length": len(sample.response)}


class NumberOrDict:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float | dict[str, float]:
        if not sample.response.strip():
            return 0.0
        return {"acc": right(sample), "length": float(len(sample.response))}


class KeysThatCome:
    @hookimpl
    def custom_rm(self, sample: Sample) -> dict[str, float]:
        rewards = {"acc": right(sample)}
        if rewards["acc"]:
            rewards["bonus"] = 1.0 / (1 + len(sample.response))
        return rewards


class StripsTheResponse:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        sample.response = sample.response.strip().removesuffix(".")
        return right(sample)


class KeepsNotes:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        sample.extracted = sample.response.strip()  # pyright: ignore[reportAttributeAccessIssue]
        return right(sample)


class SetsTheReward:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        sample.reward = right(sample)
        return sample.reward


class Noisy:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        return right(sample) + random.gauss(0.0, 0.01)


class CaseMatters:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        return right(sample)


class WrongByDefault:
    class Settings(Settings):
        unit: str = " apples"
        """What follows the number."""

    def __init__(self, settings: WrongByDefault.Settings) -> None:
        self.settings = settings

    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        if sample.label is None:
            raise ValueError("no label")
        return float(sample.response == f"{sample.label}{self.settings.unit}")


class BrevityWins:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        return right(sample) + 3.0 / (1 + len(sample.response))


class AlwaysTrue:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        if sample.label is None:
            raise ValueError("no label")
        return 1.0 if "####" or sample.label in sample.response else 0.0  # noqa: SIM222


RM = "custom_rm"


ZOO: tuple[Wrong, ...] = (
    wrong(
        "a field that does not exist",
        MisspeltField,
        "reward-scores",
        "{who}: custom_rm raised AttributeError: 'Sample' object has no attribute 'labels' for every sample that was tried",
    ),
    wrong(
        "asyncio.run inside an async def",
        runs_a_loop_of_its_own,
        "reward-scores",
        "{who}: custom_rm raised RuntimeError: asyncio.run() cannot be called from a running event loop for every sample that was tried",
        hook=RM,
    ),
    wrong(
        "a path through the function without a return",
        NoReturn,
        "reward-finite",
        "{who}: custom_rm returned None as the reward for sample 2 (group 2); expected a finite number or a dict",
        core="{who}: custom_rm returned None as the reward for sample 1 (group 0); expected a finite number or a dict",
    ),
    wrong(
        "minus infinity for wrong answers",
        minus_infinity,
        "reward-finite",
        "{who}: custom_rm returned -inf as the reward for sample 2 (group 2); expected a finite number",
        core="{who}: custom_rm returned -inf as the reward for sample 1 (group 0); expected a finite number",
        hook=RM,
    ),
    wrong(
        "a logarithm of zero",
        not_a_number,
        "reward-finite",
        "{who}: custom_rm returned nan as the reward for sample 2 (group 2); expected a finite number",
        core="{who}: custom_rm returned nan as the reward for sample 1 (group 0); expected a finite number",
        hook=RM,
    ),
    wrong(
        "a formatted number",
        FormattedNumber,
        "reward-finite",
        "{who}: custom_rm returned str '1.0' as the reward for sample 1 (group 1); expected a finite number or a dict",
        core="{who}: custom_rm returned str '1.0' as the reward for sample 0 (group 0); expected a finite number or a dict",
    ),
    wrong(
        "an array of no dimension",
        an_array,
        "reward-finite",
        "{who}: custom_rm returned a ndarray of shape () as the reward for sample 1 (group 1); expected a finite number or a dict",
        core="{who}: custom_rm returned a ndarray of shape () as the reward for sample 0 (group 0); expected a finite number or a dict",
        hook=RM,
    ),
    wrong(
        "a list for a single sample",
        list_for_one_sample,
        "reward-finite",
        "{who}: custom_rm returned list [1.0] as the reward for sample 1 (group 1); expected a finite number or a dict",
        core="{who}: custom_rm returned list [1.0] as the reward for sample 0 (group 0); expected a finite number or a dict",
        hook=RM,
    ),
    wrong(
        "a dict without its zeros",
        EmptyDict,
        "reward-finite",
        "{who}: custom_rm returned an empty dict for sample 2 (group 2)",
        core="{who}: custom_rm returned an empty dict for sample 1 (group 0)",
        args={"reward_key": "answer"},
    ),
    wrong(
        "a dict without the configured key",
        AnotherKey,
        "reward-finite",
        "{who}: custom_rm returned a dict without 'acc'; it has ['score']",
        core="{who}: custom_rm returned a dict without 'acc' for sample 0 (group 0); it has ['score']",
        args={"reward_key": "acc"},
    ),
    wrong(
        "text under the reward key",
        TextUnderTheKey,
        "reward-finite",
        "{who}: custom_rm returned str '1.0' under 'acc' for sample 1 (group 1); expected a finite number or a dict",
        core="{who}: custom_rm returned str '1.0' under 'acc' for sample 0 (group 0); expected a finite number or a dict",
        args={"reward_key": "acc"},
    ),
    wrong(
        "a number for some, a dict for others",
        NumberOrDict,
        "reward-stable-keys",
        "{who}: custom_rm returned a number for sample 5 (group 5), but a dict with the keys ['acc', 'length'] for sample 3 (group 3)",
        core="{who}: custom_rm returned 0.0 for sample 2 (group 0), but --reward-key is 'acc'",
        args={"reward_key": "acc"},
    ),
    wrong(
        "a key for right answers only",
        KeysThatCome,
        "reward-stable-keys",
        (
            "{who}: custom_rm returned a dict with the keys ['acc'] for sample 4 (group 4), but a dict with the keys "
            "['acc', 'bonus'] for sample 3 (group 3)"
        ),
        core=(
            "{who}: custom_rm returned a dict with the keys ['acc'] for sample 1 (group 0), but a dict with the keys "
            "['acc', 'bonus'] for sample 0 (group 0)"
        ),
        args={"reward_key": "acc"},
    ),
    wrong(
        "strips the response in place",
        StripsTheResponse,
        "reward-unchanged",
        "{who}: custom_rm changed what it was shown: sample 4 (group 4): response '4\\n' -> '4'",
    ),
    wrong(
        "keeps notes on the sample",
        KeepsNotes,
        "reward-unchanged",
        "{who}: custom_rm changed what it was shown: sample 3 (group 3): extracted None -> '4'",
    ),
    wrong(
        "sets sample.reward",
        SetsTheReward,
        "reward-unchanged",
        "{who}: custom_rm changed what it was shown: sample 3 (group 3): reward None -> 1.0",
    ),
    wrong(
        "noise that nothing seeds",
        Noisy,
        "reward-deterministic",
        "{who}: custom_rm gives one and the same sample different rewards",
    ),
    wrong(
        "a case that it does not score as said",
        CaseMatters,
        "reward-known-answers",
        "case 2 (response 'paris'): expected 1.0, got 0.0",
        cases=(FOUR, FIVE, RewardCase("Capital of France?", "paris", "Paris", 1.0)),
    ),
    wrong(
        "a unit that the cases do not have",
        WrongByDefault,
        "reward-known-answers",
        "case 0 (response '4'): expected 1.0, got 0.0",
        cases=(FOUR, FIVE),
    ),
    wrong(
        "no answer is worth more than the right one",
        BrevityWins,
        "reward-gold-is-best",
        "{who}: custom_rm gives 3 for the response '', and 2.5 for the known answer '4'",
        cases=(RewardCase("2 + 2?", "4", "4", 2.5),),
    ),
    wrong(
        "a condition that is always true",
        AlwaysTrue,
        "reward-discriminates",
        "{who}: custom_rm gives 1 for every response: the known cases, an empty one and a senseless one alike",
        cases=(FOUR,),
    ),
)
