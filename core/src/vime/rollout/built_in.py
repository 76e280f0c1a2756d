"""The built-in rollout as a function, for rollout functions that wrap it. It knows no more of the rollout than its two methods."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any, Protocol

from vime.errors import ContractError
from vime.outputs import RolloutFnEvalOutput, RolloutFnTrainOutput


class BuiltInRollout(Protocol):
    """What makes the rollouts of a run where no plugin does."""

    async def train(self, rollout_id: int) -> RolloutFnTrainOutput: ...

    async def evaluate(self, rollout_id: int) -> RolloutFnEvalOutput: ...


current_rollout: ContextVar[tuple[BuiltInRollout, asyncio.AbstractEventLoop] | None] = ContextVar("vime_current_rollout", default=None)
"""The built-in rollout of the run and its event loop, while a rollout function is called."""


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """The built-in rollout as a function, for rollout functions that wrap it.

    A synchronous rollout function runs in a thread of its own, so this may block until the batch is there. Raises
    ContractError outside a rollout, and in an `async def` rollout function, which runs in the thread that generates:
    there `await generate_rollout_async(...)` does the same.
    """
    rollout, loop = _current("generate_rollout")
    if _running_loop() is loop:
        raise ContractError(
            "generate_rollout was called in the event loop of the run, which would wait for itself",
            hint="in an async rollout function: output = await generate_rollout_async(args, rollout_id, data_source), from vime.api",
        )
    return asyncio.run_coroutine_threadsafe(_generate(rollout, rollout_id, evaluation), loop).result()


async def generate_rollout_async(
    args: Any, rollout_id: int, data_source: Any, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """The same as `generate_rollout`, for `async def` rollout functions. Raises ContractError outside a rollout."""
    rollout, loop = _current("generate_rollout_async")
    generated = _generate(rollout, rollout_id, evaluation)
    if _running_loop() is loop:
        return await generated
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(generated, loop))


async def _generate(rollout: BuiltInRollout, rollout_id: int, evaluation: bool) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    return await rollout.evaluate(rollout_id) if evaluation else await rollout.train(rollout_id)


def _current(name: str) -> tuple[BuiltInRollout, asyncio.AbstractEventLoop]:
    current = current_rollout.get()
    if current is None:
        raise ContractError(f"{name} was called outside a rollout", hint="call it inside a rollout function")
    return current


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:  # none in this thread
        return None
