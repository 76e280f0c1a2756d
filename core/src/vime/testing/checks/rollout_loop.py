"""Driving a plugin in an event loop of its own, and telling whether it lets that loop turn."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import vime
from vime.plugins.loading import describe
from vime.testing.checks.base import fail

T = TypeVar("T")

BLOCKING = 0.25
"""Seconds without a turn of the event loop that count as blocking it."""
_SAMPLING = 0.01


class DaemonThreads(ThreadPoolExecutor):
    """An executor whose threads do not keep the process alive when a plugin never returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # whoever stops waiting cannot take the place of the result any more

        def work() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future


def drive(work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
    """The result of `work` in a fresh event loop. Fails the check when it takes longer than `seconds`."""

    async def limited() -> T:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if limit.expired():
                fail(f"did not return within {seconds:g} s", hint="FakeEngine answers at once: look for a loop that waits for more data")
            raise

    with asyncio.Runner() as runner:
        runner.get_loop().set_default_executor(DaemonThreads(1))
        return runner.run(limited())


class Turns:
    """Whether the event loop turned while a plugin worked: `async with Turns() as turns: ...`, then `turns.check()`.

    A thread looks every few milliseconds whether the loop has turned since, and where the loop's thread is meanwhile.
    """

    def __init__(self) -> None:
        self.where: str | None = None
        """The line of the plugin that kept the loop from turning."""
        self._count = 0
        self._done = threading.Event()

    async def __aenter__(self) -> Turns:
        self._task = asyncio.ensure_future(self._turn())
        ident = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, args=(ident,), daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._done.set()
        self._task.cancel()
        self._thread.join(1.0)

    def check(self) -> None:
        """Fail where the loop stood still in the plugin's code."""
        if self.where is not None:
            fail(
                f"blocks the event loop for more than {BLOCKING:g} s, at {self.where}",
                hint="all other samples wait meanwhile: await an async client, or await asyncio.to_thread(function, ...)",
            )

    async def _turn(self) -> None:
        while True:
            self._count += 1
            await asyncio.sleep(_SAMPLING / 2)

    def _watch(self, ident: int) -> None:
        seen, since, looks = self._count, time.monotonic(), 0
        while not self._done.wait(_SAMPLING):
            if self._count != seen:
                seen, since, looks = self._count, time.monotonic(), 0
                continue
            looks += 1
            # Several looks, so that a machine that was busy elsewhere does not count as a plugin that blocks.
            if looks >= BLOCKING / _SAMPLING / 2 and time.monotonic() - since > BLOCKING and self.where is None:
                self.where = _own_line(sys._current_frames().get(ident))  # pyright: ignore[reportPrivateUsage]


def _own_line(frame: FrameType | None) -> str | None:
    """The innermost line that belongs neither to vime nor to Python's library."""
    library = (str(Path(vime.__file__).parent), str(Path(threading.__file__).parent))
    stack = list(traceback.extract_stack(frame)) if frame is not None else []
    own = [entry for entry in stack if not entry.filename.startswith(library) or "site-packages" in entry.filename]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}" if own else None


async def cancelled(work: Coroutine[Any, Any, Any], in_flight: Callable[[], int], what: str) -> bool:
    """Cancel `work` once it has requests in flight, and fail for whatever it leaves behind; False where it never had any."""
    loop, unseen = asyncio.get_running_loop(), list[str]()
    loop.set_exception_handler(lambda _, context: unseen.append(str(context.get("exception") or context["message"])))
    before = asyncio.all_tasks()
    task = asyncio.ensure_future(work)
    started = time.monotonic()
    while not in_flight() and time.monotonic() - started < 2.0:
        if (await asyncio.wait([task], timeout=0.002))[0]:
            break
    if task.done() or not in_flight():
        task.cancel()
        await asyncio.wait([task], timeout=1.0)
        if not task.cancelled():
            task.exception()
        return False
    task.cancel()
    await asyncio.wait([task], timeout=3.0)
    if not task.done():
        fail(f"{what} goes on after it was cancelled", hint="let asyncio.CancelledError through: catch Exception, not BaseException")
    if not task.cancelled() and task.exception() is None:
        fail(f"{what} returned a result although it was cancelled", hint="let asyncio.CancelledError through after cleaning up")
    if not task.cancelled():
        fail(
            f"{what} ended with {describe(task.exception() or RuntimeError())} when it was cancelled, and not with CancelledError",
            hint="let asyncio.CancelledError through after cleaning up",
        )
    del task
    for _ in range(10):
        await asyncio.sleep(0)
    if in_flight():
        fail(
            f"requests still running in the engine after {what} was cancelled: {in_flight()}",
            hint="start requests in an asyncio.TaskGroup, or cancel their tasks in `finally` and await them",
        )
    left = asyncio.all_tasks() - before
    if left:
        names = ", ".join(sorted({getattr(item.get_coro(), "__qualname__", "?") for item in left}))
        fail(f"tasks still there after {what} was cancelled: {names}", hint="cancel them in `finally` and await them")
    gc.collect()
    if unseen:
        fail(f"an exception was never retrieved after {what} was cancelled: {unseen[0]}", hint="await the tasks that were started")
    return True
