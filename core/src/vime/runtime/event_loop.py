"""The event loop of a run, and who turns it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from vime.engine.base import Stepped
from vime.errors import EngineError
from vime.runtime.build import new_event_loop

if TYPE_CHECKING:
    from vime.engine.base import TrainableEngine
    from vime.runtime.interrupts import Interrupts

T = TypeVar("T")


class RunLoop:
    """The event loop in which rollouts, rewards and evaluations run. Its methods are called by the main thread.

    The main thread turns it while it waits for something; where the engine works in the thread that waits (`Stepped`),
    another thread turns the loop meanwhile. After `in_background` a thread of its own turns it all the time, so that
    what was begun goes on while the main thread trains.
    """

    def __init__(self, interrupts: Interrupts) -> None:
        self.loop = new_event_loop()
        self.engine: TrainableEngine | None = None
        """Where requests are in flight; the run sets it."""
        self._interrupts = interrupts
        self._thread: threading.Thread | None = None
        self._turner = ThreadPoolExecutor(1, "vime-rollouts")

    def in_background(self) -> None:
        """Let a thread turn the loop from now on."""
        assert not isinstance(self.engine, Stepped), "nobody would step it"
        self._thread = threading.Thread(target=self.loop.run_forever, name="vime-rollouts", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end. A signal raises Interrupted. After it, or an error, nothing is left running in the loop."""
        try:
            return self._interrupts.run(self.complete, coroutine)
        except BaseException:
            self.settle()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a coroutine that goes on in the background."""
        return self.call(lambda: self.loop.create_task(coroutine))

    def call(self, function: Callable[[], T]) -> T:
        """Call a function between two turns of the loop, in the thread that turns it."""

        async def called() -> T:
            return function()

        return self.complete(called())

    def settle(self) -> None:
        """End what runs in the loop: requests first, so that whoever waits for one goes on."""
        self.complete(self._settled())

    def close(self) -> None:
        """End what is left, and close what plugins keep open for this loop."""
        self.settle()
        self.complete(self.loop.shutdown_asyncgens())
        if self._thread is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout=5.0)
            self._thread = None
        self._turner.shutdown()
        self.loop.close()

    async def _settled(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if not left:
            return
        if self.engine is not None:
            with contextlib.suppress(EngineError):
                await self.engine.abort_all()
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=5.0)

    def complete(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        if self._thread is not None:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()
        if not isinstance(self.engine, Stepped):
            return self.loop.run_until_complete(coroutine)
        task = self.loop.create_task(coroutine)  # in this thread, whose context hooks then see
        try:
            return self.engine.work_for(lambda: self._turner.submit(self.loop.run_until_complete, task))
        except BaseException:  # of the coroutine, which then is over, or an interrupt of this thread: nobody steps for it any more
            self.loop.call_soon_threadsafe(task.cancel)
            raise
