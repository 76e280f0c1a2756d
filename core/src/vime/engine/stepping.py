"""Who steps an engine that is in this process, and how others reach it between two steps."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from vime.errors import EngineDeadError

T = TypeVar("T")


class Stepper:
    """Calls `step` as long as `is_busy`, and between two steps what was posted, in order.

    A thread of its own does it, or without one the thread that is in `work_until`, which then is the only one that may `call`
    and `close`. What `step` or a posted action raises goes to `fail`.
    """

    def __init__(
        self, step: Callable[[], object], is_busy: Callable[[], bool], fail: Callable[[BaseException], object], *, own_thread: bool
    ) -> None:
        self._step, self._is_busy, self._fail = step, is_busy, fail
        self._condition = threading.Condition()
        self._posted: deque[Callable[[], object]] = deque()
        self._closed = False
        self._thread: threading.Thread | None = None
        if own_thread:
            self._thread = threading.Thread(target=self._work, args=(self._is_finished,), name="vime-engine", daemon=True)
            self._thread.start()

    def post(self, action: Callable[[], object]) -> None:
        """Have this called between two steps. From any thread. Raises EngineDeadError after `close`."""
        with self._condition:
            self._check_open()
            self._posted.append(action)
            self._condition.notify_all()

    def call(self, action: Callable[[], T]) -> T:
        """Call this between two steps, after all that was posted, and return what it returns."""
        if self._thread is not None:
            return self._posted_call(action).result()
        self._check_open()
        self._do_posted()
        return action()

    async def calling(self, action: Callable[[], T]) -> T:
        """The same for an event loop."""
        return await asyncio.wrap_future(self._posted_call(action))

    def work_until(self, done: Future[Any]) -> None:
        """Without a thread of its own: step in this one until `done` is."""
        done.add_done_callback(lambda _: self._wake())
        self._work(done.done)

    def close(self, last: Callable[[], object]) -> None:
        """Call `last` after all that was posted, and step no more."""
        with self._condition:
            self._posted.append(last)
            self._closed = True
            self._condition.notify_all()
        if self._thread is None:
            self._turn()
        else:
            self._thread.join(timeout=10.0)

    def _work(self, is_over: Callable[[], bool]) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._posted or self._is_busy() or is_over())
            if is_over():
                return
            self._turn()

    def _turn(self) -> None:
        try:
            self._do_posted()
            if self._is_busy():
                self._step()
        except BaseException as exc:
            self._fail(exc)
            if self._thread is None and not isinstance(exc, Exception):
                raise  # an interrupt of the thread that waits

    def _do_posted(self) -> None:
        while self._posted:
            self._posted.popleft()()

    def _posted_call(self, action: Callable[[], T]) -> Future[T]:
        done: Future[T] = Future()

        def call() -> None:
            try:
                done.set_result(action())
            except BaseException as exc:  # noqa: BLE001 - handed to the caller's thread
                done.set_exception(exc)

        self.post(call)
        return done

    def _is_finished(self) -> bool:
        return self._closed and not self._posted

    def _check_open(self) -> None:
        if self._closed:
            raise EngineDeadError("the engine is closed")

    def _wake(self) -> None:
        with self._condition:
            self._condition.notify_all()
