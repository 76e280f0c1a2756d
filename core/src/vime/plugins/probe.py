"""What importing an installed plugin shows: its hooks, or the error. Nothing of it reaches this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vime.plugins.child import Announce, Call, call_in_children
from vime.plugins.discovery import PluginEntry

TIMEOUT = 60.0
"""Seconds that one plugin may take to be imported, where nothing else is said."""


@dataclass(frozen=True)
class Probe:
    """What importing a plugin showed: its hooks, or the error."""

    hooks: tuple[str, ...]
    error: str | None


def probe_all(
    entries: Sequence[PluginEntry], *, timeout: float = TIMEOUT, on_wait: Callable[[list[str]], None] | None = None
) -> dict[PluginEntry, Probe]:
    """Import and check these plugins, each in a process of its own. Classes are not built, since they may need settings.

    A plugin may take `timeout` seconds; `on_wait` is told now and then which ones are slow.
    """
    calls = [Call("vime.plugins.probe:look_at", (entry.target, entry.label), entry.label) for entry in entries]
    probes: dict[PluginEntry, Probe] = {}
    for entry, outcome in zip(entries, call_in_children(calls, timeout=timeout, on_wait=on_wait), strict=True):
        error = outcome.error
        probes[entry] = Probe(tuple(outcome.value or ()), error and error.message.removeprefix(f"{entry.label}: "))
    return probes


def look_at(plugin: tuple[str, str], announce: Announce) -> list[str]:
    """The child's side: the hooks of the plugin with this target and label. Raises PluginError for one that is refused."""
    from vime.plugins.loading import load_target, settings_class
    from vime.plugins.validation import check_hooks

    announce(plugin[1])
    loaded = load_target(*plugin)
    hooks = [found.hook for found in check_hooks(loaded, plugin[1])]
    settings_class(loaded, plugin[1])
    return hooks
