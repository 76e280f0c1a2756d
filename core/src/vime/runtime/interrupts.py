"""Ctrl-C and SIGTERM: stop at the next step boundary, save, and exit with 130 or 143."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


class Interrupted(BaseException):
    """The user asked the run to stop. `exit_code` is 130 for SIGINT and 143 for SIGTERM."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


class Interrupts:
    """Turns signals into `Interrupted` at points where the run can be rolled back.

    The first signal cancels the coroutine that `run` is running, or raises at the next `check`; a second one ends the
    process at once. Until `deferred()` is entered (during start-up) a signal raises where it arrives.
    """

    def __init__(self) -> None:
        self._signum: int | None = None
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deferred = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for signum in (signal.SIGINT, signal.SIGTERM):
            self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._signum is not None:
            _say("\nstopped at once; the last checkpoint is the one to go on from\n")
            os._exit(128 + signum)
        self._signum = signum
        if not self._deferred:
            raise Interrupted(signum)
        _say("\nstopping at the step boundary (once more to stop at once)\n")
        loop, task = self._loop, self._task  # another thread may be taking them away
        if loop is not None and task is not None:
            loop.call_soon_threadsafe(task.cancel)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """While the run can be rolled back: signals wait for `check` or cancel what `run` runs."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def check(self) -> None:
        """Raise Interrupted when a signal has come."""
        if self._signum is not None:
            raise Interrupted(self._signum)

    def run(self, complete: Callable[[Coroutine[Any, Any, T]], T], coroutine: Coroutine[Any, Any, T]) -> T:
        """Have `complete` run a coroutine to its end; a signal cancels it and raises Interrupted. Called by the main thread."""

        async def main() -> T:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            try:
                if self._signum is not None:
                    raise asyncio.CancelledError
                return await coroutine
            finally:
                self._loop = self._task = None

        try:
            return complete(main())
        except (asyncio.CancelledError, concurrent.futures.CancelledError):
            coroutine.close()
            self.check()
            raise


def _say(text: str) -> None:
    """To stderr itself: a signal may come in the middle of a write to sys.stderr, which refuses a second one from its handler."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
