"""Pools of fake engines behind channels that behave like processes: what passes is pickled, and they can die anywhere."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from vime.engine.base import SamplingParams
from vime.engine.host import EngineHost
from vime.engine.pool import EnginePool
from vime.engine.routing import Router
from vime.errors import EngineDeadError
from vime.testing.fakes import FakeEngine

Fault = Callable[["Channel", str, int], str | None]
"""(channel, method, calls so far) -> when the engine dies, "before" or "after" this call is carried out; or "stall", or None."""


class Channel:
    """The way to one engine (`EngineHandle`), whose host runs in another thread's event loop."""

    def __init__(self, index: int, life: int, loop: asyncio.AbstractEventLoop, engine: FakeEngine, fault: Fault) -> None:
        self.index, self.life, self.engine, self.fault = index, life, engine, fault
        self.label = f"engine {index} (life {life})"
        self.calls: list[tuple[str, Any]] = []
        self.dead = threading.Event()
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: set[Future[Any]] = set()
        self._host: EngineHost | None = None
        self._lock = threading.Lock()

    def call(self, method: str, *args: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        with self._lock:
            number = len(self.calls)
            self.calls.append((method, args))
            self._answers.add(answer)
        verdict = self.fault(self, method, number)
        if verdict == "stall":
            return answer
        if verdict == "before":
            self.kill()
        if self.dead.is_set():
            self._fail(answer)
            return answer
        self._loop.call_soon_threadsafe(self._begin, method, pickle.dumps(args), answer, verdict == "after")
        return answer

    def _begin(self, method: str, args: bytes, answer: Future[Any], dies: bool) -> None:
        if self.dead.is_set():
            self._fail(answer)
            return
        if self._host is None:
            self._host = EngineHost(self.engine, lambda weights: weights)
        task = self._loop.create_task(self._carry_out(method, pickle.loads(args), answer, dies))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, method: str, args: Any, answer: Future[Any], dies: bool) -> None:
        try:
            result = await getattr(self._host, method)(*args)
        except Exception as error:  # noqa: BLE001 - as the other process would
            if not answer.done():
                answer.set_exception(error)
            return
        if dies:
            self.kill()
        if self.dead.is_set():
            self._fail(answer)
        elif not answer.done():
            answer.set_result(pickle.loads(pickle.dumps(result)))

    def _fail(self, answer: Future[Any]) -> None:
        if not answer.done():
            answer.set_exception(EngineDeadError("has died"))

    def kill(self) -> None:
        self.dead.set()
        self._loop.call_soon_threadsafe(self._end_tasks)
        with self._lock:
            answers = list(self._answers)
        for answer in answers:
            self._fail(answer)

    def _end_tasks(self) -> None:
        for task in self._tasks if self._host is None else {*self._tasks, *self._host._running.values()}:
            task.cancel()

    def methods(self) -> list[str]:
        return [method for method, _ in self.calls]


class Pools:
    """Makes pools and remembers every engine that ever lived in them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.channels: list[Channel] = []
        self.said: list[str] = []
        self.made: list[EnginePool] = []
        self.fault: Fault = lambda channel, method, number: None
        self.start_fails: Callable[[int], bool] = lambda life: False
        self.engine: dict[str, Any] = {}
        self.kinds: dict[int, type[FakeEngine]] = {}

    def start(self, index: int) -> Channel:
        life = sum(channel.index == index for channel in self.channels)
        channel = Channel(index, life, self.loop, self.kinds.get(index, FakeEngine)(**self.engine), self._fault)
        self.channels.append(channel)
        if life and self.start_fails(life):
            raise EngineDeadError(f"engine {index} has died in its start")
        return channel

    def pool(
        self, engines: int = 2, *, slack: int = 10_000, max_restarts: int = 3, timeout: float = 60.0, sync: float = 10.0
    ) -> EnginePool:
        pool = EnginePool(
            [self.start(index) for index in range(engines)],
            start=self.start,
            put=list,
            tokenizer=FakeEngine().tokenizer,
            max_model_len=2**20,
            router=Router(slack),
            max_restarts=max_restarts,
            engine_timeout=timeout,
            sync_timeout=sync,
            say=self.said.append,
        )
        self.made.append(pool)
        return pool

    def _fault(self, channel: Channel, method: str, number: int) -> str | None:
        return self.fault(channel, method, number)

    @staticmethod
    def requests(texts: list[str], **params: Any) -> list[tuple[list[int], SamplingParams]]:
        """One request for each text, seeded by its place."""
        encode = FakeEngine().tokenizer.encode
        return [(encode(text), SamplingParams(max_new_tokens=8, seed=seed) | params) for seed, text in enumerate(texts)]  # type: ignore[misc]

    @staticmethod
    async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
        """Wait for what another thread does."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it never came"
            await asyncio.sleep(0.005)

    @staticmethod
    def submitted(channel: Channel) -> list[list[int]]:
        return [request.token_ids for method, args in channel.calls if method == "submit" for request in args[0]]


@pytest.fixture(scope="session")
def engine_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    asyncio.run_coroutine_threadsafe(_end_tasks(), loop).result(10.0)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=10.0)
    loop.close()


async def _end_tasks() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def pools(engine_loop: asyncio.AbstractEventLoop) -> Iterator[Pools]:
    made = Pools(engine_loop)
    yield made
    for pool in made.made:
        pool.close()
