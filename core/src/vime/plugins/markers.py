"""The two pluggy markers of the project `vime`. Plugins take `hookimpl` from vime.api."""

from __future__ import annotations

import pluggy

PROJECT = "vime"

hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function or method as the implementation of the hook of the same name."""

hookspec = pluggy.HookspecMarker(PROJECT)
