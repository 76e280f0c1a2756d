"""The checks of shape_reward: a finite addition or None, for every scored sample."""

from __future__ import annotations

import asyncio
from typing import Any

from vime.errors import VimeError
from vime.plugins.loading import describe
from vime.rollout.reward_guard import check_number
from vime.rollout.unchanged import Snapshot
from vime.sample import Sample, Status
from vime.testing.checks.base import Bench, Check, fail, skip
from vime.testing.checks.reward_bench import same
from vime.testing.factories import finished_sample

EMPTY_HINT = "a response may have no tokens at all: sample.response_length may be 0"


class ShapingBench:
    """A freshly loaded shape_reward, called as the scorer calls it."""

    def __init__(self, bench: Bench, **overrides: Any) -> None:
        self.config = bench.config(**overrides)
        self.function = bench.function(bench.load(self.config))
        self.who = f"{self.function.label}: shape_reward"

    def add(self, sample: Sample) -> float | None:
        """What is added to the reward of this sample, checked as the run does."""
        value = asyncio.run(self.function.acall(args=self.config, sample=sample))
        return None if value is None else check_number(value, self.who, "as an addition to the reward", sample)

    def attempt(self, sample: Sample, what: str, hint: str) -> float | None:
        """The same; fails, naming what kind of sample it was, for an exception that is not the run's."""
        try:
            return self.add(sample)
        except VimeError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises
            fail(f"{self.who} raised {describe(error)} for {what}", hint)

    def usable(self) -> ShapingBench:
        """Skip the check where an ordinary sample gets no valid addition, which shape-reward-finite reports."""
        try:
            for sample in _samples():
                self.add(sample)
        except Exception:  # noqa: BLE001 - whatever a plugin raises
            skip("an ordinary sample gets no valid addition")
        return self


def finite(bench: Bench) -> None:
    """What is added to a reward is a finite number, or None for nothing."""
    shaping = ShapingBench(bench)
    for sample in _samples():
        shaping.attempt(sample, "a scored sample", "")


def empty_response(bench: Bench) -> None:
    """Responses that are empty or were cut get an addition, or None."""
    shaping = ShapingBench(bench).usable()
    empty = _scored("", 0.0, Status.TRUNCATED)
    empty.tokens, empty.response_length, empty.rollout_log_probs = empty.tokens[: len(empty.tokens) - empty.response_length], 0, None
    shaping.attempt(empty, "a response without tokens", EMPTY_HINT)
    shaping.attempt(_scored("word " * 500, 0.0, Status.TRUNCATED), "a long response that was cut", "")


def dict_rewards(bench: Bench) -> None:
    """Samples with dict rewards get an addition too: the one that they would get with a number."""
    numbers, keyed = ShapingBench(bench).usable(), ShapingBench(bench, reward_key="acc")
    hint = "read the reward by sample.get_reward_value(args)"
    for plain, sample in zip(_samples(), _samples(), strict=True):
        sample.reward = {"length": 3.0, "acc": sample.reward}
        got = keyed.attempt(sample, "a dict reward under --reward-key acc", hint)
        expected = numbers.add(plain)
        if not same(expected or 0.0, numbers.add(plain) or 0.0):
            skip("the same sample gets different additions")
        if bench.deterministic and not same(got or 0.0, expected or 0.0):
            fail(f"{keyed.who} adds {got!r} to a dict reward, and {expected!r} to the same reward as a number", hint)


def is_an_addition(bench: Bench) -> None:
    """What is returned is added to the reward: it is not the new reward as a whole."""
    shaping = ShapingBench(bench).usable()
    if not bench.deterministic:
        skip("declared as not deterministic")
    added = [shaping.add(_scored("an answer", reward)) for reward in (0.0, 1.0, 2.0, -3.0)]
    values = [value for value in added if value is not None]
    if len(values) == 4 and all(same(value - values[0], reward) for value, reward in zip(values, (0.0, 1.0, 2.0, -3.0), strict=True)):
        fail(
            f"{shaping.who} returns the whole reward: {values[0]:g}, {values[1]:g} and {values[2]:g} for the rewards 0, 1 and 2",
            "return what is to be added: vime adds it to sample.reward",
        )


def unchanged(bench: Bench) -> None:
    """The plugin leaves the sample and the configuration as they are: the addition goes into the return value."""
    shaping = ShapingBench(bench).usable()
    for sample in _samples():
        before = Snapshot([sample], shaping.config)
        shaping.add(sample)
        before.check(shaping.function.label, "shape_reward")


def deterministic(bench: Bench) -> None:
    """The same sample gets the same addition at every call."""
    if not bench.deterministic:
        skip("declared as not deterministic")
    shaping, anew = ShapingBench(bench).usable(), ShapingBench(bench)
    for makers in range(len(_samples())):
        values = [each.add(_samples()[makers]) or 0.0 for each in (shaping, shaping, anew)]
        if not all(same(value, values[0]) for value in values):
            fail(f"{shaping.who} gives one and the same sample different additions", "take what is random from the sample, or declare it")


def _scored(response: str, reward: float, status: Status = Status.COMPLETED) -> Sample:
    return finished_sample(0, response, reward=reward, status=status)


def _samples() -> list[Sample]:
    return [
        _scored("4", 1.0),
        _scored("I do not know.", 0.0),
        _scored("so we get", -1.0, Status.TRUNCATED),
        _scored("word " * 200, 0.5),
    ]


HOOK = "shape_reward"
CHECKS: tuple[Check, ...] = (
    Check("shape-reward-finite", HOOK, finite),
    Check("shape-reward-empty-response", HOOK, empty_response),
    Check("shape-reward-dict-rewards", HOOK, dict_rewards),
    Check("shape-reward-is-an-addition", HOOK, is_an_addition),
    Check("shape-reward-unchanged", HOOK, unchanged),
    Check("shape-reward-deterministic", HOOK, deterministic),
)
