"""Checks of what a reward makes of bad data: labels and metadata that are missing or wrong, hostile text, cut responses."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from vime.isolation import IsolatedTimeout
from vime.plugins.loading import describe
from vime.rollout.reward_guard import BadRewardError
from vime.sample import Sample, Status
from vime.testing.checks.base import Bench, Check, fail, skip
from vime.testing.checks.reward_bench import RewardBench, raised, same, short
from vime.testing.checks.reward_inputs import NEED_CASE, Input, hostile_texts, plausible
from vime.testing.checks.reward_places import RewardPlace
from vime.testing.checks.reward_spy import Reads, exceptions_in, spied

RAISE = "raise ValueError, which --on-reward-error deals with and counts; a zero looks like a wrong answer"
HOSTILE_SECONDS = 20.0
"""How long all hostile texts together may take before the rest is left out."""


def missing_label(bench: Bench) -> None:
    """A label that is missing is an error, and not a reward; a reward that needs no label gives the same with and without."""
    with RewardBench(bench) as reward:
        one = reward.one()
        value, reads = _look(reward, one)
        if not reads.label:
            return
        without, blind = _look(reward, one.but(label=None))
        if isinstance(value, Exception) or isinstance(without, Exception):
            return
        if not same(value, without):
            fail(f"{reward.who} gives {without:g} for a sample without a label; with it, it gives {value:g}", RAISE)
        if blind.blind:
            fail(f"{reward.who} gives {without:g} for a sample without a label, and does not look at the response", RAISE)
        if reward.survey().gold is None and one.label is not None:
            skip(f"no response was found that its label makes better than others; {NEED_CASE}")


def wrong_label(bench: Bench) -> None:
    """An exception that a label of the wrong type causes is let through, and not turned into a reward."""
    with RewardBench(bench) as reward:
        gold, _ = reward.pair()
        if gold.label is None:
            skip("its known samples have no label")
        label: str | dict[str, str] = "no label" if hasattr(gold.label, "keys") else {"no": "label"}
        normal, value = reward.value(gold), None
        with exceptions_in(reward.function.function) as usual:
            reward.value(gold)
        with exceptions_in(reward.function.function) as swallowed:
            value = _value(reward, gold.but(label=label))
        new = [error for error in swallowed if type(error) not in {type(known) for known in usual}]
        if isinstance(gold.label, str):  # one that reads numbers where it can and compares texts otherwise is right to catch that
            text = _value(reward, gold.but(label="blue", response=gold.response.replace(gold.label, "blue")))
            if isinstance(text, float) and same(text, normal):
                return
        if isinstance(value, float) and not same(value, normal) and new:
            fail(f"{reward.who} gives {value:g} for the label {label!r}: it raised {describe(new[0])}, and caught it", RAISE)


def bad_metadata(bench: Bench) -> None:
    """Metadata that is missing or wrong is an error, and not a reward of zero."""
    with RewardBench(bench) as reward:
        found = reward.survey()
        one = reward.one()
        value, reads = _look(reward, one)
        if isinstance(value, Exception):
            return
        if reads.missing and reads.blind:
            fail(f"{reward.who} gives {value:g} where the metadata has no {reads.missing[0]!r}, and does not look at the response", RAISE)
        if found.gold is None:
            if reads.missing:
                _fill_in(reward, value, reads.missing[0])
                skip(f"it looks for {reads.missing[0]!r} in the metadata; {NEED_CASE}")
            return
        worst = min([reward.number(other) for _, other in found.valid])
        for key in [key for key in one.metadata if key != "rm_type"]:
            for what, changed in (("no", _without(one, key)), ("a wrong", one.but(metadata={**one.metadata, key: _Nonsense()}))):
                got = _value(reward, changed)
                if isinstance(got, float) and got < value and (got <= worst or same(got, 0.0)):
                    fail(f"{reward.who} gives {got:g} for a right answer whose metadata has {what} {key!r}", RAISE)


def hostile_text(bench: Bench) -> None:
    """No response makes the reward raise, return what is no reward, or take longer than --reward-timeout."""
    with RewardBench(bench) as reward:
        one = reward.one()
        samples = {name: reward.fresh(one.but(response=text)) for name, text in hostile_texts().items()}
        with RewardPlace(reward, workers=4) as place:
            outcomes = reward.run(_score_all(place, samples)) if place.importable else _score_in_threads(reward, samples)
        limit = reward.config.reward_timeout
        for name, outcome in outcomes.items():
            if isinstance(outcome, TimeoutError):
                fail(f"{reward.who} takes longer than {limit:g} s for {name}", "limit what is parsed or evaluated before it starts")
            if isinstance(outcome, Exception):
                fail(f"{reward.who} {raised(outcome)} for {name}", "a response may be any text: return the reward of a wrong answer")
            try:
                reward.number(reward.checked(outcome, samples[name]))
            except BadRewardError as error:
                fail(f"{error.message.partition(' for sample ')[0]} for {name}", error.hint or "")


def cut_responses(bench: Bench) -> None:
    """Responses that were cut off at the length limit, down to none at all, get a reward too."""
    with RewardBench(bench) as reward:
        one = reward.one()
        for response in (one.response[: len(one.response) // 2], one.response[:1], ""):
            sample = reward.fresh(one.but(response=response, status=Status.TRUNCATED))
            if not response:
                sample.loss_mask, sample.rollout_log_probs = None, None
                del sample.tokens[len(sample.tokens) - sample.response_length :]
                sample.response_length = 0
            try:
                reward.score(sample)
            except BadRewardError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a reward raises
                what = "with an empty response" if not response else f"with the response {short(response)}"
                fail(f"{reward.who} {raised(error)} for a truncated sample {what}", "a cut response is a wrong answer at worst")


def _fill_in(reward: RewardBench, value: float, key: str) -> None:
    """Fail where a right answer gets more as soon as the metadata has `key`: without it, it got a zero."""
    for other in plausible():
        reward.still()
        for filling in (1.0, "4", ["4"], True, {"answer": "4"}):
            got = _value(reward, other.but(metadata={**other.metadata, key: filling}))
            if isinstance(got, float) and got > value:
                fail(f"{reward.who} gives {value:g} for a right answer whose metadata has no {key!r}", RAISE)


class _Nonsense:
    """A value of a type that no metadata has."""

    def __repr__(self) -> str:
        return "<nonsense>"


def _without(one: Input, key: str) -> Input:
    return one.but(metadata={name: value for name, value in one.metadata.items() if name != key})


def _value(reward: RewardBench, one: Input) -> float | Exception:
    try:
        return reward.value(one)
    except Exception as error:  # noqa: BLE001 - the caller tells the one from the other
        return error


def _look(reward: RewardBench, one: Input) -> tuple[float | Exception, Reads]:
    """The reward of a sample, or what it raised, and what it looked at."""
    sample, reads = spied(reward.fresh(one))
    try:
        return reward.number(reward.score(sample)), reads
    except Exception as error:  # noqa: BLE001 - the caller tells the one from the other
        return error, reads


async def _score_all(place: RewardPlace, samples: dict[str, Sample]) -> dict[str, Any]:
    """What the reward returned or raised for each sample, in worker processes that are killed where they must be."""

    async def attempt(sample: Sample) -> Any:
        try:
            return await place.score(sample)
        except Exception as error:  # noqa: BLE001 - reported by the caller
            return error

    tasks = {name: asyncio.ensure_future(attempt(sample)) for name, sample in samples.items()}
    deadline = time.monotonic() + HOSTILE_SECONDS
    while time.monotonic() < deadline and not all(task.done() for task in tasks.values()):
        if any(task.done() and isinstance(task.result(), IsolatedTimeout) for task in tasks.values()):
            break  # one is enough
        await asyncio.wait(tasks.values(), timeout=0.05)
    pending = [task for task in tasks.values() if not task.done()]
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return {name: task.result() for name, task in tasks.items() if task.done() and not task.cancelled()}


def _score_in_threads(reward: RewardBench, samples: dict[str, Sample]) -> dict[str, Any]:
    """The same for a reward that no other process can load: a thread that takes too long is left behind."""
    outcomes: dict[str, Any] = {}
    for name, sample in samples.items():
        other = RewardBench(reward.bench)

        def work(name: str = name, sample: Sample = sample, other: RewardBench = other) -> None:
            with other:
                try:
                    outcomes[name] = other.score(sample)
                except Exception as error:  # noqa: BLE001 - reported by the caller
                    outcomes[name] = error

        thread = threading.Thread(target=work, daemon=True, name="vime-hostile-text")
        thread.start()
        thread.join(reward.config.reward_timeout)
        if thread.is_alive():
            outcomes[name] = TimeoutError()
            break
    return outcomes


CHECKS: tuple[Check, ...] = (
    Check("reward-missing-label", "custom_rm", missing_label),
    Check("reward-wrong-label", "custom_rm", wrong_label),
    Check("reward-bad-metadata", "custom_rm", bad_metadata),
    Check("reward-hostile-text", "custom_rm", hostile_text),
    Check("reward-cut-responses", "custom_rm", cut_responses),
)
