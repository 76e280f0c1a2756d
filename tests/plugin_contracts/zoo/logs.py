"""Log hooks with one mistake each that shows with other rewards, or with a dataset without samples."""

from __future__ import annotations

import math

from zoo.base import Wrong
from zoo.others import quiet


def sum_of_rewards(rollout_id, args, samples, rollout_extra_metrics, rollout_time):
    rollout_extra_metrics["sum"] = sum(sample.reward for sample in samples)


def no_mean_of_nothing(rollout_id, args, data, extra_metrics):
    for name, results in data.items():
        count = len(results["rewards"])
        extra_metrics[name] = sum(results["rewards"]) / count if count else math.nan


def sorts_the_rewards(rollout_id, args, data, extra_metrics):
    for results in data.values():
        results["rewards"].sort()


WRONG: tuple[Wrong, ...] = (
    quiet(
        "a sum of dicts",
        sum_of_rewards,
        "log-rollout-dict-rewards",
        "path function zoo.logs:sum_of_rewards: log_rollout_data raised "
        "TypeError: unsupported operand type(s) for +: 'int' and 'dict' for dict rewards under --reward-key acc",
        hook="log_rollout_data",
    ),
    quiet(
        "not a number for a dataset without samples",
        no_mean_of_nothing,
        "log-eval-empty",
        "path function zoo.logs:no_mean_of_nothing: log_eval_rollout_data has the metric 'empty' = float nan; "
        "expected a name and a finite number",
        hook="log_eval_rollout_data",
    ),
    quiet(
        "rewards in another order than their samples",
        sorts_the_rewards,
        "log-eval-result",
        "path function zoo.logs:sorts_the_rewards: log_eval_rollout_data changed the lists of a dataset",
        hook="log_eval_rollout_data",
    ),
)
