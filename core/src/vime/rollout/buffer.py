"""Taking groups out of the buffer: first in, first out, or by a buffer filter whose answer is checked."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from vime.errors import ContractError
from vime.plugins.function import HookFunction
from vime.plugins.hookspecs import HOOKS
from vime.rollout.unchanged import watched
from vime.sample import Sample

Group = list[Sample]


def take_first(buffer: list[Group], num_samples: int) -> list[Group]:
    """Remove and return the first groups, at most `num_samples`."""
    groups = buffer[:num_samples]
    del buffer[:num_samples]
    return groups


def take_with_filter(
    buffer_filter: Callable[..., Any] | HookFunction, args: Any, rollout_id: int | None, buffer: list[Group], num_samples: int
) -> list[Group]:
    """Let a buffer filter choose, check its answer, and remove what it chose if it did not.

    The answer must be groups of the buffer, whole, none twice, at most `num_samples`. Groups that the filter removed
    without returning them are gone on purpose. On a ContractError the buffer is as it was.
    """
    before = list(buffer)
    members = [tuple(map(id, group)) for group in before]
    contents = [list(group) for group in before]
    hook = buffer_filter if isinstance(buffer_filter, HookFunction) else _as_hook(buffer_filter)
    who = f"{hook.label}, hook buffer_filter"
    try:
        with watched(args, hook, chain.from_iterable(before)):
            chosen = hook.run(args=args, rollout_id=rollout_id, buffer=buffer, num_samples=num_samples)
        _check(chosen, members, num_samples, who)
        chosen = list(chosen)  # it may be the buffer itself
        left = {tuple(map(id, group)) for group in buffer}
        if not left <= set(members):
            raise ContractError(
                f"{who}: it put groups into the buffer, or changed some, that were not there before", hint="choose from the buffer only"
            )
    except Exception:
        for group, content in zip(before, contents, strict=True):
            group[:] = content
        buffer[:] = before
        raise
    taken = {tuple(map(id, group)) for group in chosen}
    buffer[:] = [group for group in buffer if tuple(map(id, group)) not in taken]
    return chosen


def _check(chosen: Any, members: list[tuple[int, ...]], num_samples: int, who: str) -> None:
    if not isinstance(chosen, list | tuple):
        raise ContractError(f"{who}: expected a list of groups, got {type(chosen).__name__}", hint="return some of the groups of `buffer`")
    if len(chosen) > num_samples:
        raise ContractError(f"{who}: expected at most {num_samples} groups, got {len(chosen)}", hint="return at most num_samples groups")
    known = set(members)
    whole = {sample for group in members for sample in group}
    seen: set[tuple[int, ...]] = set()
    for group in chosen:
        if not isinstance(group, list | tuple):
            raise ContractError(f"{who}: expected groups (lists of Sample), got a {type(group).__name__} in the list")
        key = tuple(map(id, group))
        if key not in known:
            problem = (
                "a part of a group, or samples of several groups"
                if any(sample in whole for sample in key)
                else "a group that is not in the buffer"
            )
            raise ContractError(
                f"{who}: expected whole groups of the buffer, got {problem}", hint="return the group objects themselves, unchanged"
            )
        if key in seen:
            raise ContractError(f"{who}: group {group[0].group_index} came back twice")
        seen.add(key)


def _as_hook(function: Any) -> HookFunction:
    """A plain function, which is called in upstream's order."""
    name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"
    order = HOOKS["buffer_filter"].params
    return HookFunction(plugin=name, label=name, hook="buffer_filter", function=function, order=order)
