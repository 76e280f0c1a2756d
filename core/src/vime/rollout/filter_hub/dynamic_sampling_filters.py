"""Import path that upstream-style flags use; the functions are those of vime-filters-basic."""

from __future__ import annotations

from typing import Any

from vime.rollout.plugin_path import plugin_attribute

_NAMES = ("check_reward_nonzero_std", "check_reward_nonzero_std_with_fallback")


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_NAMES)}")
    return plugin_attribute(__name__, name, "vime_filters_basic.nonzero_std", "vime-filters-basic")


def __dir__() -> list[str]:
    return list(_NAMES)
