"""A hook function by name, for another process: pickled there, loaded there, with the same settings."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vime.plugins.function import HookFunction


@dataclass(frozen=True)
class HookReference:
    """Everything a worker process needs to find a hook function again. Either `path` or the plugin's fields are set."""

    hook: str
    path: str | None = None
    plugin: str | None = None
    distribution: str | None = None
    version: str | None = None
    settings: str = "{}"
    """The plugin's settings as JSON."""

    def load(self) -> HookFunction:
        """The function, imported and configured in this process; the same object at each call.

        Raises PluginError when the plugin is missing here or has another version than in the process that made the
        reference.
        """
        return _load(self)


@functools.cache
def _load(reference: HookReference) -> HookFunction:
    from vime.plugins.manager import load_reference
    from vime.plugins.paths import load_path_function

    if reference.path is not None:
        return load_path_function(reference.path, reference.hook)
    return load_reference(reference)
