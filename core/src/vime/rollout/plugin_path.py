"""Import paths of the core whose objects live in a plugin package: upstream-style path flags name them."""

from __future__ import annotations

import importlib
from typing import Any

from vime.errors import PluginError


def plugin_attribute(path: str, name: str, module: str, distribution: str) -> Any:
    """`name` out of the plugin's `module`. Raises PluginError with the pip line where the package is not installed."""
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise PluginError(f"{path}.{name} comes with {distribution}, which is not installed", hint=f"pip install {distribution}") from None
