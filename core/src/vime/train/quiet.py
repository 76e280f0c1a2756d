"""Keep libraries from writing to the terminal, which belongs to the console of the run."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
from collections.abc import Iterator

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars of transformers inside; as before afterwards."""
    from transformers.utils import logging as transformers_logging

    was_enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            transformers_logging.enable_progress_bar()


@contextlib.contextmanager
def quiet_deepspeed() -> Iterator[None]:
    """What DeepSpeed prints inside (memory reports, through bare `print`) goes to the debug log.

    Each such report collects garbage first. With the libraries' objects frozen that takes milliseconds, not seconds.
    """
    text = io.StringIO()
    is_ours = gc.get_freeze_count() == 0
    if is_ours:
        gc.freeze()
    try:
        with contextlib.redirect_stdout(text):
            yield
    finally:
        if is_ours:
            gc.unfreeze()
        if text.getvalue():
            logger.debug("DeepSpeed: %s", text.getvalue().strip())
