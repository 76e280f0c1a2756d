"""The built-in rollout: what generates training batches and evaluations when no plugin claims `generate_rollout`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vime.outputs import RolloutFnEvalOutput, RolloutFnTrainOutput
from vime.rollout.built_in import generate_rollout, generate_rollout_async
from vime.rollout.dynamic_sampling import Collected, DynamicSampling
from vime.rollout.evaluate import EvalDataset, evaluate
from vime.rollout.metrics import dropped_metrics
from vime.rollout.stream import GroupStream

if TYPE_CHECKING:
    from vime.rollout.context import RolloutContext
    from vime.rollout.data_source import DataSource

__all__ = ["VllmRollout", "generate_rollout", "generate_rollout_async"]


class VllmRollout:
    """Generates on the engine with dynamic sampling. `last` says where every group of the last rollout ended."""

    def __init__(self, context: RolloutContext, source: DataSource | None, datasets: list[EvalDataset]) -> None:
        self.context, self.source, self.datasets = context, source, datasets
        self.last: Collected | None = None
        self.progress: Callable[[Collected], None] | None = None
        self.stream: GroupStream | None = None
        """What batches come from where generation never stops (--pipeline continuous)."""
        self.eval_progress: Callable[[int, int], None] | None = None

    async def train(self, rollout_id: int) -> RolloutFnTrainOutput:
        """One training rollout: rollout_batch_size kept groups, sorted by first sample index."""
        assert self.source is not None, "a run that trains has a data source"
        if self.stream is not None:
            self.stream.progress = self.progress or (lambda _: None)
            self.last = await self.stream.take()
        else:
            self.last = await DynamicSampling(self.context, self.source, rollout_id, self.progress).collect()
        return RolloutFnTrainOutput(samples=self.last.kept, metrics=dropped_metrics(self.last))

    async def evaluate(self, rollout_id: int) -> RolloutFnEvalOutput:
        """All evaluation datasets, concurrently."""
        return await evaluate(self.context, self.datasets, rollout_id, self.eval_progress)
