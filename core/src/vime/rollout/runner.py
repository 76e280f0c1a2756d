"""One rollout from start to end: who makes it, the checks of what comes back, and the hooks that see the whole batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime.engine.base import set_current_engine
from vime.errors import ContractError
from vime.outputs import RolloutFnEvalOutput
from vime.rollout.context import current_rollout
from vime.rollout.evaluate import eval_metrics
from vime.rollout.guards import check_train_output, normalise_eval_output, normalise_train_output
from vime.rollout.metrics import batch_metrics
from vime.sample import Sample

if TYPE_CHECKING:
    from vime.plugins.manager import HookFunction
    from vime.rollout.context import RolloutContext
    from vime.rollout.dynamic_sampling import Collected
    from vime.rollout.vllm_rollout import VllmRollout

BUILT_IN_PATHS = ("vime.rollout.vllm_rollout.generate_rollout", "vime.rollout.vllm_rollout:generate_rollout")


@dataclass(frozen=True)
class Rollout:
    """A finished training rollout: the batch, the groups that were dropped with their reasons, and the numbers.

    `logged_by_plugin` says that a log_rollout_data hook took the place of the default log.
    """

    groups: list[list[Sample]]
    dropped: list[tuple[list[Sample], str]]
    metrics: dict[str, float]
    logged_by_plugin: bool = False


class RolloutRunner:
    """Makes training rollouts and evaluations. All methods run in the run's event loop."""

    def __init__(self, context: RolloutContext, built_in: VllmRollout) -> None:
        self.context, self.built_in = context, built_in

    async def train(self, rollout_id: int, progress: Callable[[Collected], None] | None = None) -> Rollout:
        """Make the training batch of this rollout and pass it through the batch hooks. `progress` sees each group that is judged."""
        config, plugins = self.context.config, self.context.plugins
        set_current_engine(self.context.engine, self.context.endpoint)
        started = time.perf_counter()
        self.built_in.last, self.built_in.progress = None, progress
        function = self._claimed(evaluation=False)
        who = "the built-in rollout" if function is None else function.label
        raw = await self.built_in.train(rollout_id) if function is None else await self._call(function, rollout_id, evaluation=False)
        output = normalise_train_output(who, raw)
        check_train_output(config, who, output, fewer_allowed=config.on_exhausted == "underfill")
        dropped = self.built_in.last.dropped if self.built_in.last is not None else []
        await self._filter_samples(output.samples)
        for hook in plugins.implementations("process_all_samples"):
            everything = output.samples + [group for group, _ in dropped]
            await hook.acall(args=config, all_samples=everything, data_source=self.built_in.source)
        seconds = time.perf_counter() - started
        metrics = {**(output.metrics or {}), **batch_metrics(config, output.samples, [group for group, _ in dropped])}
        metrics |= self.context.scorer.take_metrics()
        self._add_source_metrics(metrics)
        samples = [sample for group in output.samples for sample in group]
        logged = await self._log(
            "log_rollout_data", rollout_id=rollout_id, samples=samples, rollout_extra_metrics=metrics, rollout_time=seconds
        )
        return Rollout(output.samples, dropped, metrics, logged)

    async def evaluate(self, rollout_id: int) -> tuple[RolloutFnEvalOutput, dict[str, float], bool]:
        """Evaluate all datasets.

        Returns the samples, the metrics without their namespace, and whether a log_eval_rollout_data hook took the
        place of the default log. Failed rewards are counted in the metrics as in a training rollout.
        """
        config = self.context.config
        set_current_engine(self.context.engine, self.context.endpoint)
        self.context.scorer.take_metrics()  # what is left of a rollout that was interrupted
        function = self._claimed(evaluation=True)
        who = "the built-in evaluation" if function is None else function.label
        raw = await self.built_in.evaluate(rollout_id) if function is None else await self._call(function, rollout_id, evaluation=True)
        output = normalise_eval_output(who, raw)
        metrics = eval_metrics(
            config, output, {dataset.config.name: dataset.config.n_samples_per_eval_prompt or 1 for dataset in self.built_in.datasets}
        )
        metrics |= {key: value for key, value in self.context.scorer.take_metrics().items() if key != "reward_time"}
        logged = await self._log("log_eval_rollout_data", rollout_id=rollout_id, data=output.data, extra_metrics=metrics)
        return output, metrics, logged

    def _add_source_metrics(self, metrics: dict[str, float]) -> None:
        """Add what the data source counted. Stale samples came out of the buffer too, so that the counts add up."""
        take = getattr(self.built_in.source, "take_metrics", None)
        if take is not None:
            metrics |= take()
            if "samples_from_buffer" in metrics:
                metrics["samples_from_buffer"] += metrics.get("samples_stale", 0)

    async def _log(self, hook: str, **arguments: Any) -> bool:
        """Call every log hook of this name; whether one of them said that the default log is to be skipped."""
        answers = [await function.acall(args=self.context.config, **arguments) for function in self.context.plugins.implementations(hook)]
        return any(answers)

    def _claimed(self, *, evaluation: bool) -> HookFunction | None:
        config = self.context.config
        path = (config.eval_function_path if evaluation else None) or config.rollout_function_path
        if path in BUILT_IN_PATHS:
            return None
        return self.context.plugins.claimed("generate_rollout", evaluation=evaluation)

    async def _call(self, function: HookFunction, rollout_id: int, *, evaluation: bool) -> Any:
        """Call a rollout function: async ones here, synchronous ones in a thread, so that they may block."""
        loop = asyncio.get_running_loop()
        token = current_rollout.set((self.built_in, loop))
        arguments = {
            "args": self.context.config,
            "rollout_id": rollout_id,
            "data_source": self.built_in.source,
            "evaluation": evaluation,
            "engine": self.context.engine,
        }
        try:
            result = await function.acall(**arguments) if function.is_async else await asyncio.to_thread(function.call, **arguments)
        finally:
            current_rollout.reset(token)
        return result

    async def _filter_samples(self, groups: list[list[Sample]]) -> None:
        """Let every rollout_sample_filter mark samples; groups, samples and their order must stay as they are."""
        for hook in self.context.plugins.implementations("rollout_sample_filter"):
            before = [[id(sample) for sample in group] for group in groups]
            await hook.acall(args=self.context.config, samples=groups)
            if [[id(sample) for sample in group] for group in groups] != before:
                raise ContractError(
                    f"{hook.label}: rollout_sample_filter changed the batch: the same groups, samples and order are expected afterwards",
                    hint="set sample.remove_sample = True instead of deleting the sample",
                )
