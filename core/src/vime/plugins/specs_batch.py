"""Hook specs that work on groups and on whole rollouts. The examples are doctests; docs/hooks.md is generated from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vime.plugins.markers import hookspec

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.outputs import DynamicFilterOutput
    from vime.sample import Sample


class BatchSpec:
    """Hooks that filter, watch and log what was generated."""

    @hookspec
    def dynamic_sampling_filter(self, args: RunConfig, samples: list[Sample]) -> DynamicFilterOutput | bool:
        """Keeps or drops one finished group.

        Called: once for each finished group of a training rollout, when all its samples have their rewards and the batch
        is not full yet. Groups with a failed sample do not come here. A dropped group is replaced by a new prompt, within
        --dynamic-sampling-max-rounds.
        Arguments: `samples` is the group; it must not be changed.
        Returns: a bool, or a DynamicFilterOutput whose `reason` (the plugin's name where there is none) is counted in
        `rollout/dynamic_filter/drop_<reason>`.
        Several plugins: all must agree. They are asked in the user's order; the first refusal ends it and gives the reason.

        Example:

        >>> from vime.api import DynamicFilterOutput, Sample, hookimpl
        >>> @hookimpl
        ... def dynamic_sampling_filter(args, samples):
        ...     solved = all(sample.get_reward_value(args) == 1 for sample in samples)
        ...     return DynamicFilterOutput(keep=not solved, reason="solved" if solved else None)
        >>> dynamic_sampling_filter(args, [Sample(reward=1.0), Sample(reward=1.0)])
        DynamicFilterOutput(keep=False, reason='solved', keep_when_insufficient=False)
        """
        raise NotImplementedError

    @hookspec
    def rollout_sample_filter(self, args: RunConfig, samples: list[list[Sample]]) -> None:
        """Takes single samples out of the loss, by setting `sample.remove_sample = True`.

        Called: once for each training rollout, when its groups are complete.
        Arguments: `samples` is the list of kept groups.
        Returns: nothing. Groups, samples and their order must stay as they are; a removed sample keeps its place in the
        group's baseline and has no term in the loss.
        Several plugins: all are called, in the user's order.

        Example:

        >>> from vime.api import Sample, hookimpl
        >>> @hookimpl
        ... def rollout_sample_filter(samples):
        ...     for group in samples:
        ...         for sample in group:
        ...             sample.remove_sample |= sample.response_length > 100
        >>> long = Sample(response_length=101)
        >>> rollout_sample_filter([[Sample(response_length=10), long]])
        >>> long.remove_sample
        True
        """

    @hookspec
    def process_all_samples(self, args: RunConfig, all_samples: list[list[Sample]], data_source: Any) -> None:
        """Sees everything that a rollout has generated, for analysis and for plugins that learn from it.

        Called: once for each training rollout, after rollout_sample_filter.
        Arguments: `all_samples` is a list of all finished groups, the kept ones first, then those that the dynamic
        filters dropped; `data_source` is where the prompts come from.
        Returns: nothing. Rewards, tokens and masks must not be changed.
        Several plugins: all are called, in the user's order.

        Example:

        >>> from vime.api import Sample, hookimpl
        >>> class Counter:
        ...     seen = 0
        ...     @hookimpl
        ...     def process_all_samples(self, all_samples):
        ...         self.seen += sum(len(group) for group in all_samples)
        >>> counter = Counter()
        >>> counter.process_all_samples([[Sample(), Sample()], [Sample()]])
        >>> counter.seen
        3
        """

    @hookspec
    def log_rollout_data(
        self, rollout_id: int, args: RunConfig, samples: list[Sample], rollout_extra_metrics: dict[str, float], rollout_time: float
    ) -> bool | None:
        """Logs a training rollout, beside or instead of the built-in metrics.

        Called: once for each training rollout, when its metrics are computed and before they are written.
        Arguments: `samples` is the flat list of the batch, removed samples too; `rollout_extra_metrics` are the metrics,
        without the prefix `rollout/`; what is added to it is written too; `rollout_time` is in seconds.
        Returns: True to write nothing of this rollout to metrics.jsonl and TensorBoard, False or nothing to write it.
        Several plugins: all are called, in the user's order; one True is enough to skip.

        Example:

        >>> from vime.api import Sample, hookimpl
        >>> @hookimpl
        ... def log_rollout_data(samples, rollout_extra_metrics):
        ...     rollout_extra_metrics["empty_answers"] = sum(not sample.response for sample in samples)
        >>> metrics = {}
        >>> log_rollout_data([Sample(), Sample(response="4")], metrics)
        >>> metrics
        {'empty_answers': 1}
        """
        raise NotImplementedError

    @hookspec
    def log_eval_rollout_data(self, rollout_id: int, args: RunConfig, data: dict[str, Any], extra_metrics: dict[str, float]) -> bool | None:
        """Logs an evaluation, beside or instead of the built-in metrics.

        Called: once for each evaluation, when its metrics are computed and before they are written.
        Arguments: `data` is, by dataset, "rewards", "truncated" and "samples", equally long; `extra_metrics` are the metrics,
        without the prefix `eval/`; what is added to it is written too.
        Returns: True to write nothing of this evaluation to metrics.jsonl and TensorBoard, False or nothing to write it.
        Several plugins: all are called, in the user's order; one True is enough to skip.

        Example:

        >>> from vime.api import hookimpl
        >>> @hookimpl
        ... def log_eval_rollout_data(data, extra_metrics):
        ...     for name, results in data.items():
        ...         if results["rewards"]:
        ...             extra_metrics[f"{name}/best"] = max(results["rewards"])
        >>> metrics = {}
        >>> log_eval_rollout_data({"sums": {"rewards": [0.0, 1.0], "truncated": [0, 0], "samples": []}}, metrics)
        >>> metrics
        {'sums/best': 1.0}
        """
        raise NotImplementedError
