"""The checks of dynamic_sampling_filter: a verdict with a reason, on every kind of group, that changes nothing."""

from __future__ import annotations

import asyncio
import copy
import random
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vime.config.run_config import RunConfig
from vime.errors import VimeError
from vime.outputs import DynamicFilterOutput
from vime.plugins.loading import describe
from vime.plugins.manager import HookFunction, PluginManager
from vime.rollout.dynamic_sampling import judge
from vime.rollout.unchanged import Snapshot
from vime.sample import Sample, Status
from vime.testing.checks.base import Bench, Check, fail, skip
from vime.testing.checks.loop_watch import Phase, Stalls, watch
from vime.testing.factories import fan_out_group, finished_group

MOST_REASONS = 12
"""Different reasons that forty random groups may give rise to."""
REWARD_HINT = "read rewards by sample.get_reward_value(args), and one per rollout: vime.api.rollouts(samples)"
Make = Callable[[], list[Sample]]


class FilterBench:
    """A freshly loaded filter, called as the run calls it."""

    def __init__(self, bench: Bench, **overrides: Any) -> None:
        self.bench = bench
        self.config: RunConfig = bench.config(**overrides)
        self.manager: PluginManager = bench.load(self.config)
        self.function: HookFunction = bench.function(self.manager)
        self.who = f"{self.function.label}: dynamic_sampling_filter"

    @property
    def stateful(self) -> bool:
        """Whether it declares a state, so that its verdicts may depend on what it has seen."""
        return any(callable(getattr(plugin.obj, "state_dict", None)) for plugin in self.manager.plugins)

    def verdict(self, group: list[Sample]) -> DynamicFilterOutput:
        """The verdict as the run reads it, with its checks."""
        return asyncio.run(judge([self.function], self.config, group))

    def raw(self, group: list[Sample]) -> Any:
        """What the filter itself returns."""
        return asyncio.run(self.function.acall(args=self.config, samples=group))

    def answer(self, group: list[Sample]) -> Any:
        """The same, or None where it raises: other checks report that."""
        try:
            return self.raw(group)
        except Exception:  # noqa: BLE001 - whatever a filter raises
            return None

    def explained(self, group: list[Sample], what: str, hint: str, *, may_refuse: bool = False) -> DynamicFilterOutput | None:
        """The verdict; fails, naming what kind of group it was, for an exception.

        With `may_refuse`, an exception that the filter raises itself gives None.
        """
        try:
            return self.verdict(group)
        except VimeError as error:
            if may_refuse and self.function.label not in error.message:
                return None
            raise
        except Exception as error:  # noqa: BLE001 - whatever a filter raises
            if may_refuse and _on_purpose(error):
                return None
            fail(f"{self.who} raised {describe(error)} for {what}", hint)

    def ready(self) -> FilterBench:
        """Skip the check where not even an ordinary group gets a verdict, which filter-verdict and filter-pure report."""
        try:
            FilterBench(self.bench).verdict(_mixed())
        except Exception:  # noqa: BLE001 - whatever a filter raises
            skip("an ordinary group gets no verdict")
        return self


def _on_purpose(error: Exception) -> bool:
    """Whether the exception comes from a `raise` of the filter, with a text, and not from what went wrong in some expression."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (
        (last.line or "").startswith("raise ")
        and bool(str(error))
        and "site-packages" not in last.filename
        and not _in_library(last.filename)
    )


def _in_library(file: str) -> bool:
    return Path(file).is_relative_to(Path(random.__file__).parent)


def verdict(bench: Bench) -> None:
    """The verdict is a DynamicFilterOutput or a bool, for any group of finished samples."""
    filter_ = FilterBench(bench)
    for rewards in ([1.0, 0.0, 1.0, 0.0], [1.0, 0.0], [0.25, 0.5, 0.75]):
        group = _group(rewards)
        members = list(map(id, group))
        try:
            filter_.explained(group, f"a group with the rewards {rewards}", "")
        except VimeError:
            if list(map(id, group)) == members:
                raise
            skip("it changes the group")


def reason(bench: Bench) -> None:
    """A dropped group has a reason; a bare False counts under the name of the filter."""
    filter_ = FilterBench(bench).ready()
    for group in _random_groups():
        output = filter_.answer(group)
        if isinstance(output, DynamicFilterOutput) and not output.keep and not output.reason:
            fail(
                f"{filter_.who} drops a group with the rewards {[sample.reward for sample in group]} without a reason",
                "DynamicFilterOutput(keep=False, reason='too_easy')",
            )


def reason_is_stable(bench: Bench) -> None:
    """Reasons are few short texts: each becomes the name of a metric."""
    filter_ = FilterBench(bench).ready()
    seen: dict[str, None] = {}
    for group in _random_groups():
        output = filter_.answer(group)
        if not isinstance(output, DynamicFilterOutput) or output.keep or output.reason is None:
            continue
        text: Any = output.reason
        if not isinstance(text, str):
            fail(f"{filter_.who} gives a {type(text).__name__} as the reason: {text!r}", "the reason is a short text: 'too_easy'")
        if len(text) > 60 or re.search(r"\s", text) or re.search(r"\d\.\d{4}", text):
            fail(f"{filter_.who} gives the reason {text!r}; expected a short text without spaces or long numbers", _REASON_HINT)
        seen[text] = None
    if len(seen) > MOST_REASONS:
        listing = ", ".join(list(seen)[:3])
        fail(f"{filter_.who} gives a new reason for nearly every group: {listing}, ... ({len(seen)} for 40 groups)", _REASON_HINT)


_REASON_HINT = "name the kind of group, and leave out what differs from group to group: each reason is a metric of its own"


def pure(bench: Bench) -> None:
    """The filter changes neither the samples, nor the group, nor the configuration."""
    filter_ = FilterBench(bench)
    for make in (_mixed, _equal, _odd_statuses):
        group = make()
        before, members = Snapshot(group, filter_.config), list(map(id, group))
        try:
            filter_.verdict(group)
        except Exception:
            if list(map(id, group)) != members:
                raise
            skip("an ordinary group gets no verdict")
        before.check(filter_.function.label, "dynamic_sampling_filter")


def same_verdict(bench: Bench) -> None:
    """The same group gets the same verdict each time; with a state_dict it may differ, but not from one new instance to the next."""
    if not bench.deterministic:
        skip("declared as not deterministic")
    filter_ = FilterBench(bench).ready()
    if filter_.stateful:
        first = filter_.verdict(_unseen()).keep
        filter_.verdict(_unseen())
        if FilterBench(bench).verdict(_unseen()).keep != first:
            fail(f"{filter_.who} knows in one instance what another one has seen", "keep the state on self, and make it in __init__")
        return
    makers: tuple[Make, ...] = (_mixed, _equal, _odd_statuses)
    alone = [FilterBench(bench).verdict(make()).keep for make in makers]
    for _ in range(2):
        after = [filter_.verdict(make()).keep for make in makers]
        if after != alone:
            fail(
                f"{filter_.who} gives the same group another verdict the next time",
                "judge each group by itself; a filter that learns has state_dict and load_state_dict, so that a resumed run goes on",
            )


def any_order(bench: Bench) -> None:
    """The verdict does not depend on the order of the samples in the group."""
    if not bench.deterministic:
        skip("declared as not deterministic")
    FilterBench(bench).ready()
    for rewards in ([1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0]):
        forward = FilterBench(bench).verdict(_group(rewards)).keep
        backward = FilterBench(bench).verdict(_group(rewards)[::-1]).keep
        if forward != backward:
            who = FilterBench(bench).who
            fail(
                f"{who} {_says(forward)} the group {rewards}, and {_says(backward)} it in the reverse order",
                "look at all samples of the group",
            )


def group_of_one(bench: Bench) -> None:
    """A group of one sample gets a verdict."""
    filter_ = FilterBench(bench, n_samples_per_prompt=1).ready()
    filter_.explained(_group([1.0]), "a group of one sample", "one sample has no deviation: look at the number of rewards first")


def equal_rewards(bench: Bench) -> None:
    """A group whose rewards are all equal gets a verdict."""
    filter_ = FilterBench(bench).ready()
    for value in (0.0, 1.0, 0.5):
        filter_.explained(_group([value] * 4), f"a group whose rewards are all {value:g}", "a deviation of zero is no divisor")


def dict_rewards(bench: Bench) -> None:
    """Dict rewards count by their reward key, as numbers would."""
    numbers, filter_ = FilterBench(bench).ready(), FilterBench(bench, reward_key="acc")
    for rewards in ([1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0]):
        group = _group([{"length": float(place), "acc": value} for place, value in enumerate(rewards)])
        got = filter_.explained(group, "a group with dict rewards under --reward-key acc", REWARD_HINT)
        expected = numbers.verdict(_group(rewards))
        if got and got.keep != expected.keep and bench.deterministic and not filter_.stateful:
            fail(
                f"{filter_.who} {_says(expected.keep)} the rewards {rewards}, and {_says(got.keep)} them as dicts with a reward key",
                REWARD_HINT,
            )


def fan_out(bench: Bench) -> None:
    """A rollout that has several samples counts once: its group gets the verdict that it would get with one sample each."""
    if not bench.deterministic:
        skip("declared as not deterministic")
    FilterBench(bench).ready()
    for rewards in ([1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 1.0], [1.0, 1.0, 1.0]):
        plain = FilterBench(bench, n_samples_per_prompt=len(rewards))
        if plain.stateful:
            skip("it declares a state: state_dict")
        singly = fan_out_group(rewards, siblings=1)
        spread = [*fan_out_group(rewards, siblings=5)[:5], *singly[1:]]
        expected = plain.verdict(singly).keep
        filter_ = FilterBench(bench, n_samples_per_prompt=len(rewards))
        got = filter_.explained(spread, "a group whose first rollout has five samples", REWARD_HINT)
        if got and got.keep != expected:
            fail(
                f"{filter_.who} {_says(expected)} a group with the rewards {rewards}, "
                f"and {_says(got.keep)} it when the first rollout has five samples",
                REWARD_HINT,
            )


def failed_samples(bench: Bench) -> None:
    """A group in which some samples failed, and have no reward, gets a verdict; so does one without any reward."""
    filter_ = FilterBench(bench).ready()
    statuses = [Status.COMPLETED, Status.FAILED, Status.TRUNCATED, Status.FAILED]
    hint = "leave out what has no reward: samples with sample.reward is None, or with the status FAILED"
    filter_.explained(finished_group([1.0, None, 0.0, None], statuses=statuses), "a group in which samples failed", hint)
    filter_.explained(finished_group([None, None], statuses=[Status.FAILED] * 2), "a group of failed samples only", hint)


def empty_group(bench: Bench) -> None:
    """An empty list gets a verdict, or an error that says so."""
    hint = "no rewards have no mean and no deviation: look at their number first"
    FilterBench(bench).ready().explained([], "an empty list", hint, may_refuse=True)


def event_loop(bench: Bench) -> None:
    """The filter does not hold up the event loop, in which it runs: neither asleep nor at work."""
    filter_ = FilterBench(bench).ready()
    home = (getattr(filter_.function.function, "__module__", None) or "").partition(".")[0]
    groups = [_mixed() for _ in range(4)]

    async def work(phase: Phase) -> None:
        await filter_.function.acall(args=filter_.config, samples=groups[0])
        for number, group in enumerate(groups[1:]):
            phase(f"{number}")
            await filter_.function.acall(args=filter_.config, samples=group)

    found = sorted(watch(work, home, limit=5.0).values(), key=lambda stalls: max(stalls.asleep, stalls.working / 2)) or [Stalls()]
    middle = found[len(found) // 2]
    if max(middle.asleep, middle.working / 2) >= 0.04:
        where, line = middle.place
        fail(f"{filter_.who} holds up the event loop: it waits or computes at {where}", f"{line}: await it, or do it beforehand")


def _says(keep: bool) -> str:
    return "keeps" if keep else "drops"


def _group(rewards: list[Any]) -> list[Sample]:
    responses = [("word " * (place + 1)).strip() for place in range(len(rewards))]
    return finished_group(copy.deepcopy(rewards), responses=responses)


def _mixed() -> list[Sample]:
    return _group([1.0, 0.0, 1.0, 0.0])


def _unseen() -> list[Sample]:
    """A group that looks like no other of these checks."""
    responses = [f"an answer that no other check shows, number {place}" for place in range(4)]
    return finished_group([1.0, 0.0, 1.0, 0.0], group_index=99, prompt="A prompt that no other check shows.", responses=responses)


def _equal() -> list[Sample]:
    return _group([1.0, 1.0, 1.0, 1.0])


def _odd_statuses() -> list[Sample]:
    return finished_group([1.0, 0.0, 0.0, 1.0], statuses=[Status.TRUNCATED, Status.COMPLETED, Status.TRUNCATED, Status.COMPLETED])


def _random_groups() -> list[list[Sample]]:
    """Forty groups with rewards, lengths and statuses of all kinds, the same ones each time."""
    rng = random.Random(0)
    groups: list[list[Sample]] = []
    for number in range(40):
        size = rng.choice([2, 3, 4, 8])
        level = rng.random()
        binary = number % 2 == 0
        rewards: list[Any] = [float(rng.random() < level) if binary else (level if number % 4 == 1 else rng.random()) for _ in range(size)]
        responses = ["word " * rng.choice([1, 10, 100]) for _ in range(size)]
        statuses = [rng.choice([Status.COMPLETED, Status.COMPLETED, Status.TRUNCATED]) for _ in range(size)]
        groups.append(finished_group(rewards, group_index=number, responses=responses, statuses=statuses))
    return groups


HOOK = "dynamic_sampling_filter"
CHECKS: tuple[Check, ...] = (
    Check("filter-verdict", HOOK, verdict),
    Check("filter-reason", HOOK, reason),
    Check("filter-reason-is-stable", HOOK, reason_is_stable),
    Check("filter-pure", HOOK, pure),
    Check("filter-same-verdict", HOOK, same_verdict),
    Check("filter-any-order", HOOK, any_order),
    Check("filter-group-of-one", HOOK, group_of_one),
    Check("filter-equal-rewards", HOOK, equal_rewards),
    Check("filter-dict-rewards", HOOK, dict_rewards),
    Check("filter-fan-out", HOOK, fan_out),
    Check("filter-failed-samples", HOOK, failed_samples),
    Check("filter-empty-group", HOOK, empty_group),
    Check("filter-event-loop", HOOK, event_loop),
)
