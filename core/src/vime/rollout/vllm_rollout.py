"""The built-in rollout: what generates training batches and evaluations when no plugin claims `generate_rollout`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vime.errors import ContractError
from vime.outputs import RolloutFnEvalOutput, RolloutFnTrainOutput
from vime.rollout.context import current_rollout
from vime.rollout.dynamic_sampling import Collected, DynamicSampling
from vime.rollout.evaluate import EvalDataset, evaluate
from vime.rollout.metrics import dropped_metrics

if TYPE_CHECKING:
    from vime.rollout.context import RolloutContext
    from vime.rollout.data_source import DataSource


NAME = "vime.rollout.vllm_rollout"


class VllmRollout:
    """Generates on the engine with dynamic sampling. `last` says where every group of the last rollout ended."""

    def __init__(self, context: RolloutContext, source: DataSource | None, datasets: list[EvalDataset]) -> None:
        self.context, self.source, self.datasets = context, source, datasets
        self.last: Collected | None = None
        self.progress: Callable[[Collected], None] | None = None

    async def train(self, rollout_id: int) -> RolloutFnTrainOutput:
        """One training rollout: rollout_batch_size kept groups, sorted by first sample index."""
        assert self.source is not None, "a run that trains has a data source"
        sampling = DynamicSampling(self.context, self.source, rollout_id, self.progress)
        self.last = await sampling.collect()
        return RolloutFnTrainOutput(samples=self.last.kept, metrics=dropped_metrics(self.last))

    async def evaluate(self, rollout_id: int) -> RolloutFnEvalOutput:
        """All evaluation datasets, concurrently."""
        return await evaluate(self.context, self.datasets, rollout_id)


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """The built-in rollout as a function, for rollout functions that wrap it.

    A synchronous rollout function runs in a thread of its own, so this may block until the batch is there. Raises
    ContractError outside a rollout, and in an `async def` rollout function, which runs in the thread that generates:
    there `await generate_rollout_async(...)` does the same.
    """
    rollout, loop = _current("generate_rollout")
    if _running_loop() is loop:
        raise ContractError(
            f"{NAME}.generate_rollout was called in the event loop of the run, which would wait for itself",
            hint=f"in an async rollout function: output = await {NAME}.generate_rollout_async(args, rollout_id, data_source)",
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


async def _generate(rollout: VllmRollout, rollout_id: int, evaluation: bool) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    return await rollout.evaluate(rollout_id) if evaluation else await rollout.train(rollout_id)


def _current(name: str) -> tuple[VllmRollout, asyncio.AbstractEventLoop]:
    current = current_rollout.get()
    if current is None:
        raise ContractError(f"{NAME}.{name} was called outside a rollout", hint="call it inside a rollout function")
    return current


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:  # none in this thread
        return None
