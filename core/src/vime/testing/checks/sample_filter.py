"""The checks of rollout_sample_filter: it sets flags, and nothing else happens to the batch."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from vime.plugins.loading import describe
from vime.rollout.unchanged import Snapshot
from vime.sample import Sample, Status
from vime.testing.checks.base import Bench, Check, fail, skip
from vime.testing.factories import fan_out_group, finished_group

FLAG = "set sample.remove_sample = True on the sample, and leave it where it is"
Groups = list[list[Sample]]


class SampleFilterBench:
    """A freshly loaded sample filter, called as the run calls it."""

    def __init__(self, bench: Bench, **overrides: Any) -> None:
        self.config = bench.config(**overrides)
        self.manager = bench.load(self.config)
        self.function = bench.function(self.manager)
        self.who = f"{self.function.label}: rollout_sample_filter"
        self.stateful = any(callable(getattr(plugin.obj, "state_dict", None)) for plugin in self.manager.plugins)

    def apply(self, groups: Groups) -> Any:
        """What the filter returns."""
        return asyncio.run(self.function.acall(args=self.config, samples=groups))

    def attempt(self, groups: Groups, what: str, hint: str) -> Any:
        """The same; fails, naming what kind of batch it was, for an exception."""
        try:
            return self.apply(groups)
        except Exception as error:  # noqa: BLE001 - whatever a filter raises
            fail(f"{self.who} raised {describe(error)} for {what}", hint)

    def usable(self) -> SampleFilterBench:
        """Skip the check where an ordinary batch raises or changes, which other checks report."""
        groups = batch()
        before = members(groups)
        try:
            self.apply(groups)
        except Exception:  # noqa: BLE001 - whatever a filter raises
            skip("an ordinary batch makes it raise")
        if members(groups) != before:
            skip("it changes the batch")
        return self


def runs(bench: Bench) -> None:
    """The filter takes the list of groups, as a run passes it."""
    SampleFilterBench(bench).attempt(
        batch(), "a list of three groups", "`samples` is a list of groups: for group in samples: for sample in group"
    )


def keeps_batch(bench: Bench) -> None:
    """All groups and samples are there afterwards, in the same order: nothing is deleted, moved or added."""
    filter_ = SampleFilterBench(bench)
    for groups in (batch(), extreme_batch()):
        before = members(groups)
        try:
            filter_.apply(groups)
        except Exception:  # noqa: BLE001 - sample-filter-runs reports it
            skip("it raises")
        after = cast("list[Any]", groups)
        if not all(isinstance(group, list) for group in after):
            fail(f"{filter_.who} flattened the groups: `samples` holds single samples now", FLAG)
        now = members(groups)
        if now == before:
            continue
        lost = len({one for group in before for one in group} - {one for group in now for one in group})
        if lost:
            count = sum(map(len, before))
            fail(f"{filter_.who} deleted {lost} of {count} samples; the same groups and samples are expected afterwards", FLAG)
        fail(
            f"{filter_.who} changed the order of groups or samples; the same order is expected afterwards",
            "work on a copy: sorted(group, ...)",
        )


def flags_only(bench: Bench) -> None:
    """Of a sample only remove_sample changes, and that to True or False."""
    filter_ = SampleFilterBench(bench).usable()
    for groups in (batch(), extreme_batch()):
        samples = [sample for group in groups for sample in group]
        before = Snapshot(samples, filter_.config)
        filter_.apply(groups)
        before.check(filter_.function.label, "rollout_sample_filter")
        for sample in samples:
            flag: Any = sample.remove_sample
            if not isinstance(flag, bool):
                fail(f"{filter_.who} set remove_sample to {flag!r}; expected True or False", "bool(...)")


def returns_nothing(bench: Bench) -> None:
    """The filter returns nothing: what it returns would be ignored."""
    filter_ = SampleFilterBench(bench).usable()
    got = filter_.apply(batch())
    if got is not None:
        fail(f"{filter_.who} returned a {type(got).__name__}, which nothing reads; expected None", FLAG)


def keeps_flags(bench: Bench) -> None:
    """A sample that another filter has removed stays removed."""
    filter_ = SampleFilterBench(bench).usable()
    groups = batch()
    for group in groups:
        for sample in group:
            sample.remove_sample = True
    filter_.apply(groups)
    if not all(sample.remove_sample for group in groups for sample in group):
        fail(f"{filter_.who} took back the flag that another filter had set", "if ...: sample.remove_sample = True; never set it to False")


def idempotent(bench: Bench) -> None:
    """Applied twice, the filter removes what it removed the first time."""
    filter_ = SampleFilterBench(bench).usable()
    if filter_.stateful or not bench.deterministic:
        skip("it declares a state, or is declared as not deterministic")
    for groups in (batch(), extreme_batch()):
        filter_.apply(groups)
        first = _flags(groups)
        filter_.apply(groups)
        if _flags(groups) != first:
            fail(
                f"{filter_.who} removes {sum(first)} of {len(first)} samples, and {sum(_flags(groups))} when it is applied again",
                "decide by what the samples are, not by chance or by what was seen before; or declare it: deterministic = False",
            )


def empty_batch(bench: Bench) -> None:
    """An empty batch, and groups of one sample, are left as they are or flagged, without an error."""
    filter_ = SampleFilterBench(bench).usable()
    for groups, what in (([], "an empty batch"), ([finished_group([1.0])], "a group of one sample")):
        filter_.attempt(groups, what, "look at the number of samples before you divide by it")


def odd_samples(bench: Bench) -> None:
    """Failed samples without a reward, empty responses and rollouts with several samples do not make the filter raise."""
    filter_ = SampleFilterBench(bench).usable()
    failed = finished_group([1.0, None, 0.0, None], statuses=[Status.COMPLETED, Status.FAILED, Status.TRUNCATED, Status.FAILED])
    filter_.attempt([failed], "a group in which samples failed", "samples with the status FAILED have no reward")
    empty = finished_group([0.0, 1.0], responses=["", "4"], statuses=[Status.TRUNCATED, Status.COMPLETED])
    filter_.attempt([empty], "a group with an empty response", "a response may have no tokens at all")
    filter_.attempt(
        [fan_out_group()], "a group whose rollouts have several samples", "a group may have more samples than n_samples_per_prompt"
    )


def dict_rewards(bench: Bench) -> None:
    """Dict rewards count by their reward key, as numbers would."""
    numbers, keyed = SampleFilterBench(bench).usable(), SampleFilterBench(bench, reward_key="acc")
    plain, dicts = batch(), batch()
    for group in dicts:
        for place, sample in enumerate(group):
            sample.reward = {"length": float(place), "acc": sample.reward}
    hint = "read rewards by sample.get_reward_value(args)"
    keyed.attempt(dicts, "dict rewards under --reward-key acc", hint)
    numbers, again = SampleFilterBench(bench), batch()
    numbers.apply(plain)
    SampleFilterBench(bench).apply(again)
    if _flags(plain) != _flags(again):
        skip("it removes other samples each time")
    if _flags(plain) != _flags(dicts) and bench.deterministic and not keyed.stateful:
        fail(f"{keyed.who} removes {sum(_flags(plain))} samples by their rewards, and {sum(_flags(dicts))} where these are dicts", hint)


def batch() -> Groups:
    """Three groups of four, with responses of many lengths and one that was cut."""
    words = [1, 3, 40, 200]
    statuses = [Status.COMPLETED, Status.COMPLETED, Status.COMPLETED, Status.TRUNCATED]
    rewards = ([1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.5])
    return [
        finished_group(values, group_index=number, responses=["word " * count for count in words], statuses=statuses)
        for number, values in enumerate(rewards)
    ]


def extreme_batch() -> Groups:
    """A group in which everything was cut or wrong, and one of duplicates."""
    cut = finished_group([0.0] * 4, responses=["long " * 300] * 4, statuses=[Status.TRUNCATED] * 4)
    return [cut, finished_group([-1.0, 2.0, 2.0, 0.0], group_index=1, responses=["x", "x", "x", ""])]


def members(groups: Any) -> list[list[int]]:
    """The samples by identity; a sample in the place of a group counts as itself."""
    return [list(map(id, group)) if isinstance(group, list) else [id(group)] for group in groups]  # pyright: ignore[reportUnknownArgumentType]


def _flags(groups: Groups) -> list[bool]:
    return [bool(sample.remove_sample) for group in groups for sample in group]


HOOK = "rollout_sample_filter"
CHECKS: tuple[Check, ...] = (
    Check("sample-filter-runs", HOOK, runs),
    Check("sample-filter-keeps-batch", HOOK, keeps_batch),
    Check("sample-filter-flags-only", HOOK, flags_only),
    Check("sample-filter-returns-nothing", HOOK, returns_nothing),
    Check("sample-filter-keeps-flags", HOOK, keeps_flags),
    Check("sample-filter-idempotent", HOOK, idempotent),
    Check("sample-filter-empty-batch", HOOK, empty_batch),
    Check("sample-filter-odd-samples", HOOK, odd_samples),
    Check("sample-filter-dict-rewards", HOOK, dict_rewards),
)
