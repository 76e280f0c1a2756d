"""One rollout from start to end: who makes it, the checks of what comes back, and the hooks that see the whole batch."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from vime.engine.base import set_current_engine
from vime.outputs import RolloutFnEvalOutput
from vime.rollout.built_in import current_rollout
from vime.rollout.evaluate import eval_metrics
from vime.rollout.guards import check_train_output, normalise_eval_output, normalise_train_output
from vime.rollout.hook_guards import (
    Fixed,
    check_flags,
    check_log_answer,
    check_metrics,
    check_returns_nothing,
    check_shape,
    flags_of,
    shape_of,
)
from vime.rollout.metrics import batch_metrics, dropped_metrics
from vime.rollout.unchanged import watched
from vime.sample import Sample, Status, note_verdict

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
        self.built_in.progress = progress
        try:
            return await self._train(rollout_id)
        except Exception as error:
            error.add_note(f"in rollout {rollout_id}")
            raise

    async def _train(self, rollout_id: int) -> Rollout:
        config = self.context.config
        set_current_engine(self.context.engine, self.context.endpoint)
        started = time.perf_counter()
        self.built_in.last = None
        function = self._claimed(evaluation=False)
        who = "the built-in rollout" if function is None else function.label
        raw = await self.built_in.train(rollout_id) if function is None else await self._call(function, rollout_id, evaluation=False)
        output = normalise_train_output(who, raw)
        check_train_output(config, who, output, fewer_allowed=config.on_exhausted == "underfill")
        collected = cast("Collected | None", self.built_in.last)  # set by the rollout, where that was the built-in one
        dropped = [] if collected is None else collected.dropped
        groups = [group for group, _ in dropped]
        await self._filter_samples(output.samples)
        await self._process_all_samples(output.samples, groups)
        seconds = time.perf_counter() - started
        counted = {} if collected is None else dropped_metrics(collected)
        metrics = {**counted, **(output.metrics or {}), **batch_metrics(config, output.samples, groups)}
        metrics.setdefault("samples_generated", sum(map(len, output.samples)))
        failed_here = sum(sample.status is Status.FAILED for sample in _flat(output.samples))
        metrics["samples_failed"] = metrics.get("samples_failed", 0) + failed_here
        metrics |= self.context.scorer.take_metrics()
        self._add_source_metrics(metrics)
        samples = _flat(output.samples)
        logged = await self._log(
            "log_rollout_data",
            samples,
            metrics,
            rollout_id=rollout_id,
            samples=samples,
            rollout_extra_metrics=metrics,
            rollout_time=seconds,
        )
        failed = [] if collected is None else [(group, "failed") for group in collected.failed]
        return Rollout(output.samples, dropped + failed, metrics, logged)

    async def evaluate(
        self, rollout_id: int, progress: Callable[[int, int], None] | None = None
    ) -> tuple[RolloutFnEvalOutput, dict[str, float], bool]:
        """Evaluate all datasets.

        Returns the samples, the metrics without their namespace, and whether a log_eval_rollout_data hook took the
        place of the default log. Failed rewards are counted in the metrics as in a training rollout. `progress` sees how
        many prompts are done, of how many.
        """
        self.built_in.eval_progress = progress
        try:
            return await self._evaluate(rollout_id)
        except Exception as error:
            error.add_note(f"in the evaluation after {rollout_id} rollouts")
            raise

    async def _evaluate(self, rollout_id: int) -> tuple[RolloutFnEvalOutput, dict[str, float], bool]:
        config = self.context.config
        set_current_engine(self.context.engine, self.context.endpoint)
        self.context.scorer.take_metrics(evaluation=True)  # what is left of an evaluation that was interrupted
        function = self._claimed(evaluation=True)
        who = "the built-in evaluation" if function is None else function.label
        raw = await self.built_in.evaluate(rollout_id) if function is None else await self._call(function, rollout_id, evaluation=True)
        output = normalise_eval_output(who, raw)
        metrics = eval_metrics(
            config, output, {dataset.config.name: dataset.config.n_samples_per_eval_prompt or 1 for dataset in self.built_in.datasets}
        )
        metrics |= {key: value for key, value in self.context.scorer.take_metrics(evaluation=True).items() if key != "reward_time"}
        return output, metrics, await self.log_evaluation(rollout_id, output.data, metrics)

    async def log_evaluation(self, rollout_id: int, data: dict[str, Any], metrics: dict[str, float]) -> bool:
        """Show an evaluation to every log_eval_rollout_data; whether one of them took the place of the default log."""
        samples = [sample for part in data.values() for sample in part["samples"]]
        return await self._log("log_eval_rollout_data", samples, metrics, rollout_id=rollout_id, data=data, extra_metrics=metrics)

    def _add_source_metrics(self, metrics: dict[str, float]) -> None:
        """Add what the data source counted. Its stale samples came out of the buffer too, so that the counts add up."""
        take = getattr(self.built_in.source, "take_metrics", None)
        if take is not None:
            stale = metrics.pop("samples_stale", 0)
            metrics |= take()
            if "samples_from_buffer" in metrics:
                metrics["samples_from_buffer"] += metrics.get("samples_stale", 0)
            if stale or "samples_stale" in metrics:
                metrics["samples_stale"] = metrics.get("samples_stale", 0) + stale

    async def _log(self, hook: str, seen: list[Sample], metrics: dict[str, float], **arguments: Any) -> bool:
        """Call every log hook of this name; whether one of them said that the default log is to be skipped."""
        skip = False
        for function in self.context.plugins.implementations(hook):
            before = dict(metrics)
            with watched(self.context.config, function, seen):
                answer = await function.acall(args=self.context.config, **arguments)
            check_metrics(function.label, hook, metrics, before)
            skip |= check_log_answer(function.label, hook, answer)
        return skip

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
            with watched(self.context.config, function):
                if function.is_async:
                    return await function.acall(**arguments)
                result = await asyncio.to_thread(function.call, **arguments)
                return await result if inspect.isawaitable(result) else result
        finally:
            current_rollout.reset(token)

    async def _filter_samples(self, groups: list[list[Sample]]) -> None:
        """Let every rollout_sample_filter mark samples; groups, samples and their order must stay as they are."""
        for hook in self.context.plugins.implementations("rollout_sample_filter"):
            before, flags = shape_of(groups), flags_of(groups)
            with watched(self.context.config, hook, chain.from_iterable(groups)):
                result = await hook.acall(args=self.context.config, samples=groups)
            check_shape(hook.label, hook.hook, before, groups)
            hint = "set sample.remove_sample = True in place; the batch itself stays as it is"
            check_returns_nothing(hook.label, hook.hook, result, groups, hint)
            check_flags(hook.label, flags, groups)
            for sample in chain.from_iterable(groups):
                note_verdict([sample], hook.hook, hook.plugin, "removed" if sample.remove_sample else "kept")

    async def _process_all_samples(self, kept: list[list[Sample]], dropped: list[list[Sample]]) -> None:
        """Show everything that was made to every process_all_samples; the kept samples must stay as they are."""
        for hook in self.context.plugins.implementations("process_all_samples"):
            everything = [*kept, *dropped]
            before, fixed = shape_of(everything), Fixed(kept)
            with watched(self.context.config, hook, chain.from_iterable(everything)):
                result = await hook.acall(args=self.context.config, all_samples=everything, data_source=self.built_in.source)
            check_shape(hook.label, hook.hook, before, [*kept, *dropped])
            fixed.check(hook.label)
            check_returns_nothing(hook.label, hook.hook, result, everything, "look, count and log; return nothing")


def _flat(groups: list[list[Sample]]) -> list[Sample]:
    return [sample for group in groups for sample in group]
