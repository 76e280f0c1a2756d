"""What the core checks of a data source: its methods once, and what it hands out at every fetch. Raises ContractError."""

from __future__ import annotations

from typing import Any

from vime.errors import ContractError
from vime.plugins.paths import DATA_SOURCE_METHODS
from vime.rollout.reward_guard import where
from vime.sample import Sample, rollouts


def check_data_source(who: str, source: Any) -> None:
    """An object with the methods of a data source."""
    if isinstance(source, type):
        raise ContractError(
            f"{who}: make_data_source returned the class {source.__name__}", hint=f"return an object: {source.__name__}(args)"
        )
    missing = [name for name in DATA_SOURCE_METHODS if not callable(getattr(source, name, None))]
    if missing:
        got = "None" if source is None else f"a {type(source).__name__}"
        raise ContractError(
            f"{who}: make_data_source returned {got} without {', '.join(missing)}",
            hint="a data source has " + ", ".join(DATA_SOURCE_METHODS),
        )


def check_fetched(who: str, groups: Any, asked: int, group_size: int, seen: dict[int, Sample]) -> None:
    """What get_samples returned: at most `asked` groups of `group_size` rollouts, no Sample object twice.

    `seen` holds the samples of earlier calls for the same rollout by id (held, so that no id is given anew); those of this call are added.
    """
    name = f"{who}: get_samples({asked})"
    if not isinstance(groups, list | tuple):
        hint = "make get_samples a plain method, not `async def`" if hasattr(groups, "__await__") else "return a list of groups"
        raise ContractError(f"{name} returned {type(groups).__name__}; expected a list of at most {asked} groups", hint=hint)
    if len(groups) > asked:
        raise ContractError(
            f"{name} returned {len(groups)} groups; expected at most {asked}", hint="return as many groups as were asked for"
        )
    for position, group in enumerate(groups):
        if not isinstance(group, list) or not group or not all(isinstance(sample, Sample) for sample in group):
            got = type(group).__name__ if not isinstance(group, list) else ("an empty list" if not group else "a list with something else")
            raise ContractError(
                f"{name} returned {got} as group {position}; expected a list of Samples",
                hint="return groups, each a list of n_samples_per_prompt Samples, not a flat list",
            )
        size = len(rollouts(group))
        if size != group_size:
            raise ContractError(
                f"{name} returned a group of {size} rollouts (position {position}); expected {group_size} (n_samples_per_prompt)",
                hint="make args.n_samples_per_prompt Samples of each prompt",
            )
        for sample in group:
            if id(sample) in seen:
                raise ContractError(
                    f"{name} handed out {where(sample)} twice in one rollout", hint="make new Sample objects, and hand out each once"
                )
            seen[id(sample)] = sample
