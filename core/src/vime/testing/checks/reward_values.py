"""Checks of what a reward returns: valid values of one shape, the same at each call, and the known answers."""

from __future__ import annotations

from typing import Any, cast

from vime.rollout.reward_guard import BadRewardError, RewardShape
from vime.rollout.unchanged import Snapshot
from vime.sample import Sample, Status
from vime.testing.checks.base import Bench, Check, fail, skip
from vime.testing.checks.reward_bench import RewardBench, raised, require_deterministic, same, short
from vime.testing.checks.reward_inputs import NEED_CASE, WRONG_RESPONSES, Input, from_cases
from vime.testing.checks.reward_spy import spied

NONDETERMINISTIC = "take what is random from the sample, or declare it: deterministic = False"


def scores(bench: Bench) -> None:
    """There are samples that the reward can score: it does not raise for all of them."""
    with RewardBench(bench) as reward:
        found = reward.survey()
        if found.errors and not (found.valid or found.bad or found.misshapen):
            fail(f"{reward.who} {raised(found.errors[0])} for every sample that was tried", _why(found.errors[0]))


def _why(error: Exception) -> str:
    """What to do about a reward that always raises this."""
    text = str(error)
    if "main thread" in text:
        return "limits by signal work in the main thread only: vime.api.IsolatedPool has limits that work everywhere"
    if "event loop" in text:
        return "an async def awaits in the loop that it runs in: await work(), in the place of asyncio.run(work())"
    if "frozen" in text:
        return "args is shared by the whole run, and frozen: keep what you need on self, or return it in a dict reward"
    return f"if it needs other data: {NEED_CASE}"


def finite(bench: Bench) -> None:
    """The reward is a finite number, or a dict with one under the reward key; right, wrong and empty answers get one too."""
    with RewardBench(bench) as reward:
        found = reward.survey()
        if found.bad:
            raise found.bad[0]
        if not found.valid:
            skip(f"no sample was found that this reward can score; {NEED_CASE}")


def stable_keys(bench: Bench) -> None:
    """All rewards have one shape: numbers only, or dicts with the same keys."""
    with RewardBench(bench) as reward:
        one, shape = reward.one(), RewardShape()
        shown = [
            one,
            *(one.but(response=response) for response in WRONG_RESPONSES),
            one.but(response=one.response[:1], status=Status.TRUNCATED),
        ]
        for other in [*from_cases(bench.cases), *shown]:
            reward.still()
            sample = reward.fresh(other)
            try:
                value = reward.score(sample)
            except Exception:  # noqa: BLE001 - other checks report values that are none, and exceptions
                continue
            shape.check("", value, reward.who, sample)


def unchanged(bench: Bench) -> None:
    """The reward leaves the sample, the group and the configuration as they are."""
    with RewardBench(bench) as reward:
        untouched = Snapshot([], reward.config)
        one = reward.one()
        untouched.check(reward.function.label, "custom_rm")
        padded = one.but(label=f" {one.label}\n", response=f"{one.response}\n") if isinstance(one.label, str) else one
        for shown in (one, padded, *(one.but(response=response) for response in WRONG_RESPONSES)):
            reward.still()
            sample = reward.fresh(shown)
            before = Snapshot([sample], reward.config)
            _attempt(reward, sample)
            before.check(reward.function.label, "custom_rm")
        if reward.takes_groups:
            group = [reward.fresh(one.but(response=response), group_index=0) for response in ("b" * 9, one.response, "", "cc")]
            members, before = list(map(id, group)), Snapshot(group, reward.config)
            shown = list(group)
            try:
                reward.call(shown, group=True)
            except Exception:  # noqa: BLE001 - the checks of groups report it
                skip("it raises for a group of four")
            before.check(reward.function.label, "custom_rm")
            if list(map(id, shown)) != members:
                fail(
                    f"{reward.function.label}: custom_rm changed the list of samples that it was shown: its order or its members",
                    "work on a copy: sorted(samples, ...) in the place of samples.sort(...)",
                )


def deterministic(bench: Bench) -> None:
    """The same sample gets the same reward at every call, and from a plugin that was loaded anew."""
    require_deterministic(bench)
    with RewardBench(bench) as reward:
        found = reward.survey()
        if not found.valid:
            skip(f"no sample was found that this reward can score; {NEED_CASE}")
        anew = bench.function(bench.load(reward.config))
        for one in [found.gold, found.wrong] if found.gold and found.wrong else [found.valid[0][0]]:
            reward.still()
            values = [reward.value(one), reward.value(one), reward.value(one), reward.value(one, function=anew)]
            if not all(same(value, values[0]) for value in values):
                fail(f"{reward.who} gives one and the same sample different rewards", NONDETERMINISTIC)


def known_answers(bench: Bench) -> None:
    """Every known case gets the reward that it is said to get."""
    if not bench.cases:
        skip(NEED_CASE)
    with RewardBench(bench) as reward:
        for number, one in enumerate(from_cases(bench.cases)):
            reward.still()
            name = f"case {number} (response {short(one.response)})"
            sample = reward.fresh(one)
            try:
                got = reward.score(sample)
            except BadRewardError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a reward raises
                fail(f"{name}: expected {one.expected!r}, but it {raised(error)}")
            if not _as_expected(got, one.expected, reward):
                fail(f"{name}: expected {one.expected!r}, got {got!r}", "mend the reward, or the case where the case is wrong")


def gold_is_best(bench: Bench) -> None:
    """No empty or senseless response gets more than the best known answer to the same prompt."""
    if not bench.cases:
        skip(NEED_CASE)
    with RewardBench(bench) as reward:
        scored = [(one, value) for one in from_cases(bench.cases) if (value := _number(reward, one)) is not None]
        if not scored:
            skip("no case can be scored")
        gold = max(scored, key=lambda pair: pair[1])[0]
        if not _reads_label(reward, gold):
            skip("it does not look at the label, so that no response is the right one")
        best = reward.value(gold)
        for response in WRONG_RESPONSES[:2]:
            value = _number(reward, gold.but(response=response))
            if value is not None and value > best and not same(value, best):
                known = short(gold.response)
                fail(
                    f"{reward.who} gives {value:g} for the response {short(response)}, and {best:g} for the known answer {known}",
                    "the right answer has to get the highest reward",
                )


def discriminates(bench: Bench) -> None:
    """Not every response gets the same reward: there would be nothing to learn from it."""
    if not bench.cases:
        _refuse_constant(bench)
        skip(NEED_CASE)
    with RewardBench(bench) as reward:
        values: list[float] = []
        for one in from_cases(bench.cases):
            try:
                got = reward.score(reward.fresh(one))
                met = _as_expected(got, one.expected, reward)
            except Exception:  # noqa: BLE001 - reward-known-answers reports it
                met = False
            if not met:
                skip("not every known case gets the reward that it should")
            values.append(reward.value(one))
            others = [*(one.but(response=response) for response in WRONG_RESPONSES), one.but(status=Status.TRUNCATED)]
            for other in others:
                reward.still()
                value = _number(reward, other)
                values += [] if value is None else [value]
        if all(same(value, values[0]) for value in values):
            fail(
                f"{reward.who} gives {values[0]:g} for every response: the known cases, an empty one and a senseless one alike",
                "a group whose rewards are all equal has no advantages; look at how the answer is taken out of the response",
            )


def _refuse_constant(bench: Bench) -> None:
    """Without cases no response is known to be better; but a reward that reads nothing of its sample is always the same."""
    with RewardBench(bench) as reward:
        sample, reads = spied(reward.fresh(reward.one()))
        value = reward.number(reward.score(sample))
        if bench.deterministic and not reads.fields - {"__class__"}:
            fail(
                f"{reward.who} gives {value:g} and reads nothing of the sample",
                "a group whose rewards are all equal has no advantages; read sample.response",
            )


def _attempt(reward: RewardBench, sample: Sample) -> None:
    try:
        reward.score(sample)
    except Exception:  # noqa: BLE001 - what it changed before it raised counts as well
        return


def _number(reward: RewardBench, one: Input) -> float | None:
    """The reward of a sample; None where it raises or returns no reward, which other checks report."""
    try:
        return reward.value(one)
    except Exception:  # noqa: BLE001 - whatever a reward raises
        return None


def _as_expected(got: Any, expected: Any, reward: RewardBench) -> bool:
    """A dict has to have the expected entries; a number is compared with the value to train on."""
    if not isinstance(expected, dict):
        return same(reward.number(got), float(expected))
    entries = cast("dict[str, Any]", expected)
    return isinstance(got, dict) and all(_equal(cast("dict[str, Any]", got).get(key), value) for key, value in entries.items())


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return same(one, other)
    return bool(one == other)


def _reads_label(reward: RewardBench, one: Input) -> bool:
    sample, reads = spied(reward.fresh(one))
    _attempt(reward, sample)
    return reads.label


CHECKS: tuple[Check, ...] = (
    Check("reward-scores", "custom_rm", scores),
    Check("reward-finite", "custom_rm", finite),
    Check("reward-stable-keys", "custom_rm", stable_keys),
    Check("reward-unchanged", "custom_rm", unchanged),
    Check("reward-deterministic", "custom_rm", deterministic),
    Check("reward-known-answers", "custom_rm", known_answers),
    Check("reward-gold-is-best", "custom_rm", gold_is_best),
    Check("reward-discriminates", "custom_rm", discriminates),
)
