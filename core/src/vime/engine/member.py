"""One engine of a pool: what it has in flight, what it answers, and whether it still lives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Protocol

from vime.engine.host import IDLE_HEARTBEATS, Poll, Request
from vime.errors import EngineDeadError, EngineError
from vime.outputs import Generation

HEARTBEAT = 1.0
"""Seconds after which an engine with requests answers a poll though nothing has finished."""


class EngineHandle(Protocol):
    """The way to one `EngineHost`, in whatever process it lives. Called from any thread."""

    label: str
    """The engine in messages: "engine 1 (process 4711 on node 10.0.0.7)"."""

    def call(self, method: str, *args: Any) -> Future[Any]:
        """Call a method of the host. The future raises EngineDeadError where the process is gone."""
        ...

    def kill(self) -> None: ...


@dataclass(eq=False)
class Pending:
    """A request that has not been answered. It is in one place at a time; who takes it out of there answers it."""

    request: Request
    session_id: str | None
    future: asyncio.Future[Generation]
    is_admitted: bool = False
    """Whether the engine has said that it has it: an abort before that might overtake it."""
    is_aborted: bool = False
    tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = len(self.request.token_ids) + int(self.request.sampling_params.get("max_new_tokens", 0))


def deliver(answers: Iterable[tuple[Pending, Generation | EngineError]]) -> None:
    """Resolve the futures of these requests, each in its loop. From any thread."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Pending, Generation | EngineError]]] = {}
    for answer in answers:
        by_loop.setdefault(answer[0].future.get_loop(), []).append(answer)
    for loop, its in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, its)
        except RuntimeError:  # the loop was closed: nobody waits any more
            continue


def _resolve(answers: list[tuple[Pending, Generation | EngineError]]) -> None:
    for pending, result in answers:
        if pending.future.done():
            continue
        if isinstance(result, EngineError):
            pending.future.set_exception(result)
        else:
            pending.future.set_result(result)


class Member:
    """An engine of the pool.

    `lock` is the pool's: it is held for every change of what is in flight, and never while an engine is called. Answers go to
    the pool's thread (`react(callback, answer)`): those of Ray come in one that must not be blocked. The pool is told of
    deaths (`died(member, cause)`), at least once, and of counters (`counted(steps, stats)`).
    """

    def __init__(
        self,
        index: int,
        handle: EngineHandle,
        *,
        lock: RLock,
        engine_timeout: float,
        react: Callable[[Callable[[Future[Any]], object], Future[Any]], object],
        died: Callable[[Member, str], None],
        counted: Callable[[int, dict[str, float]], None],
    ) -> None:
        self.index, self.handle = index, handle
        self.load = 0
        """Tokens in flight: prompts, and responses at their full length."""
        self.is_out = False
        """Whether the pool has buried it: what it still answers is of no interest."""
        self._lock, self._timeout, self._react, self._died, self._counted = lock, engine_timeout, react, died, counted
        self._heartbeat = min(HEARTBEAT, engine_timeout / 4)
        self._pending: dict[int, Pending] = {}
        self._outgoing: list[Pending] = []
        self._calls = self._steps = 0
        self._heard = self._moved = time.monotonic()

    @property
    def label(self) -> str:
        return self.handle.label

    # --- requests ---------------------------------------------------------------------------------------------------

    def add(self, pending: Pending) -> None:
        """Take a request, to be sent by the next `flush`. With the lock held."""
        if not self._pending:
            self._moved = time.monotonic()
        pending.is_admitted = False
        self._pending[pending.request.request_id] = pending
        self._outgoing.append(pending)
        self.load += pending.tokens

    def in_flight(self) -> list[Pending]:
        """With the lock held."""
        return list(self._pending.values())

    def flush(self) -> None:
        """Send what was added, in one message."""
        with self._lock:
            batch, self._outgoing = self._outgoing, []
        if batch and not self.is_out:
            self._ask(lambda answer: self._submitted(batch, answer), "submit", [pending.request for pending in batch])

    def _submitted(self, batch: list[Pending], answer: Future[Any]) -> None:
        error = answer.exception()
        if isinstance(error, EngineDeadError):
            self._died(self, error.message)
            return
        with self._lock:
            mine = [pending for pending in batch if self._pending.get(pending.request.request_id) is pending]
            if error is not None:
                for pending in mine:
                    self._take(pending.request.request_id)
            else:
                for pending in mine:
                    pending.is_admitted = True
        if error is not None:
            refusal = EngineError(f"{self.label} could not take a request: {type(error).__name__}: {error}")
            deliver((pending, refusal) for pending in mine)
        else:
            self._send_aborts([pending for pending in mine if pending.is_aborted])

    def abort(self, requests: Sequence[Pending]) -> list[Pending]:
        """Ask the engine to stop these; their results come by the usual way. Those that were not sent yet are returned."""
        with self._lock:
            mine = [pending for pending in requests if self._pending.get(pending.request.request_id) is pending]
            unsent = [pending for pending in mine if pending in self._outgoing]
            for pending in mine:
                pending.is_aborted = True
            for pending in unsent:
                self._outgoing.remove(pending)
                self._take(pending.request.request_id)
        self._send_aborts([pending for pending in mine if pending.is_admitted and pending not in unsent])
        return unsent

    def _send_aborts(self, requests: Sequence[Pending]) -> None:
        if requests:
            self._ask(self._watch_for_death, "abort", [pending.request.request_id for pending in requests])

    def _take(self, request_id: int) -> Pending | None:
        pending = self._pending.pop(request_id, None)
        if pending is not None:
            self.load -= pending.tokens
        return pending

    def take_all(self) -> list[Pending]:
        """Everything in flight, out of a member that is out. With the lock held."""
        orphans, self._pending, self._outgoing, self.load = list(self._pending.values()), {}, [], 0
        return orphans

    # --- whether it lives -------------------------------------------------------------------------------------------

    def call(self, method: str, *args: Any) -> Future[Any]:
        """Call a method of the host. Never raises: an error is in the future."""
        try:
            return self.handle.call(method, *args)
        except Exception as error:  # noqa: BLE001 - whoever waits for the future has it
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed

    def _ask(self, callback: Callable[[Future[Any]], object], method: str, *args: Any) -> None:
        """Call a method of the host; the pool's thread calls back with the answer."""
        self.call(method, *args).add_done_callback(lambda answer: self._react(callback, answer))

    def call_at_leisure(self, method: str, *args: Any) -> Future[Any]:
        """As `call`, for what may take its time: until it is done the engine may stand still."""
        with self._lock:
            self._calls += 1

        def done(_answer: Future[Any]) -> None:
            with self._lock:
                self._calls -= 1
                self._moved = time.monotonic()

        answer = self.call(method, *args)
        answer.add_done_callback(done)
        return answer

    def poll(self) -> None:
        """Ask for results, from now until the engine is out."""
        self._ask(self._polled, "poll", self._heartbeat)

    def _polled(self, answer: Future[Poll]) -> None:
        if self._watch_for_death(answer):
            return
        poll, fatal = answer.result(), None
        answers: list[tuple[Pending, Generation | EngineError]] = []
        with self._lock:
            if self.is_out:
                return
            for request_id, result in poll.results:
                if isinstance(result, EngineDeadError):  # the request goes on elsewhere, with all others
                    fatal = result.message
                elif (pending := self._take(request_id)) is not None:
                    answers.append((pending, result))
            self._heard = time.monotonic()
            advance = max(0, poll.steps - self._steps)
            if advance or answers:
                self._steps, self._moved = max(self._steps, poll.steps), self._heard
        self._counted(advance, poll.stats)
        deliver(answers)
        if fatal is not None:
            self._died(self, f"cannot go on: {fatal}")
        else:
            self.poll()

    def _watch_for_death(self, answer: Future[Any]) -> bool:
        """Whether the answer is an error, which the pool is told: nothing that is sent this way fails in an engine that is well."""
        error = answer.exception()
        if error is None:
            return False
        self._died(self, error.message if isinstance(error, EngineDeadError) else f"has failed: {type(error).__name__}: {error}")
        return True

    def forgive(self, seconds: float) -> None:
        """Do not count a time in which this process itself stood still."""
        with self._lock:
            self._heard += seconds
            self._moved += seconds

    def standstill(self) -> str | None:
        """Why this engine is to be taken for dead, if it is."""
        with self._lock:
            now = time.monotonic()
            if self._pending and not self._calls and now - self._moved > self._timeout:
                return f"made no step in {self._timeout:g} s"
            if now - self._heard > self._timeout + self._heartbeat * IDLE_HEARTBEATS:
                return f"gave no answer in {self._timeout:g} s"
        return None
