"""Rewards that fail on hostile data, in other places or among others, one mistake each."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from typing import Any

from vime.api import Sample, Status, hookimpl
from zoo.base import Wrong
from zoo.entries import wrong
from zoo.reward import right


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
        while time.thread_time() - started < 0.4:  # an edit distance, say
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


RM = "custom_rm"


ZOO: tuple[Wrong, ...] = (
    wrong(
        "evaluates the response",
        evaluates,
        "reward-hostile-text",
        "{who}: custom_rm takes longer than 3 s for 10**10**10",
        hook=RM,
        args={"reward_timeout": 3.0},
    ),
    wrong(
        "int() of however many digits",
        BigNumbers,
        "reward-hostile-text",
        (
            "{who}: custom_rm raised ValueError: Exceeds the limit (4300 digits) for integer string conversion: value has "
            "10000 digits; use sys.set_int_max_str_digits() to increase the limit for 10,000 digits"
        ),
    ),
    wrong(
        "a distance that may be infinite",
        Distance,
        "reward-hostile-text",
        "{who}: custom_rm returned -inf as the reward for 10,000 digits",
        core="{who}: custom_rm returned -inf as the reward for sample 3 (group 0); expected a finite number",
    ),
    wrong(
        "recursion as deep as the text",
        Recursive,
        "reward-hostile-text",
        (
            "{who}: custom_rm raised RecursionError: maximum recursion depth exceeded while calling a Python object for "
            "deeply nested brackets"
        ),
    ),
    wrong(
        "the last word of nothing",
        LastWord,
        "reward-cut-responses",
        "{who}: custom_rm raised IndexError: list index out of range for a truncated sample with an empty response",
        also=("reward-hostile-text",),
    ),
    wrong(
        "refuses truncated samples",
        CompletedOnly,
        "reward-cut-responses",
        "{who}: custom_rm raised ValueError: expected a completed sample, got truncated for a truncated sample with an empty response",
    ),
    wrong(
        "a limit by signal, whose error becomes a zero",
        Alarm,
        "reward-in-thread",
        (
            "{who}: custom_rm needs the main thread; in another one something in it raised ValueError: signal only works "
            "in main thread of the main interpreter"
        ),
        also=("reward-in-process",),
    ),
    wrong(
        "a match object in the reward",
        KeepsTheMatch,
        "reward-in-process",
        "{who}: custom_rm raised TypeError: cannot pickle 're.Match' object in a worker process, and not in this one",
        also=("reward-hostile-text",),
    ),
    wrong(
        "time.sleep in an async def",
        SleepingJudge,
        "reward-event-loop",
        "{who}: custom_rm holds up the event loop: it waits at `time.sleep(0.06)  # noqa: ASYNC251` in custom_rm",
    ),
    wrong(
        "short waits that add up",
        PollingJudge,
        "reward-event-loop",
        "{who}: custom_rm holds up the event loop: it waits at `time.sleep(0.02)  # noqa: ASYNC251` in custom_rm",
    ),
    wrong(
        "keeps the sample on self while it waits",
        OneSampleAtATime,
        "reward-at-once",
        "{who}: custom_rm gives a sample 0 among others that are scored at once, and 1 alone",
    ),
    wrong(
        "a cache by sample index",
        CacheByIndex,
        "reward-no-shared-state",
        "{who}: custom_rm gives 1 for a sample that follows another one with the same index and prompt, and 0 for it alone",
    ),
    wrong(
        "a cache by prompt that all instances share",
        SharedCache,
        "reward-no-shared-state",
        "{who}: custom_rm gives 1 for a sample that follows another one with the same index and prompt, and 0 for it alone",
    ),
    wrong(
        "a cache by response that forgets the label",
        CacheByResponse,
        "reward-no-shared-state",
        "{who}: custom_rm gives 1 for a response that it has seen with another label, and 0 for it alone",
    ),
)
