"""An engine behind a message channel: takes requests in batches, hands out results in batches.

What a process that holds one engine runs (`EngineHost`), and what passes between it and the `EnginePool`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vime.engine.base import SamplingParams, TrainableEngine
from vime.errors import EngineError
from vime.outputs import Generation

IDLE_HEARTBEATS = 10
"""A poll of an engine without requests takes so many times the heartbeat: there is nothing to report but that it lives."""


@dataclass(frozen=True)
class Request:
    """One request on its way to an engine."""

    request_id: int
    token_ids: list[int]
    sampling_params: SamplingParams


@dataclass(frozen=True)
class Poll:
    """What finished since the last poll; `steps` grows as long as the engine gets on, `stats` are its counters since then."""

    results: list[tuple[int, Generation | EngineError]]
    steps: int
    stats: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Description:
    """Where an engine lives and what it holds."""

    pid: int
    node: str
    max_model_len: int
    weight_version: int


@dataclass
class EngineHost:
    """Serves one engine. `unpack` turns what `update_weights` is given into named tensors; all methods run in one event loop."""

    engine: TrainableEngine
    unpack: Callable[[Any], Iterable[tuple[str, Any]]]
    _results: list[tuple[int, Generation | EngineError]] = field(default_factory=list)
    _running: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def submit(self, requests: Sequence[Request]) -> None:
        """Start these requests, as one wave."""
        if not self._running:
            self._news.set()  # ends a poll that has time
        for request in requests:
            self._running[request.request_id] = asyncio.ensure_future(self._serve(request))

    async def _serve(self, request: Request) -> None:
        result: Generation | EngineError
        try:
            result = await self.engine.generate(request.token_ids, request.sampling_params, session_id=str(request.request_id))
        except EngineError as error:
            result = error
        except Exception as error:  # noqa: BLE001 - it goes to whoever waits for the request
            result = EngineError(f"a request failed in the engine: {type(error).__name__}: {error}")
        del self._running[request.request_id]
        self._results.append((request.request_id, result))
        self._news.set()

    async def poll(self, heartbeat: float) -> Poll:
        """Wait for results, for `heartbeat` seconds at most while there are requests. One poll at a time."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), heartbeat if self._running else heartbeat * IDLE_HEARTBEATS)
        self._news.clear()
        results, self._results = self._results, []
        return Poll(results, self.engine.steps, {name: count for name, count in self.engine.stats().items() if count})

    async def abort(self, request_ids: Sequence[int]) -> None:
        """Stop these requests; each returns what it has."""
        await asyncio.gather(*(self.engine.abort(str(request_id)) for request_id in request_ids if request_id in self._running))

    async def update_weights(self, weights: Any, version: int, keep_requests: bool = False) -> int:
        """Replace the weights and return the version that the engine has now."""
        await asyncio.to_thread(self.engine.update_weights, self.unpack(weights), version, keep_requests=keep_requests)
        return self.engine.weight_version

    async def version(self) -> int:
        """Version of the weights that the engine has."""
        return self.engine.weight_version

    async def transfer(self, method: str, arguments: dict[str, Any]) -> None:
        """A call of vLLM's weight transfer, of an engine that is vLLM."""
        engine: Any = self.engine
        await asyncio.to_thread(engine.transfer, method, arguments)

    async def sleep(self) -> None:
        """As the engine's."""
        await asyncio.to_thread(self.engine.sleep)

    async def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """As the engine's."""
        return await asyncio.to_thread(self.engine.score, sequences)
