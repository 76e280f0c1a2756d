"""The plugin manager of one run: who implements which hook, in the user's order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vime.plugins.function import HookFunction, HookTimes

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig

__all__ = ["HookFunction", "LoadedPlugin", "PluginManager"]


@dataclass(frozen=True)
class LoadedPlugin:
    """An enabled plugin: where it comes from, the object that was built, and its functions by hook."""

    name: str
    distribution: str | None
    version: str | None
    target: str
    obj: Any
    settings: Any = None
    hooks: dict[str, HookFunction] = field(default_factory=dict)


class PluginManager:
    """The plugins and path functions of one run."""

    def __init__(self) -> None:
        self.times = HookTimes()
        self._plugins: list[LoadedPlugin] = []

    @classmethod
    def load(cls, config: RunConfig) -> PluginManager:
        """Import, check and build the plugins and path functions that `config` names. Raises PluginError or ConfigError."""
        raise NotImplementedError

    @property
    def plugins(self) -> tuple[LoadedPlugin, ...]:
        """The enabled plugins in the user's order."""
        return tuple(self._plugins)

    def get(self, name: str) -> LoadedPlugin | None:
        """The enabled plugin of this name, compared as PEP 503 does."""
        raise NotImplementedError

    def implementations(self, hook: str) -> list[HookFunction]:
        """All functions for this hook: plugins in the user's order, then path functions."""
        raise NotImplementedError

    def claimed(self, hook: str, *, evaluation: bool = False) -> HookFunction | None:
        """The one function for a hook of kind "one": the path function, else the plugin's, else None."""
        raise NotImplementedError

    def path_function(self, path: str, hook: str) -> HookFunction:
        """The function that `path` names, adapted to `hook`. Resolved once."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The state of every plugin that has one, by plugin name."""
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Give every plugin its part of `state_dict()` back."""
        raise NotImplementedError

    def lock(self) -> dict[str, Any]:
        """What identifies the plugins of this run: names, distributions, versions, settings, path functions."""
        raise NotImplementedError

    def take_timings(self) -> dict[str, float]:
        """Milliseconds by `<plugin>/<hook>_ms` since the last call."""
        return self.times.take()
