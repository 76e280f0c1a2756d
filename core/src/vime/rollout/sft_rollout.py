"""Import path that upstream-style flags use; the function is that of vime-rollout-sft."""

from __future__ import annotations

from typing import Any

from vime.rollout.plugin_path import plugin_attribute


def __getattr__(name: str) -> Any:
    if name != "generate_rollout":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has generate_rollout")
    return plugin_attribute(__name__, name, "vime_rollout_sft.sft", "vime-rollout-sft")


def __dir__() -> list[str]:
    return ["generate_rollout"]
