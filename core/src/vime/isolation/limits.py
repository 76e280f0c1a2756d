"""The limit of a reward, which stands still while the reward waits for a worker: waiting says nothing about the reward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

reward_limit: ContextVar[asyncio.Timeout | None] = ContextVar("vime_reward_limit", default=None)
"""The `asyncio.timeout` around the reward that runs in this context."""


@contextlib.contextmanager
def standing_still() -> Iterator[None]:
    """Stop the clock of the reward of this context, where there is one, and let it go on afterwards with what was left."""
    import asyncio

    limit = reward_limit.get()
    if limit is None or limit.when() is None:
        yield
        return
    clock = asyncio.get_running_loop().time
    left = limit.when() - clock()  # pyright: ignore[reportOptionalOperand]
    with contextlib.suppress(RuntimeError):  # it ended, and this is a task that outlives it
        limit.reschedule(None)
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError):
            limit.reschedule(clock() + left)
