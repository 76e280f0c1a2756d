"""The end of a rollout, for whoever is still generating: agents of many turns would go on asking for ever.

`abort_all` stops the requests that the engine has. An agent that was between two requests, or that asks again after a
short answer, is told by `CallEngine`, the engine as one call of a custom generate sees it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime.engine.base import Engine, SamplingParams
from vime.errors import EngineError
from vime.outputs import Generation

if TYPE_CHECKING:
    from vime.sample import Sample
    from vime.track.trace import Tracer

LATE_REQUESTS = 100
"""Requests that one call may make after the end before they raise."""


@dataclass
class RolloutEnd:
    """Whether a rollout has ended: its batch is full, or it failed. What still generates for it is to stop."""

    reached: bool = False


class CallEngine:
    """The engine during one call of a custom generate, sync or async; attributes beyond the protocol are the engine's own.

    After the end of the rollout a request returns at once, without tokens and with finish_reason "abort". A call that
    asks more than LATE_REQUESTS times all the same gets an EngineError.
    """

    def __init__(self, engine: Engine, end: RolloutEnd, sample: Sample | None = None, tracer: Tracer | None = None) -> None:
        """`tracer` is told of the requests as those of `sample`."""
        self._engine, self._end = engine, end
        self._sample, self._tracer = sample, tracer
        self._late = 0
        self.was_cut = False
        """Whether the end of the rollout cut a request of this call short, or answered it."""

    async def generate(self, token_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str | None = None) -> Generation:
        if self._end.reached:
            return await self._answer_late()
        submitted = time.monotonic()
        return self._noted(await self._engine.generate(token_ids, sampling_params, session_id=session_id), submitted)

    async def generate_many(self, requests: Sequence[tuple[Sequence[int], SamplingParams]]) -> list[Generation]:
        if self._end.reached:
            return [await self._answer_late() for _ in requests]
        submitted = time.monotonic()
        return [self._noted(generation, submitted) for generation in await self._engine.generate_many(requests)]

    async def abort(self, session_id: str) -> None:
        await self._engine.abort(session_id)

    @property
    def tokenizer(self) -> Any:
        return self._engine.tokenizer

    @property
    def weight_version(self) -> int:
        return self._engine.weight_version

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def _noted(self, generation: Generation, submitted: float) -> Generation:
        if self._tracer is not None and self._sample is not None:
            self._tracer.generation(self._sample, submitted, generation)
        self.was_cut |= self._end.reached and generation.finish_reason == "abort"
        return generation

    async def _answer_late(self) -> Generation:
        self.was_cut = True
        self._late += 1
        if self._late > LATE_REQUESTS:
            raise EngineError(
                f"the rollout has ended, and this agent has asked the engine {self._late} times since",
                hint="an agent returns its sample with status ABORTED when finish_reason is 'abort'",
            )
        await asyncio.sleep(0)  # an agent that asks in a loop must not stop the event loop
        return Generation([], [], "", "abort", self._engine.weight_version)
