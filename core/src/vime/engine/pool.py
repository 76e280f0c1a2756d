"""Several engines as one: routes requests, finishes those of an engine that dies elsewhere, and starts a new one in its place."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any

from vime.engine.base import SamplingParams
from vime.engine.host import Request
from vime.engine.loops import in_thread
from vime.engine.member import EngineHandle, Member, Pending, deliver
from vime.engine.routing import Router
from vime.errors import EngineDeadError, EngineError
from vime.outputs import Generation

ABORT_SECONDS = 10.0
"""Seconds that `abort` waits for the requests to end."""


class EnginePool:
    """M engines that hold the same weights (`TrainableEngine`).

    `start(index)` starts the engine of that number and returns when it answers; `put` makes packed weights fit to be sent
    to many engines. Requests come from one event loop at a time, everything else from any thread.
    """

    def __init__(
        self,
        handles: Sequence[EngineHandle],
        *,
        start: Callable[[int], EngineHandle],
        put: Callable[[Iterable[tuple[str, Any]]], Any],
        tokenizer: Any,
        max_model_len: int,
        router: Router,
        max_restarts: int,
        engine_timeout: float,
        sync_timeout: float,
        say: Callable[[str], object],
    ) -> None:
        self.tokenizer, self.max_model_len = tokenizer, max_model_len
        self.engine_timeout, self.sync_timeout, self.max_restarts = engine_timeout, sync_timeout, max_restarts
        self.restarts = self.steps = 0
        self._start, self._put, self._say, self._router = start, put, say, router
        self._lock = threading.RLock()
        """Held for every change of what follows and of what a member has in flight; never while an engine is called."""
        self._stop = threading.Event()
        self._size = len(handles)
        self._waiting: list[Pending] = []
        """Requests for which there is no engine at the moment."""
        self._current: tuple[Callable[[], Any], int] | None = None
        """What gives the weights that every engine is to hold, as `put` makes them, and their version."""
        self._weight_version = 0
        self._ids = itertools.count()
        self._flushing: asyncio.AbstractEventLoop | None = None
        """The loop that is to send what was dispatched in this turn of it."""
        self._failure: EngineDeadError | None = None
        self._stats: Counter[str] = Counter()
        self._answers: SimpleQueue[tuple[Callable[[Future[Any]], object], Future[Any]]] = SimpleQueue()
        self._members = {index: self._member(index, handle) for index, handle in enumerate(handles)}
        for member in list(self._members.values()):
            member.poll()
        for target, name in ((self._work, "vime-engines"), (self._watch, "vime-engine-watch")):
            threading.Thread(target=target, name=name, daemon=True).start()

    def _member(self, index: int, handle: EngineHandle) -> Member:
        return Member(
            index, handle, lock=self._lock, engine_timeout=self.engine_timeout, react=self._react, died=self._bury, counted=self._count
        )

    def _react(self, callback: Callable[[Future[Any]], object], answer: Future[Any]) -> None:
        self._answers.put((callback, answer))

    def _work(self) -> None:
        """In a thread of its own: react to what engines answer."""
        while not self._stop.is_set():
            callback, answer = self._answers.get()
            try:
                callback(answer)
            except Exception as error:  # noqa: BLE001 - without this thread all would wait for ever
                self._fail(
                    EngineDeadError(f"the pool of engines failed: {_told(error)}", hint="this is an error of vime: please report it"), []
                )

    @property
    def weight_version(self) -> int:
        return self._weight_version

    # --- requests ---------------------------------------------------------------------------------------------------

    async def generate(self, token_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str | None = None) -> Generation:
        (generation,) = await self._run([(token_ids, sampling_params)], session_id)
        return generation

    async def generate_many(self, requests: Sequence[tuple[Sequence[int], SamplingParams]]) -> list[Generation]:
        return await self._run(requests, None)

    async def _run(self, requests: Sequence[tuple[Sequence[int], SamplingParams]], session_id: str | None) -> list[Generation]:
        loop = asyncio.get_running_loop()
        wave = [
            Pending(Request(next(self._ids), list(token_ids), params), session_id, loop.create_future()) for token_ids, params in requests
        ]
        self._dispatch(wave)
        if self._flushing is not loop:  # what comes in one turn of the loop goes to an engine in one message
            self._flushing = loop
            loop.call_soon(self._flush)
        try:
            return list(await asyncio.gather(*(pending.future for pending in wave)))
        except BaseException:  # a caller that gave up, or a request that failed: the others must not run on unseen
            for pending in wave:
                pending.future.cancel()
            self._abort(wave)
            raise

    def _dispatch(self, wave: Sequence[Pending]) -> None:
        """Give each request to an engine, which `_flush` sends it to. Raises EngineDeadError where there will be none."""
        with self._lock:
            self._raise_failure()
            if not self._members:
                self._waiting += wave
                return
            for pending in wave:
                loads = {index: member.load for index, member in self._members.items()}
                self._members[self._router.choose(pending.request.token_ids, loads)].add(pending)

    def _flush(self) -> None:
        """Send what was dispatched."""
        self._flushing = None
        with self._lock:
            members = list(self._members.values())
        for member in members:
            member.flush()

    async def abort(self, session_id: str) -> None:
        await self._abort_and_wait(lambda pending: pending.session_id == session_id)

    async def abort_all(self) -> None:
        await self._abort_and_wait(lambda _: True)

    async def _abort_and_wait(self, is_meant: Callable[[Pending], bool]) -> None:
        with self._lock:
            everything = [pending for member in self._members.values() for pending in member.in_flight()] + self._waiting
        meant = [pending for pending in everything if is_meant(pending)]
        self._abort(meant)
        here = [pending.future for pending in meant if pending.future.get_loop() is asyncio.get_running_loop()]
        if here:
            await asyncio.wait(here, timeout=ABORT_SECONDS)

    def _abort(self, requests: Sequence[Pending]) -> None:
        """Stop these requests: the engines are asked to, and what has no engine ends here."""
        meant = {id(pending) for pending in requests}
        with self._lock:
            members = list(self._members.values())
            ended = [pending for pending in self._waiting if id(pending) in meant]
            self._waiting = [pending for pending in self._waiting if id(pending) not in meant]
        for member in members:
            ended += member.abort(requests)
        self._end(ended)

    def _end(self, requests: Iterable[Pending]) -> None:
        deliver((pending, Generation([], [], "", "abort", self._weight_version)) for pending in requests)

    # --- engines that die -------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """In a thread of its own: end engines that stand still."""
        interval, looked = min(1.0, self.engine_timeout / 4), time.monotonic()
        while not self._stop.wait(interval):
            with self._lock:
                members = list(self._members.values())
            now = time.monotonic()
            own_pause, looked = now - looked - interval, now
            for member in members:
                if own_pause > interval:
                    member.forgive(own_pause)
                cause = member.standstill()
                if cause is not None:
                    self._bury(member, f"{cause} and was ended")

    def _bury(self, member: Member, cause: str) -> None:
        """Take a dead engine out, have its requests finished elsewhere, and start another one. Once for each, from any thread."""
        with self._lock:
            if self._stop.is_set() or member.is_out:
                return
            member.is_out = True
            self._members.pop(member.index, None)
            self._router.forget(member.index)
            orphans = member.take_all()
            may_restart = self._may_restart()
            if not may_restart:
                self._fail(EngineDeadError(f"{member.label} {cause}", hint=_NO_MORE.format(self.max_restarts)), orphans)
            else:
                self._dispatch_again(orphans)
            has_others = bool(self._members)
        with contextlib.suppress(Exception):  # it may be half alive: it must not go on with what is now another engine's work
            member.handle.kill()
        if not may_restart:
            return
        parts = [f"{member.label} {cause}"]
        if orphans:
            parts.append(f"its {len(orphans)} unfinished requests {'go on elsewhere' if has_others else 'wait'}")
        self._say("; ".join([*parts, f"a new one is starting ({self.restarts} of {self.max_restarts})"]))
        threading.Thread(target=self._replace, args=(member.index,), name="vime-engine-start", daemon=True).start()
        self._flush()

    def _may_restart(self) -> bool:
        with self._lock:
            may_restart = self.restarts < self.max_restarts
            self.restarts += may_restart
            return may_restart

    def _dispatch_again(self, orphans: Sequence[Pending]) -> None:
        """Requests that have lost their engine go to another one, unless nobody wants them any more. In the turn that took them away:
        an abort must find them in one place or the other."""
        self._end(pending for pending in orphans if pending.is_aborted)
        wanted = [pending for pending in orphans if not pending.is_aborted]
        try:
            self._dispatch(wanted)
        except EngineDeadError as error:
            deliver((pending, error) for pending in wanted)

    def _fail(self, failure: EngineDeadError, orphans: Sequence[Pending]) -> None:
        """Nothing more is to be had of this pool."""
        with self._lock:
            self._failure = failure
            left, self._waiting = [*orphans, *self._waiting], []
        deliver((pending, failure) for pending in left)

    def _replace(self, index: int) -> None:
        """In a thread of its own: start an engine, and another one where that fails."""
        while not self._stop.is_set():
            try:
                handle = self._start(index)
            except Exception as error:  # noqa: BLE001 - a thread's exception would be lost
                cause = f"engine {index} could not be started: {_told(error)}"
            else:
                try:
                    self._admit(index, handle)
                    return
                except Exception as error:  # noqa: BLE001 - likewise
                    cause = f"{handle.label} did not take the weights: {_told(error)}"
                    with contextlib.suppress(Exception):
                        handle.kill()
            if self._stop.is_set():
                return
            if not self._may_restart():
                self._fail(EngineDeadError(cause, hint=_NO_MORE.format(self.max_restarts)), [])
                return
            self._say(f"{cause}; the next one is starting ({self.restarts} of {self.max_restarts})")

    def _admit(self, index: int, handle: EngineHandle) -> None:
        """Give a new engine the current weights, then requests. Raises what it answers instead of taking them."""
        member, held = self._member(index, handle), None
        while True:
            with self._lock:
                is_closed, newest = self._stop.is_set(), self._current
                if held is newest and not is_closed:
                    self._members[index] = member
                    waiting, self._waiting = self._waiting, []
                    self._dispatch_again(waiting)
                    break
            if is_closed:
                handle.kill()
                return
            held = newest
            assert held is not None, "weights are never taken back"
            weights, version = held
            _check_version(handle.label, handle.call("update_weights", weights(), version).result(self.sync_timeout), version)
        member.poll()
        member.flush()
        self._say(f"{handle.label} is there" + ("" if held is None else f", with version {held[1]} of the weights"))

    # --- the runtime's side -----------------------------------------------------------------------------------------

    def update_weights(self, named_tensors: Iterable[tuple[str, Any]], version: int, *, keep_requests: bool = False) -> None:
        self.update_packed(self._put(named_tensors), version, keep_requests=keep_requests)

    def update_packed(self, weights: Any, version: int, *, keep_requests: bool = False) -> None:
        """Give every engine these weights, as `put` made them. Returns when each that lives has acknowledged the version.

        Those that are starting have them before they get a request.
        """
        self._begin_update(lambda: weights, version)
        for label, answer in self._on_all("update_weights", weights, version, keep_requests):
            _check_version(label, answer, version)
        self._weight_version = version

    def update_by(self, send: Callable[[list[EngineHandle]], object], renew: Callable[[], Any], version: int) -> None:
        """Have `send` give these engines the weights, in a way of its own. One that is started later has them from `renew`."""
        self._begin_update(renew, version)
        with self._lock:
            self._raise_failure()
            handles = [member.handle for member in self._members.values()]
        try:
            in_thread(send, handles).result(self.sync_timeout)
        except TimeoutError:
            raise EngineError(f"the weights were not sent to the engines in {self.sync_timeout:g} s", hint=_SLOW) from None
        for label, answer in self._on_all("version"):
            _check_version(label, answer, version)
        self._weight_version = version

    def _begin_update(self, weights: Callable[[], Any], version: int) -> None:
        with self._lock:
            self._current = (weights, version)
            self._router.forget()

    def _on_all(self, method: str, *args: Any) -> list[tuple[str, Any]]:
        """Call a method of every engine: (label, answer) of each. One that dies meanwhile has none; one that fails raises."""
        with self._lock:
            self._raise_failure()
            members = list(self._members.values())
        calls = {member.call_at_leisure(method, *args): member for member in members}
        _, late = wait(calls, timeout=self.sync_timeout)
        if late:
            names = ", ".join(sorted(calls[call].label for call in late))
            raise EngineError(
                f"{method} was not done in {self.sync_timeout:g} s by {names}",
                hint=_SLOW,
            )
        answers: list[tuple[str, Any]] = []
        for call, member in calls.items():
            error = call.exception()
            if isinstance(error, EngineDeadError):
                self._bury(member, error.message)
            elif error is not None:
                raise error
            else:
                answers.append((member.label, call.result()))
        with self._lock:
            self._raise_failure()
        return answers

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise EngineDeadError(self._failure.message, hint=self._failure.hint)

    def sleep(self) -> None:
        self._on_all("sleep")

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return next(iter(self.score_each(sequences).values()))

    def score_each(self, sequences: Sequence[Sequence[int]]) -> dict[str, list[list[float]]]:
        """The scores of every engine, by its label; waits for one to start where there is none."""
        deadline = time.monotonic() + self.sync_timeout
        while True:
            scores = dict(self._on_all("score", sequences))
            if scores:
                return scores
            if time.monotonic() > deadline:
                raise EngineError(f"no engine was ready in {self.sync_timeout:g} s", hint=_SEE_LOG)
            time.sleep(0.05)

    def _count(self, steps: int, stats: dict[str, float]) -> None:
        with self._lock:
            self.steps += steps
            self._stats.update(stats)

    def stats(self) -> dict[str, float]:
        """Sums over the engines, dead ones included, but for `busy_seconds`, which is the mean: engines work at the same time."""
        with self._lock:
            taken, self._stats = self._stats, Counter()
        names = ("prompt_tokens", "cached_tokens", "generated_tokens", "busy_seconds")
        return {name: float(taken[name]) / (self._size if name == "busy_seconds" else 1) for name in names}

    def close(self) -> None:
        """End every engine; what still waits for one fails."""
        with self._lock:
            self._stop.set()
            members, self._members = list(self._members.values()), {}
            orphans = [pending for member in members for pending in member.take_all()]
            for member in members:
                member.is_out = True
        for member in members:
            with contextlib.suppress(Exception):  # it may be gone
                member.handle.kill()
        self._fail(EngineDeadError("the engines are closed"), orphans)
        self._answers.put((lambda _: None, Future()))  # ends the thread


_SEE_LOG = "see what the engines of this run said; VIME_VERBOSE=1 shows it"
_SLOW = "raise --sync-timeout where the model is large; else look at the load of that node"
_NO_MORE = "{} engines were started anew already (--max-engine-restarts): see what ends them, the memory of the node for example"


def _told(error: Exception) -> str:
    return error.message if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"


def _check_version(label: str, answer: Any, version: int) -> None:
    if answer != version:
        raise EngineError(f"{label} acknowledges version {answer} of the weights, expected {version}")
