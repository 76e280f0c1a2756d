"""Entries that need not spell out whom their messages name."""

from __future__ import annotations

import inspect
from typing import Any

from zoo.base import Wrong


def wrong(name: str, target: Any, check_id: str, message: str, *, core: str | None = None, **more: Any) -> Wrong:
    """An entry whose messages have `{who}` in the place of the plugin's or the function's name."""
    routine = inspect.isroutine(target)
    who = f"path function {target.__module__}:{target.__qualname__}" if routine else f"plugin {target.__qualname__!r}"
    told = None if core is None else core.replace("{who}", who)
    return Wrong(name, target, check_id, message.replace("{who}", who), core=told, **more)
