"""The garbage collector and the many objects of torch, transformers, DeepSpeed and vLLM."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast


@contextmanager
def heavy_imports(*, without: str | None = None) -> Iterator[None]:
    """Around imports that make a great many objects, all of which stay for good.

    The garbage collector would walk them again and again meanwhile, and in every full collection later: it is off within the block,
    and afterwards, where anything was imported, does not look at what is there by then. `without` names a module that is not found
    within the block unless it has been imported before: one that a library imports where it can, for something that is not used here.
    """
    gc.collect()  # what is garbage by now would stay for good too
    was_enabled, hidden, modules = gc.isenabled(), without is not None and without not in sys.modules, len(sys.modules)
    gc.disable()
    if without is not None and hidden:
        cast("dict[str, Any]", sys.modules)[without] = None
    try:
        yield
    finally:
        if without is not None and hidden:
            del sys.modules[without]
        if len(sys.modules) > modules:
            gc.freeze()
        if was_enabled:
            gc.enable()


@contextmanager
def collecting_less_often() -> Iterator[None]:
    """Within the block, look for garbage after 50,000 new objects instead of 700, and never among what was there before.

    A rollout of 256 samples makes tens of thousands of objects, none of them garbage before its end.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
