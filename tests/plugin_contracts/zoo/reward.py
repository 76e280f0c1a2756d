"""Wrong rewards, one mistake each."""

from __future__ import annotations

import asyncio
import math
import random
import re
import signal
import statistics
import time
from typing import Any

import numpy as np

from vime.api import Sample, Settings, Status, hookimpl
from vime.testing.checks.base import RewardCase
from zoo.base import Wrong

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
        if right(sample):
            return 1.0


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
        sample.metadata["answer"] = sample.response.strip()
        return right(sample)


class SetsTheReward:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        sample.reward = right(sample)
        return sample.reward


class SortsTheGroup:
    @hookimpl
    def custom_rm(self, samples: list[Sample]) -> list[float]:
        samples.sort(key=lambda sample: len(sample.response))
        return [right(sample) for sample in samples]


class Noisy:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        return right(sample) + random.gauss(0.0, 0.01)


class CaseMatters:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        return right(sample)


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


class ZeroForBadTests:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        try:
            words = sample.metadata["keywords"]
            return sum(word in sample.response for word in words) / len(words)
        except Exception:  # noqa: BLE001
            return 0.0


def evaluates(args: Any, sample: Sample, **kwargs: Any) -> float:
    if sample.label is None:
        raise ValueError("no label")
    try:
        return float(str(eval(sample.response[:5000], {})) == str(sample.label))
    except (Exception, MemoryError):  # noqa: BLE001
        return 0.0


class BigNumbers:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        if sample.label is None:
            raise ValueError("no label")
        numbers = re.findall(r"\d+", sample.response)
        return float(bool(numbers) and int(numbers[-1]) == int(sample.label))


class Distance:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        if sample.label is None:
            raise ValueError("no label")
        try:
            answer = float(sample.response)
        except ValueError:
            return -100.0
        return -abs(answer - float(sample.label))


class Recursive:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        return right(sample) - 0.01 * self.depth(sample.response)

    def depth(self, text: str) -> int:
        start, end = text.find("["), text.rfind("]")
        return 1 + self.depth(text[start + 1 : end]) if 0 <= start < end else 0


class LastWord:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        if sample.label is None:
            raise ValueError("no label")
        return float(sample.response.split()[-1] == str(sample.label))


class CompletedOnly:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        if sample.status is not Status.COMPLETED:
            raise ValueError(f"expected a completed sample, got {sample.status.value}")
        return right(sample)


class Alarm:
    """The time limit of a well-known grader: by signal."""

    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        if sample.label is None:
            raise ValueError("no label")
        try:
            signal.signal(signal.SIGALRM, self.give_up)
            signal.alarm(5)
            try:
                return right(sample)
            finally:
                signal.alarm(0)
        except Exception:  # noqa: BLE001
            return 0.0

    def give_up(self, *_: object) -> None:
        raise TimeoutError


class KeepsTheMatch:
    @hookimpl
    def custom_rm(self, sample: Sample) -> dict[str, Any]:
        return {"acc": right(sample), "match": re.search(r"", sample.response)}


class SleepingJudge:
    @hookimpl
    async def custom_rm(self, sample: Sample) -> float:
        time.sleep(0.06)  # noqa: ASYNC251
        return right(sample)


class PollingJudge:
    @hookimpl
    async def custom_rm(self, sample: Sample) -> float:
        await asyncio.sleep(0.001)
        time.sleep(0.02)  # noqa: ASYNC251
        return right(sample)


class BusyJudge:
    @hookimpl
    async def custom_rm(self, sample: Sample) -> float:
        return right(sample) * self.compare()

    def compare(self) -> float:
        started = time.thread_time()
        while time.thread_time() - started < 0.13:  # an edit distance, say
            pass
        return 1.0


class OneSampleAtATime:
    @hookimpl
    async def custom_rm(self, sample: Sample) -> float:
        self.sample = sample
        await asyncio.sleep(0.002)
        return right(self.sample)


class CacheByIndex:
    def __init__(self) -> None:
        self.cache: dict[int | None, float] = {}

    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        if sample.label is None:
            raise ValueError("no label")
        if sample.index not in self.cache:
            self.cache[sample.index] = right(sample)
        return self.cache[sample.index]


class SharedCache:
    """The prompt says which question it is; what was answered to it is not the same every time."""

    cache: dict[str, float] = {}  # noqa: RUF012

    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        if sample.label is None:
            raise ValueError("no label")
        return self.cache.setdefault(str(sample.prompt), right(sample))


class CacheByResponse:
    def __init__(self) -> None:
        self.cache: dict[str, float] = {}

    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        if sample.label is None:
            raise ValueError("no label")
        if sample.response not in self.cache:
            self.cache[sample.response] = right(sample)
        return self.cache[sample.response]


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


RM = "custom_rm"
ZOO: tuple[Wrong, ...] = (
    Wrong(
        "a field that does not exist",
        MisspeltField,
        "reward-scores",
        "plugin 'MisspeltField': custom_rm raised AttributeError: 'Sample' object has no attribute 'labels' for every sample that was tried",
    ),
    Wrong(
        "asyncio.run inside an async def",
        runs_a_loop_of_its_own,
        "reward-scores",
        "path function zoo.reward:runs_a_loop_of_its_own: custom_rm raised RuntimeError: asyncio.run() cannot be called from a running event loop for every sample that was tried",
        hook=RM,
    ),
    Wrong(
        "a path through the function without a return",
        NoReturn,
        "reward-finite",
        "plugin 'NoReturn': custom_rm returned None as the reward for sample 2 (group 2); expected a finite number or a dict",
        core="plugin 'NoReturn': custom_rm returned None as the reward for sample 1 (group 0); expected a finite number or a dict",
    ),
    Wrong(
        "minus infinity for wrong answers",
        minus_infinity,
        "reward-finite",
        "path function zoo.reward:minus_infinity: custom_rm returned -inf as the reward for sample 2 (group 2); expected a finite number",
        core="path function zoo.reward:minus_infinity: custom_rm returned -inf as the reward for sample 1 (group 0); expected a finite number",
        hook=RM,
    ),
    Wrong(
        "a logarithm of zero",
        not_a_number,
        "reward-finite",
        "path function zoo.reward:not_a_number: custom_rm returned nan as the reward for sample 2 (group 2); expected a finite number",
        core="path function zoo.reward:not_a_number: custom_rm returned nan as the reward for sample 1 (group 0); expected a finite number",
        hook=RM,
    ),
    Wrong(
        "a formatted number",
        FormattedNumber,
        "reward-finite",
        "plugin 'FormattedNumber': custom_rm returned str '1.0' as the reward for sample 1 (group 1); expected a finite number or a dict",
        core="plugin 'FormattedNumber': custom_rm returned str '1.0' as the reward for sample 0 (group 0); expected a finite number or a dict",
    ),
    Wrong(
        "an array of no dimension",
        an_array,
        "reward-finite",
        "path function zoo.reward:an_array: custom_rm returned a ndarray of shape () as the reward for sample 1 (group 1); expected a finite number or a dict",
        core="path function zoo.reward:an_array: custom_rm returned a ndarray of shape () as the reward for sample 0 (group 0); expected a finite number or a dict",
        hook=RM,
    ),
    Wrong(
        "a list for a single sample",
        list_for_one_sample,
        "reward-finite",
        "path function zoo.reward:list_for_one_sample: custom_rm returned list [1.0] as the reward for sample 1 (group 1); expected a finite number or a dict",
        core="path function zoo.reward:list_for_one_sample: custom_rm returned list [1.0] as the reward for sample 0 (group 0); expected a finite number or a dict",
        hook=RM,
    ),
    Wrong(
        "a dict without its zeros",
        EmptyDict,
        "reward-finite",
        "plugin 'EmptyDict': custom_rm returned an empty dict for sample 2 (group 2)",
        core="plugin 'EmptyDict': custom_rm returned an empty dict for sample 1 (group 0)",
        args={"reward_key": "answer"},
    ),
    Wrong(
        "a dict without the configured key",
        AnotherKey,
        "reward-finite",
        "plugin 'AnotherKey': custom_rm returned a dict without 'acc'; it has ['score']",
        core="plugin 'AnotherKey': custom_rm returned a dict without 'acc' for sample 0 (group 0); it has ['score']",
        args={"reward_key": "acc"},
    ),
    Wrong(
        "text under the reward key",
        TextUnderTheKey,
        "reward-finite",
        "plugin 'TextUnderTheKey': custom_rm returned str '1.0' under 'acc' for sample 1 (group 1); expected a finite number or a dict",
        core="plugin 'TextUnderTheKey': custom_rm returned str '1.0' under 'acc' for sample 0 (group 0); expected a finite number or a dict",
        args={"reward_key": "acc"},
    ),
    Wrong(
        "lists in the list of a group",
        ListsInTheList,
        "reward-finite",
        "plugin 'ListsInTheList': custom_rm returned list [1.0] as the reward for sample 1 (group 1); expected a finite number or a dict",
        core="plugin 'ListsInTheList': custom_rm returned list [1.0] as the reward for sample 0 (group 0); expected a finite number or a dict",
        args={"group_rm": True},
    ),
    Wrong(
        "coroutines in the list of a group",
        NotAwaited,
        "reward-finite",
        "plugin 'NotAwaited': custom_rm returned a coroutine in the place of a reward",
        core="plugin 'NotAwaited': custom_rm returned coroutine <coroutine object NotAwaited.one at 0x7f2e3a3eda40> as the reward for sample 0 (group 0); expected a finite number or a dict",
        args={"group_rm": True},
    ),
    Wrong(
        "a number for some, a dict for others",
        NumberOrDict,
        "reward-stable-keys",
        "plugin 'NumberOrDict': custom_rm returned a number for sample 5 (group 5), but a dict with the keys ['acc', 'length'] for sample 3 (group 3)",
        core="plugin 'NumberOrDict': custom_rm returned 0.0 for sample 2 (group 0), but --reward-key is 'acc'",
        args={"reward_key": "acc"},
    ),
    Wrong(
        "a key for right answers only",
        KeysThatCome,
        "reward-stable-keys",
        "plugin 'KeysThatCome': custom_rm returned a dict with the keys ['acc'] for sample 4 (group 4), but a dict with the keys ['acc', 'bonus'] for sample 3 (group 3)",
        core="plugin 'KeysThatCome': custom_rm returned a dict with the keys ['acc'] for sample 1 (group 0), but a dict with the keys ['acc', 'bonus'] for sample 0 (group 0)",
        args={"reward_key": "acc"},
    ),
    Wrong(
        "strips the response in place",
        StripsTheResponse,
        "reward-unchanged",
        "plugin 'StripsTheResponse': custom_rm changed what it was shown: sample 4 (group 4): response 'I do not know.' -> 'I do not know'",
    ),
    Wrong(
        "keeps notes in the metadata",
        KeepsNotes,
        "reward-unchanged",
        "plugin 'KeepsNotes': custom_rm changed what it was shown: sample 3 (group 3): metadata {} -> {'answer': '4'}",
    ),
    Wrong(
        "sets sample.reward",
        SetsTheReward,
        "reward-unchanged",
        "plugin 'SetsTheReward': custom_rm changed what it was shown: sample 3 (group 3): reward None -> 1.0",
    ),
    Wrong(
        "sorts the group in place",
        SortsTheGroup,
        "reward-unchanged",
        "plugin 'SortsTheGroup': custom_rm changed the list of samples that it was shown: its order or its members",
        also=("reward-group-order",),
    ),
    Wrong(
        "noise that nothing seeds",
        Noisy,
        "reward-deterministic",
        "plugin 'Noisy': custom_rm gives one and the same sample different rewards",
    ),
    Wrong(
        "a case that it does not score as said",
        CaseMatters,
        "reward-known-answers",
        "case 2 (response 'paris'): expected 1.0, got 0.0",
        cases=(FOUR, FIVE, RewardCase("Capital of France?", "paris", "Paris", 1.0)),
    ),
    Wrong(
        "a unit that the cases do not have",
        WrongByDefault,
        "reward-known-answers",
        "case 0 (response '4'): expected 1.0, got 0.0",
        cases=(FOUR, FIVE),
    ),
    Wrong(
        "no answer is worth more than the right one",
        BrevityWins,
        "reward-gold-is-best",
        "plugin 'BrevityWins': custom_rm gives 3 for the response '', and 2.5 for the known answer '4'",
        cases=(RewardCase("2 + 2?", "4", "4", 2.5),),
    ),
    Wrong(
        "a condition that is always true",
        AlwaysTrue,
        "reward-discriminates",
        "plugin 'AlwaysTrue': custom_rm gives 1 for every response: the known cases, an empty one and a senseless one alike",
        cases=(FOUR,),
    ),
    Wrong(
        "zero where the label is missing",
        ZeroWithoutLabel,
        "reward-missing-label",
        "plugin 'ZeroWithoutLabel': custom_rm gives 0 for a sample without a label; with it, it gives 1",
    ),
    Wrong(
        "half a point where the label is missing",
        nothing_equals_nothing,
        "reward-missing-label",
        "path function zoo.reward:nothing_equals_nothing: custom_rm gives 0.5 for a sample without a label; with it, it gives 1",
        hook=RM,
    ),
    Wrong(
        "zero where the label cannot be read",
        CatchesTheLabel,
        "reward-wrong-label",
        "plugin 'CatchesTheLabel': custom_rm gives 0 for the label {'no': 'label'}: it raised TypeError: float() argument must be a string or a real number, not 'dict', and caught it",
    ),
    Wrong(
        "zero where the tests are missing",
        ZeroWithoutTests,
        "reward-bad-metadata",
        "plugin 'ZeroWithoutTests': custom_rm gives 0 where the metadata has no 'tests', and does not look at the response",
    ),
    Wrong(
        "zero for whatever goes wrong with the metadata",
        ZeroForBadTests,
        "reward-bad-metadata",
        "plugin 'ZeroForBadTests': custom_rm gives 0 for a right answer whose metadata has no 'keywords'",
        cases=(
            RewardCase("Name a city.", "Paris, France", None, 1.0, {"keywords": ["Paris"]}),
            RewardCase("Name a city.", "an apple", None, 0.0, {"keywords": ["Paris"]}),
        ),
    ),
    Wrong(
        "evaluates the response",
        evaluates,
        "reward-hostile-text",
        "path function zoo.reward:evaluates: custom_rm takes longer than 3 s for 10**10**10",
        hook=RM,
        args={"reward_timeout": 3.0},
    ),
    Wrong(
        "int() of however many digits",
        BigNumbers,
        "reward-hostile-text",
        "plugin 'BigNumbers': custom_rm raised ValueError: Exceeds the limit (4300 digits) for integer string conversion: value has 10000 digits; use sys.set_int_max_str_digits() to increase the limit for 10,000 digits",
    ),
    Wrong(
        "a distance that may be infinite",
        Distance,
        "reward-hostile-text",
        "plugin 'Distance': custom_rm returned -inf as the reward for 10,000 digits",
        core="plugin 'Distance': custom_rm returned -inf as the reward for sample 3 (group 0); expected a finite number",
    ),
    Wrong(
        "recursion as deep as the text",
        Recursive,
        "reward-hostile-text",
        "plugin 'Recursive': custom_rm raised RecursionError: maximum recursion depth exceeded while calling a Python object for deeply nested brackets",
    ),
    Wrong(
        "the last word of nothing",
        LastWord,
        "reward-cut-responses",
        "plugin 'LastWord': custom_rm raised IndexError: list index out of range for a truncated sample with an empty response",
        also=("reward-hostile-text",),
    ),
    Wrong(
        "refuses truncated samples",
        CompletedOnly,
        "reward-cut-responses",
        "plugin 'CompletedOnly': custom_rm raised ValueError: expected a completed sample, got truncated for a truncated sample with an empty response",
    ),
    Wrong(
        "a limit by signal, whose error becomes a zero",
        Alarm,
        "reward-in-thread",
        "plugin 'Alarm': custom_rm needs the main thread; in another one something in it raised ValueError: signal only works in main thread of the main interpreter",
        also=("reward-in-process",),
    ),
    Wrong(
        "a match object in the reward",
        KeepsTheMatch,
        "reward-in-process",
        "plugin 'KeepsTheMatch': custom_rm raised TypeError: cannot pickle 're.Match' object in a worker process, and not in this one",
        also=("reward-hostile-text",),
    ),
    Wrong(
        "time.sleep in an async def",
        SleepingJudge,
        "reward-event-loop",
        "plugin 'SleepingJudge': custom_rm holds up the event loop: it waits at `time.sleep(0.06)  # noqa: ASYNC251` in custom_rm",
    ),
    Wrong(
        "short waits that add up",
        PollingJudge,
        "reward-event-loop",
        "plugin 'PollingJudge': custom_rm holds up the event loop: it waits at `time.sleep(0.02)  # noqa: ASYNC251` in custom_rm",
    ),
    Wrong(
        "heavy work in an async def",
        BusyJudge,
        "reward-event-loop",
        "plugin 'BusyJudge': custom_rm holds up the event loop: it computes in compare",
    ),
    Wrong(
        "keeps the sample on self while it waits",
        OneSampleAtATime,
        "reward-at-once",
        "plugin 'OneSampleAtATime': custom_rm gives a sample 0 among others that are scored at once, and 1 alone",
    ),
    Wrong(
        "a cache by sample index",
        CacheByIndex,
        "reward-no-shared-state",
        "plugin 'CacheByIndex': custom_rm gives 1 for a sample that follows another one with the same index and prompt, and 0 for it alone",
    ),
    Wrong(
        "a cache by prompt that all instances share",
        SharedCache,
        "reward-no-shared-state",
        "plugin 'SharedCache': custom_rm gives 1 for a sample that follows another one with the same index and prompt, and 0 for it alone",
    ),
    Wrong(
        "a cache by response that forgets the label",
        CacheByResponse,
        "reward-no-shared-state",
        "plugin 'CacheByResponse': custom_rm gives 1 for a response that it has seen with another label, and 0 for it alone",
    ),
    Wrong(
        "equal answers count once",
        one_reward_per_answer,
        "reward-group-shape",
        "path function zoo.reward:one_reward_per_answer: custom_rm returned a list of the wrong length for group 0 (samples 49, 50, 51, 52, 53, 54, 55, 56): expected 8 rewards, got 7",
        core="path function zoo.reward:one_reward_per_answer: custom_rm returned a list of the wrong length for group 0 (samples 0, 1, 2, 3, 4): expected 5 rewards, got 4",
        hook=RM,
        args={"group_rm": True},
    ),
    Wrong(
        "an array for a group",
        array_for_the_group,
        "reward-group-shape",
        "path function zoo.reward:array_for_the_group: custom_rm returned ndarray for group 0 (samples 21, 22, 23, 24); expected a list of 4 rewards",
        core="path function zoo.reward:array_for_the_group: custom_rm returned ndarray for group 0 (samples 0, 1, 2, 3, 4); expected a list of 5 rewards",
        hook=RM,
        args={"group_rm": True},
    ),
    Wrong(
        "a dict by index for a group",
        DictByIndex,
        "reward-group-shape",
        "plugin 'DictByIndex': custom_rm returned dict for group 0 (samples 21, 22, 23, 24); expected a list of 4 rewards",
        core="plugin 'DictByIndex': custom_rm returned dict for group 0 (samples 0, 1, 2, 3, 4); expected a list of 5 rewards",
        args={"group_rm": True},
    ),
    Wrong(
        "one number for a group",
        OneForAll,
        "reward-group-shape",
        "plugin 'OneForAll': custom_rm returned float for group 0 (samples 21, 22, 23, 24); expected a list of 4 rewards",
        core="plugin 'OneForAll': custom_rm returned float for group 0 (samples 0, 1, 2, 3, 4); expected a list of 5 rewards",
        args={"group_rm": True},
    ),
    Wrong(
        "the deviation of a single reward",
        Deviation,
        "reward-group-shape",
        "plugin 'Deviation': custom_rm raised StatisticsError: stdev requires at least two data points for a group of 1",
    ),
    Wrong(
        "sorted by reward",
        BestFirst,
        "reward-group-order",
        "plugin 'BestFirst': custom_rm gives a sample 0 in the reversed group, and 1 in the group as it was",
    ),
    Wrong(
        "in the order of completion",
        as_they_come,
        "reward-group-order",
        "path function zoo.reward:as_they_come: custom_rm gives a sample 0 in the reversed group, and 1 in the group as it was",
        hook=RM,
        args={"group_rm": True},
    ),
    Wrong(
        "a group scores twice as much",
        TwoOpinions,
        "reward-group-agrees",
        "plugin 'TwoOpinions': custom_rm gives 2 for the response '4' in a group, and 1 on its own",
    ),
    Wrong(
        "the size of a group out of the configuration",
        as_many_as_configured,
        "reward-group-with-failed",
        "path function zoo.reward:as_many_as_configured: custom_rm raised IndexError: list index out of range for a group of 4 of which one failed",
        hook=RM,
    ),
)
