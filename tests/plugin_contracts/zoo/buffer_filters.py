"""Wrong filters of the buffer, one mistake each."""

from __future__ import annotations

import copy
import random
from typing import Any

from vime.api import Sample, hookimpl
from zoo.base import Wrong
from zoo.entries import wrong


class DictOfGroups:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> Any:
        return dict(enumerate(buffer[:num_samples]))


class LazyChoice:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> Any:
        return (group for group in buffer[:num_samples])


def flat_choice(args: Any, rollout_id: int, buffer: list[list[Sample]], num_samples: int) -> Any:
    return [sample for group in buffer[:num_samples] for sample in group]


class Copies:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return copy.deepcopy(buffer[:num_samples])


class WholeBuffer:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]]) -> list[list[Sample]]:
        return sorted(buffer, key=lambda group: -group[0].response_length)


class OneTwice:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return [max(buffer, key=lambda group: group[0].response_length) for _ in range(num_samples)] if buffer else []


class HalfGroups:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return [group[:2] for group in buffer[:num_samples]]


class FillsUp:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        chosen = buffer[:num_samples]
        buffer.extend(copy.deepcopy(chosen))
        return chosen


class ByIndex:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return [buffer[place] for place in range(num_samples)]


class TheLastOnes:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return buffer[-num_samples:]


class LongestFirst:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        longest = max(group[0].response_length for group in buffer)
        return [group for group in buffer if group[0].response_length <= longest][:num_samples]


class AgeInRollouts:
    @hookimpl
    def buffer_filter(self, rollout_id: int, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return [group for group in buffer if group[0].metadata.get("rollout", 0) >= rollout_id - 10][:num_samples]


class SecondSample:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return sorted(buffer, key=lambda group: group[1].response_length)[:num_samples]


class OneSamplePerRollout:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        for group in buffer:
            indices = [sample.rollout_id for sample in group if sample.rollout_id is not None]
            if len(set(indices)) != len(indices):
                raise ValueError(f"group {group[0].group_index} has a rollout twice")
        return buffer[:num_samples]


class StartsThemAnew:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        for sample in (sample for group in buffer[:num_samples] for sample in group):
            sample.reset_for_generation()
        return buffer[:num_samples]


class ClearsTheBuffer:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        chosen = buffer[:num_samples]
        buffer.clear()
        return chosen


class RemovesEqualOnes:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        chosen = list(reversed(buffer))[:num_samples]
        for group in chosen:
            buffer.remove(group)
        return chosen


class NeverAny:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return [group for group in buffer if all(sample.metadata.get("ready") for sample in group)][:num_samples]


class Shuffles:
    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        return random.sample(buffer, min(num_samples, len(buffer)))


BUFFER = "buffer_filter"


ZOO: tuple[Wrong, ...] = (
    wrong(
        "a dict of groups",
        DictOfGroups,
        "buffer-filter-choice",
        "{who}, hook buffer_filter: expected a list of groups, got dict",
        core="{who}, hook buffer_filter: expected a list of groups, got dict",
    ),
    wrong(
        "a generator of groups",
        LazyChoice,
        "buffer-filter-choice",
        "{who}, hook buffer_filter: expected a list of groups, got generator",
        core="{who}, hook buffer_filter: expected a list of groups, got generator",
    ),
    wrong(
        "samples in the place of groups",
        flat_choice,
        "buffer-filter-choice",
        "{who}, hook buffer_filter: expected at most 2 groups, got 8",
        core="{who}, hook buffer_filter: expected at most 2 groups, got 8",
        hook=BUFFER,
    ),
    wrong(
        "copies of the groups",
        Copies,
        "buffer-filter-choice",
        "{who}, hook buffer_filter: expected whole groups of the buffer, got a group that is not in the buffer",
        core="{who}, hook buffer_filter: expected whole groups of the buffer, got a group that is not in the buffer",
    ),
    wrong(
        "more than was asked for",
        WholeBuffer,
        "buffer-filter-choice",
        "{who}, hook buffer_filter: expected at most 2 groups, got 5",
        core="{who}, hook buffer_filter: expected at most 2 groups, got 5",
    ),
    wrong(
        "one group twice",
        OneTwice,
        "buffer-filter-choice",
        "{who}, hook buffer_filter: group 2 came back twice",
        core="{who}, hook buffer_filter: group 0 came back twice",
    ),
    wrong(
        "parts of groups",
        HalfGroups,
        "buffer-filter-choice",
        "{who}, hook buffer_filter: expected whole groups of the buffer, got a part of a group, or samples of several groups",
        core="{who}, hook buffer_filter: expected whole groups of the buffer, got a part of a group, or samples of several groups",
    ),
    wrong(
        "puts copies back into the buffer",
        FillsUp,
        "buffer-filter-choice",
        "{who}, hook buffer_filter: it put groups into the buffer, or changed some, that were not there before",
        core="{who}, hook buffer_filter: it put groups into the buffer, or changed some, that were not there before",
    ),
    wrong(
        "counts on enough groups",
        ByIndex,
        "buffer-filter-more-than-there-are",
        "{who}: buffer_filter raised IndexError: list index out of range for 6 groups out of a buffer of 5",
        also=("buffer-filter-one-group", "buffer-filter-empty-buffer"),
    ),
    wrong(
        "the last zero groups",
        TheLastOnes,
        "buffer-filter-none-asked-for",
        "{who}, hook buffer_filter: expected at most 0 groups, got 5",
        core="{who}, hook buffer_filter: expected at most 0 groups, got 5",
    ),
    wrong(
        "the maximum of nothing",
        LongestFirst,
        "buffer-filter-empty-buffer",
        "{who}: buffer_filter raised ValueError: max() arg is an empty sequence for an empty buffer",
    ),
    wrong(
        "calculates with a rollout_id that is None",
        AgeInRollouts,
        "buffer-filter-no-rollout-id",
        "{who}: buffer_filter raised TypeError: unsupported operand type(s) for -: 'NoneType' and 'int' for rollout_id None",
    ),
    wrong(
        "the second sample of a group of one",
        SecondSample,
        "buffer-filter-one-group",
        "{who}: buffer_filter raised IndexError: list index out of range for groups of one sample",
    ),
    wrong(
        "refuses rollouts with several samples",
        OneSamplePerRollout,
        "buffer-filter-odd-groups",
        "{who}: buffer_filter raised ValueError: group 8 has a rollout twice for groups that are unfinished or have no rewards",
    ),
    wrong(
        "starts aborted samples anew",
        StartsThemAnew,
        "buffer-filter-unchanged",
        (
            "{who}: buffer_filter changed what it was shown: sample 8 (group 2): tokens [5, 76, 5, 84, 32, 28] -> [5, 76, "
            "5, 84] (and 76 more changes)"
        ),
    ),
    wrong(
        "clears the buffer",
        ClearsTheBuffer,
        "buffer-filter-loses-nothing",
        "{who}: buffer_filter emptied the buffer: it returned 2 of 5 groups, and the other 3 are gone",
    ),
    wrong(
        "removes by equality",
        RemovesEqualOnes,
        "buffer-filter-loses-nothing",
        "{who}: buffer_filter removes other groups than it returns, where groups are equal: 2 of 5 are gone",
    ),
    wrong(
        "waits for a mark that nothing sets",
        NeverAny,
        "buffer-filter-takes-some",
        "{who}: buffer_filter returns no group at all, whatever the buffer holds",
    ),
    wrong(
        "shuffles without a seed",
        Shuffles,
        "buffer-filter-same-choice",
        "{who}: buffer_filter chooses differently each time, so that a resumed run goes on with other groups",
    ),
)
