"""The checks of buffer_filter: whole groups of the buffer, by identity, at most as many as were asked for."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from vime.errors import VimeError
from vime.plugins.loading import describe
from vime.rollout.buffer import take_with_filter
from vime.rollout.unchanged import Snapshot
from vime.sample import Sample, Status
from vime.testing.checks.base import Bench, Check, fail, skip
from vime.testing.factories import fan_out_group, finished_group, make_group

Groups = list[list[Sample]]


class BufferFilterBench:
    """A freshly loaded buffer filter, called as the data source calls it."""

    def __init__(self, bench: Bench) -> None:
        self.config = bench.config()
        self.function: Any = bench.function(bench.load(self.config))
        self.who = f"{self.function.label}: buffer_filter"

    def take(self, buffer: Groups, count: int, *, rollout_id: int | None = 3) -> Groups:
        """The groups that the run gets, with its checks; `buffer` loses them."""
        return take_with_filter(self.function, self.config, rollout_id, buffer, count)

    def attempt(self, buffer: Groups, count: int, what: str, hint: str, *, rollout_id: int | None = 3) -> Groups:
        """The same; fails, naming what was asked for, for an exception that is not the run's."""
        try:
            return self.take(buffer, count, rollout_id=rollout_id)
        except VimeError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a filter raises
            fail(f"{self.who} raised {describe(error)} for {what}", hint)

    def usable(self) -> BufferFilterBench:
        """Skip the check where the ordinary choice is refused, which buffer-filter-choice reports."""
        try:
            self.take(_buffer(), 2)
        except Exception:  # noqa: BLE001 - whatever a filter raises
            skip("it makes no valid choice of 2 groups out of 5")
        return self


def choice(bench: Bench) -> None:
    """The filter returns a list of whole groups of the buffer, the same objects, none twice, at most as many as asked for."""
    filter_ = BufferFilterBench(bench)
    for make in (_buffer, _pending, _same_prompts):
        for count in (2, 1, 4):
            filter_.attempt(make(), count, f"{count} groups out of a buffer of 5", "")


def more_than_there_are(bench: Bench) -> None:
    """Asked for more groups than the buffer has, the filter returns what there is."""
    filter_ = BufferFilterBench(bench).usable()
    for count in (5, 6, 100):
        filter_.attempt(_buffer(), count, f"{count} groups out of a buffer of 5", "a buffer may have fewer groups than num_samples")


def one_group(bench: Bench) -> None:
    """A buffer with a single group, and groups with a single sample, are no special case."""
    filter_ = BufferFilterBench(bench).usable()
    filter_.attempt(_buffer()[:1], 4, "a buffer with one group", "a buffer may have fewer groups than num_samples")
    alone = [[sample] for sample in finished_group(3)]
    filter_.attempt(alone, 2, "groups of one sample", "a group may have one sample")


def none_asked_for(bench: Bench) -> None:
    """Asked for no group, the filter returns none."""
    BufferFilterBench(bench).usable().attempt(_buffer(), 0, "num_samples 0", "buffer[-0:] is the whole buffer; take care of 0 first")


def empty_buffer(bench: Bench) -> None:
    """For an empty buffer the filter returns an empty list."""
    BufferFilterBench(bench).usable().attempt([], 4, "an empty buffer", "an empty list has no first group, no mean and no maximum")


def no_rollout_id(bench: Bench) -> None:
    """The filter works where the rollout is unknown: rollout_id is None then."""
    filter_ = BufferFilterBench(bench).usable()
    filter_.attempt(_buffer(), 2, "rollout_id None", "rollout_id may be None: if rollout_id is None: ...", rollout_id=None)


def odd_groups(bench: Bench) -> None:
    """Groups that were never generated, were cut short, have no rewards or several samples per rollout do not make it raise."""
    filter_ = BufferFilterBench(bench).usable()
    started = finished_group(4, group_index=7, statuses=[Status.COMPLETED, Status.ABORTED, Status.PENDING, Status.ABORTED])
    fanned = fan_out_group([1.0, 0.0], group_index=8)
    hint = "groups in the buffer may lack rewards, responses and log-probs, and have any number of samples"
    filter_.attempt([*make_groups(2), started, fanned], 3, "groups that are unfinished or have no rewards", hint)


def unchanged(bench: Bench) -> None:
    """The filter changes neither the samples nor the configuration."""
    filter_ = BufferFilterBench(bench).usable()
    buffer = _buffer()
    before = Snapshot([sample for group in buffer for sample in group], filter_.config)
    filter_.take(buffer, 5)
    before.check(filter_.function.label, "buffer_filter")


def loses_nothing(bench: Bench) -> None:
    """What the filter does not choose stays in the buffer; only what it has a reason to throw away goes."""
    filter_ = BufferFilterBench(bench).usable()
    buffer = _buffer()
    chosen = filter_.take(buffer, 2)
    if not buffer and len(chosen) < 5:
        fail(
            f"{filter_.who} emptied the buffer: it returned {len(chosen)} of 5 groups, and the other {5 - len(chosen)} are gone",
            "leave them in the buffer; vime takes out of it what you return",
        )
    kept, alike = _pending(), _same_prompts()
    taken = len(filter_.take(kept, 2)) + len(kept), len(filter_.take(alike, 2)) + len(alike)
    if taken[0] == 5 and taken[1] < 5:
        fail(
            f"{filter_.who} removes other groups than it returns, where groups are equal: {5 - taken[1]} of 5 are gone",
            "buffer.remove(group) and buffer.index(group) take the first that is equal: leave the removal to vime, or compare with `is`",
        )


def takes_some(bench: Bench) -> None:
    """Out of a full buffer the filter chooses something: groups that never leave it are kept for ever."""
    filter_ = BufferFilterBench(bench).usable()
    makers: tuple[Callable[[], Groups], ...] = (_buffer, _pending, _same_prompts)
    if not any(filter_.take(make(), count) for make in makers for count in (1, 5)):
        fail(f"{filter_.who} returns no group at all, whatever the buffer holds", "return up to num_samples of the groups in `buffer`")


def same_choice(bench: Bench) -> None:
    """The same buffer gives the same choice, from a filter that was loaded anew."""
    if not bench.deterministic:
        skip("declared as not deterministic")
    BufferFilterBench(bench).usable()
    choices: list[list[Any]] = []
    for seed in (1, 2, 1):
        random.seed(seed)  # what a filter takes from the global generator shows
        choices.append([group[0].group_index for group in BufferFilterBench(bench).take(_buffer(), 2)])
    if choices[0] != choices[1]:
        fail(
            f"{BufferFilterBench(bench).who} chooses differently each time, so that a resumed run goes on with other groups",
            "seed what is random from rollout_id and args.rollout_seed, or declare it: deterministic = False",
        )


def _buffer() -> Groups:
    """Five groups: two were never generated, one was cut off, two are finished."""
    aborted = finished_group(
        4, group_index=2, responses=["so", "so we", "", "so we get"], statuses=[Status.ABORTED] * 4, weight_versions=[3]
    )
    done = finished_group([1.0, 0.0, 0.0, 1.0], group_index=3, weight_versions=[3])
    easy = finished_group([1.0, 1.0, 1.0, 0.0], group_index=4, responses=["a", "bb", "ccc", "dddd"], weight_versions=[3])
    return [*make_groups(2), aborted, done, easy]


def make_groups(count: int) -> Groups:
    """Groups that wait for generation, each with a prompt of its own."""
    return [make_group(4, group_index=number, prompt=f"{number}+1=", label=str(number + 1)) for number in range(count)]


def _pending() -> Groups:
    return make_groups(5)


def _same_prompts() -> Groups:
    """Five groups that compare equal to each other, as samples of one prompt do: only identity tells them apart."""
    return [[Sample(prompt="1+1=", label="2") for _ in range(4)] for _ in range(5)]


HOOK = "buffer_filter"
CHECKS: tuple[Check, ...] = (
    Check("buffer-filter-choice", HOOK, choice),
    Check("buffer-filter-more-than-there-are", HOOK, more_than_there_are),
    Check("buffer-filter-one-group", HOOK, one_group),
    Check("buffer-filter-none-asked-for", HOOK, none_asked_for),
    Check("buffer-filter-empty-buffer", HOOK, empty_buffer),
    Check("buffer-filter-no-rollout-id", HOOK, no_rollout_id),
    Check("buffer-filter-odd-groups", HOOK, odd_groups),
    Check("buffer-filter-unchanged", HOOK, unchanged),
    Check("buffer-filter-loses-nothing", HOOK, loses_nothing),
    Check("buffer-filter-takes-some", HOOK, takes_some),
    Check("buffer-filter-same-choice", HOOK, same_choice),
)
