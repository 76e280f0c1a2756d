"""Who steps an engine that is in this process, and how others reach it between two steps."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from vime.errors import EngineDeadError, EngineError

T = TypeVar("T")


_LOOK = 0.02
"""Seconds between two looks of a step at the event loop that it waits for."""
_AWAKE = 0.5
"""Seconds after which the thread that waits looks up, so that a signal that another thread was sent is handled."""


class Stepper:
    """Calls `step` as long as `is_busy`, and between two steps what was posted, in order.

    A thread of its own does it, or without one the thread that is in `work_for`, which then is the only one that may `call`
    and `close`. What `step` or a posted action raises goes to `fail`.
    """

    def __init__(
        self, step: Callable[[], object], is_busy: Callable[[], bool], fail: Callable[[BaseException], object], *, own_thread: bool
    ) -> None:
        self._step, self._is_busy, self._fail = step, is_busy, fail
        self._condition = threading.Condition()
        self._posted: deque[Callable[[], object]] = deque()
        self._closed = False
        self._is_over: Callable[[], bool] = _yes
        """Whether nobody is left to work for."""
        self._thread: threading.Thread | None = None
        if own_thread:
            self._is_over = self._is_finished
            self._thread = threading.Thread(target=self._work, name="vime-engine", daemon=True)
            self._thread.start()

    def check_at_work(self) -> None:
        """Raise EngineError where a request would wait for ever."""
        if self._is_over is _yes:
            raise EngineError(
                "the engine works while the run waits for a rollout or an evaluation, and at this moment it does not",
                hint="generate in the hooks of rollouts, or use --pipeline async, where the engine works all the time",
            )

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

    def work_for(self, begin: Callable[[], Future[T]]) -> T:
        """Without a thread of its own: begin something, step in this thread until it is done, and return its result."""
        done: Future[T] | None = None
        self._is_over = lambda: done is not None and done.done()
        try:
            done = begin()
            done.add_done_callback(lambda _: self.wake())
            self._work()
        finally:
            self._is_over = _yes
        return done.result()

    def wait_until(self, is_ready: Callable[[], bool], seconds: float) -> None:
        """In a step: wait for something in another thread, at most so long, and not when nobody is left to work for."""
        until = time.monotonic() + seconds
        with self._condition:
            while not is_ready() and not self._is_over() and time.monotonic() < until:
                self._condition.wait(_LOOK)

    def wake(self) -> None:
        """Have whoever waits look again. From any thread."""
        with self._condition:
            self._condition.notify_all()

    def close(self, last: Callable[[], object]) -> None:
        """Call `last` after all that was posted, and step no more."""
        with self._condition:
            self._posted.append(last)
            self._closed = True
            self._condition.notify_all()
        if self._thread is None:
            self._do_posted()
        else:
            self._thread.join(timeout=10.0)

    def _work(self) -> None:
        while not self._is_over():
            with self._condition:
                self._condition.wait_for(lambda: self._posted or self._is_busy() or self._is_over(), _AWAKE)
            if not self._is_over():
                self._do_posted()
                if self._is_busy():
                    self._do(self._step)

    def _do_posted(self) -> None:
        while self._posted:
            self._do(self._posted.popleft())

    def _do(self, action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as exc:
            self._fail(exc)
            if self._thread is None and not isinstance(exc, Exception):
                raise  # an interrupt of the thread that waits

    def _posted_call(self, action: Callable[[], T]) -> Future[T]:
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()  # whoever stops waiting does not cancel it

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


def _yes() -> bool:
    return True
