"""Checks of `make_data_source`: where prompts come from, where groups go back to, and what a resumed run finds."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vime.api import Sample, Status, VimeError, rollouts
from vime.config.run_config import RunConfig
from vime.plugins.loading import describe
from vime.rollout.source_guards import check_data_source
from vime.testing.checks.base import Bench, Check, CheckFailed, CheckSkipped, fail, skip
from vime.testing.checks.rollout_stage import stage_config

HOOK = "make_data_source"
MOST = 1000
"""Groups that a check asks for at most."""


def _with_sources(bench: Bench, look: Callable[[Callable[[], Any], RunConfig], None]) -> None:
    """Let `look` build as many data sources as it likes over the same data and the same folder."""
    with tempfile.TemporaryDirectory(prefix="vime-check-", ignore_cleanup_errors=True) as folder:
        config = stage_config(bench, Path(folder))
        look(lambda: bench.function(bench.load(config)).run(args=config), config)


def _if_it_works(bench: Bench, look: Callable[[Callable[[], Any], RunConfig], None]) -> None:
    """As `_with_sources`, for a data source that gives a group at all; data-source-groups says why one does not."""

    def guarded(make: Callable[[], Any], config: RunConfig) -> None:
        try:
            found = make().get_samples(2)
            works = len(found) == 2 and all(isinstance(sample, Sample) for group in found for sample in group)
        except (Exception, CheckFailed):  # noqa: BLE001 - reported by data-source-groups
            works = False
        if not works:
            skip("there are no groups to look at, see data-source-groups")
        look(make, config)

    _with_sources(bench, guarded)


def methods(bench: Bench) -> None:
    """It returns an object with get_samples, add_samples, save, load and __len__."""

    def look(make: Callable[[], Any], config: RunConfig) -> None:
        source = make()
        check_data_source(bench.function().label, source)
        if not isinstance(len(source), int):  # pyright: ignore[reportUnnecessaryIsInstance]
            fail("__len__ does not give a number")

    _with_sources(bench, look)


def groups(bench: Bench) -> None:
    """get_samples(n) returns n groups, each a list of n_samples_per_prompt pending Samples."""

    def look(make: Callable[[], Any], config: RunConfig) -> None:
        source = make()
        if not hasattr(source, "get_samples"):
            skip("there is no get_samples, see data-source-methods")
        for count in (1, 2):
            found: Any = source.get_samples(count)
            if not isinstance(found, list) or len(found) != count:  # pyright: ignore[reportUnknownArgumentType]
                got = f"{len(found)} groups" if isinstance(found, list) else f"a {type(found).__name__}"  # pyright: ignore[reportUnknownArgumentType]
                fail(f"get_samples({count}) returned {got}; expected a list of {count} groups", hint="n counts groups, not samples")
            for group in found:  # pyright: ignore[reportUnknownVariableType]
                _check_group(group, config.n_samples_per_prompt)

    _with_sources(bench, look)


def _check_group(group: Any, size: int) -> None:
    if not isinstance(group, list):
        fail(f"get_samples returned a {type(group).__name__} as a group; expected a list of samples", hint="return groups, not a flat list")
    for sample in group:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(sample, Sample):
            fail(f"a group holds a {type(sample).__name__}; expected Sample")  # pyright: ignore[reportUnknownArgumentType]
        if sample.status is not Status.PENDING or sample.response_length:
            fail(f"sample {sample.index} of a fresh group is {sample.status.value}; expected pending, without a response")
    if len(rollouts(group)) != size:  # pyright: ignore[reportUnknownArgumentType]
        fail(
            f"a group has {len(rollouts(group))} rollouts; expected {size} (n_samples_per_prompt)",  # pyright: ignore[reportUnknownArgumentType]
            hint="make n_samples_per_prompt samples of each prompt",
        )


def nothing(bench: Bench) -> None:
    """get_samples(0) gives no groups and uses no prompt."""

    def look(make: Callable[[], Any], config: RunConfig) -> None:
        one, other = make(), make()
        got = one.get_samples(0)
        if got:
            fail(f"get_samples(0) returned {len(got)} groups", hint="return [] for 0: n counts the groups that are wanted")
        if one.get_samples(1)[0][0].index != other.get_samples(1)[0][0].index:
            fail("get_samples(0) used up a prompt", hint="return no groups and leave the position where it is")

    _if_it_works(bench, look)


def indices(bench: Bench) -> None:
    """Indices of samples and groups are numbers that never come again, epoch after epoch; a group has one group_index."""

    def look(make: Callable[[], Any], config: RunConfig) -> None:
        source, seen, groups_seen = make(), set[int](), set[int]()
        for group in _many(source, 2 * len(source) + 2):
            numbers: set[Any] = {sample.group_index for sample in group}
            if len(numbers) > 1 or None in numbers:
                fail(
                    f"a group has the group_index {', '.join(sorted(map(str, numbers)))}; expected one number",
                    hint="rewards are compared by it",
                )
            number = numbers.pop()
            if number in groups_seen:
                fail(f"two groups have the group_index {number}", hint="let it grow for ever: one counter over all epochs")
            groups_seen.add(number)
            for sample in group:
                if sample.index is None or sample.index in seen:
                    again = "has no index" if sample.index is None else f"has the index {sample.index} of another one"
                    fail(f"a sample of group {number} {again}", hint="let it grow for ever: one counter over all epochs")
                seen.add(sample.index)

    _if_it_works(bench, look)


def end(bench: Bench) -> None:
    """Beyond its last prompt it starts again, or returns fewer groups; it neither raises nor hangs."""

    def look(make: Callable[[], Any], config: RunConfig) -> None:
        source = make()
        size = min(len(source), MOST)
        for _ in range(2):
            try:
                source.get_samples(size + 1)
            except (StopIteration, IndexError, KeyError) as error:
                fail(
                    f"get_samples raised {type(error).__name__} after its {len(source)} prompts",
                    hint="start again from the first prompt, or return fewer groups than were asked for",
                )

    _if_it_works(bench, look)


def add_samples(bench: Bench) -> None:
    """Groups that are given back are handed out again, as they are."""

    def look(make: Callable[[], Any], config: RunConfig) -> None:
        source = make()
        given = source.get_samples(2)
        returned = given[1]
        try:
            source.add_samples([returned])
        except Exception as error:  # noqa: BLE001 - a refusal
            skip(f"it takes no groups back: {error.message if isinstance(error, VimeError) else describe(error)}")
        wanted = {sample.index for sample in returned}
        later = _many(source, min(len(source), MOST) + 2)
        if not any({sample.index for sample in group} == wanted for group in later):
            fail(
                f"the group {returned[0].group_index} was given back with add_samples, and never came again",
                hint="keep it and hand it out before other prompts: unfinished groups and surplus ones come back this way",
            )

    _if_it_works(bench, look)


def independent(bench: Bench) -> None:
    """Samples share no list and no dict with each other."""

    def look(make: Callable[[], Any], config: RunConfig) -> None:
        source, holder = make(), dict[int, int | None]()
        kept = _many(source, len(source) + 1 if len(source) < MOST else 2)
        for sample in (sample for group in kept for sample in group):
            for name in ("prompt", "label", "metadata", "tokens"):
                value = getattr(sample, name)
                if isinstance(value, list | dict) and id(value) in holder:  # pyright: ignore[reportUnknownArgumentType]
                    fail(
                        f"samples {holder[id(value)]} and {sample.index} share one {name} object",  # pyright: ignore[reportUnknownArgumentType]
                        hint="copy.deepcopy it for each sample: generate functions and filters write into it",
                    )
                holder[id(value)] = sample.index  # pyright: ignore[reportUnknownArgumentType]

    _if_it_works(bench, look)


def deterministic(bench: Bench) -> None:
    """Built twice, it gives the same prompts in the same order."""

    def look(make: Callable[[], Any], config: RunConfig) -> None:
        if not bench.deterministic:
            skip("declared as not deterministic")
        one, other = make(), make()
        count = min(len(one), MOST)
        if _prompts(_many(one, count)) != _prompts(_many(other, count)):
            fail("two data sources over the same data give other prompts", hint="shuffle with random.Random(args.rollout_seed + epoch)")

    _if_it_works(bench, look)


def resume(bench: Bench) -> None:
    """After save and load, or state_dict and load_state_dict, it goes on where it was."""

    def look(make: Callable[[], Any], config: RunConfig) -> None:
        first = make()
        first.get_samples(3)
        state = _state(first)
        wanted = _identities(first.get_samples(3))
        second = make()
        if state is None:
            second.load(0)
        else:
            second.load_state_dict(state)
        got = _identities(second.get_samples(3))
        if got != wanted:
            fail(
                f"after a resume the next (index, prompt) is {got[0] if got else None}; without one it is {wanted[0] if wanted else None}",
                hint="save the position, the counters and what add_samples was given, and restore all of them",
            )

    _if_it_works(bench, look)


def _state(source: Any) -> Any:
    """What a checkpoint keeps of it: its state_dict as JSON gives it back, or None for one that saves by itself."""
    if not hasattr(source, "state_dict"):
        source.save(0)
        return None
    try:
        return json.loads(json.dumps(source.state_dict()))
    except (TypeError, ValueError) as error:
        fail(f"state_dict() is not plain JSON data: {error}", hint="return dicts with string keys, lists, strings, numbers and None")


def _many(source: Any, count: int) -> list[list[Sample]]:
    """About `count` groups, two at a time, fewer where the data end."""
    found: list[list[Sample]] = []
    while len(found) < min(count, MOST):
        try:
            more = source.get_samples(2)
        except (StopIteration, IndexError, KeyError) as error:
            raise CheckSkipped("it raises at the end of its data, see data-source-end") from error
        if not more:
            break
        found.extend(more)
    return found


def _prompts(found: list[list[Sample]]) -> list[Any]:
    return [group[0].prompt for group in found]


def _identities(found: list[list[Sample]]) -> list[Any]:
    return [(sample.index, sample.prompt) for group in found for sample in group]


CHECKS: tuple[Check, ...] = (
    Check("data-source-methods", HOOK, methods),
    Check("data-source-groups", HOOK, groups),
    Check("data-source-nothing", HOOK, nothing),
    Check("data-source-indices", HOOK, indices),
    Check("data-source-end", HOOK, end),
    Check("data-source-add-samples", HOOK, add_samples),
    Check("data-source-independent", HOOK, independent),
    Check("data-source-deterministic", HOOK, deterministic),
    Check("data-source-resume", HOOK, resume),
)
