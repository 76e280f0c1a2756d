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
def reward_limit_paused() -> Iterator[None]:
    """Around a wait that says nothing about a reward, such as one for its turn: `--reward-timeout` stands still meanwhile.

    It goes on afterwards with what was left. Outside of an asynchronous reward, and for synchronous ones, nothing happens.
    """
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
