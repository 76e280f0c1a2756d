"""Checks of the log hooks, and of `convert_samples_to_train_data`."""

from __future__ import annotations

import math
import numbers
from typing import Any

from vime.api import ConfigError, Sample, Status
from vime.rollout.unchanged import Snapshot
from vime.testing.checks.base import Bench, Check, CheckFailed, fail, skip
from vime.testing.checks.post_process import batch
from vime.testing.checks.rollout_loop import drive
from vime.testing.factories import finished_group, finished_sample
from vime.train.batch import build_train_batch

ROLLOUT = "log_rollout_data"
EVALUATION = "log_eval_rollout_data"
CONVERT = "convert_samples_to_train_data"


def _log(bench: Bench, samples: list[Sample], metrics: dict[str, Any]) -> Any:
    config = bench.config()
    function = bench.function(bench.load(config))
    if bench.hook == ROLLOUT:
        arguments: dict[str, Any] = {"samples": samples, "rollout_extra_metrics": metrics, "rollout_time": 1.5}
    else:
        data = {"held-out": _dataset(samples), "empty": _dataset([])}
        arguments = {"data": data, "extra_metrics": metrics}
    return drive(function.acall(rollout_id=0, args=config, **arguments))


def _dataset(samples: list[Sample]) -> dict[str, list[Any]]:
    return {
        "rewards": [sample.reward for sample in samples],
        "truncated": [sample.status is Status.TRUNCATED for sample in samples],
        "samples": samples,
    }


def _samples() -> list[Sample]:
    return finished_group((1.0, 0.0, 1.0)) + [finished_sample(3, "cut off", reward=0.0, status=Status.TRUNCATED, group_index=1)]


def log_result(bench: Bench) -> None:
    """It returns True to skip the built-in log, and None or False to keep it; an empty evaluation dataset is no error."""
    answer = _log(bench, _samples(), {"raw_reward": 0.5})
    if answer is not None and not isinstance(answer, bool):
        fail(
            f"{bench.hook} returned {answer!r:.60}, and anything but None or False takes the built-in log away",
            hint="add to the metrics in place and return nothing; return True to skip the built-in log",
        )


def log_metrics(bench: Bench) -> None:
    """Metrics that it adds are finite numbers by name, and the others stay."""
    metrics: dict[str, Any] = {"raw_reward": 0.5}
    try:
        _log(bench, _samples(), metrics)
    except Exception:  # noqa: BLE001 - reported by the check of the result
        skip("it raises, see the check of its result")
    for name, value in metrics.items():
        number = value.item() if hasattr(value, "item") else value
        if not isinstance(number, numbers.Real) or not math.isfinite(number):
            fail(f"metric {name!r} is {value!r:.60}; expected a finite number", hint="it would be left out of the log")
    if "raw_reward" not in metrics:
        fail("it took the metric 'raw_reward' out of what is logged", hint="add to the metrics; return True to skip the built-in log")


def log_pure(bench: Bench) -> None:
    """Samples and configuration stay as they are; notes go into sample.metadata."""
    samples, config = _samples(), bench.config()
    before = Snapshot(samples, config)
    try:
        _log(bench, samples, {"raw_reward": 0.5})
    except Exception:  # noqa: BLE001 - reported by the check of the result
        skip("it raises, see the check of its result")
    before.check(bench.function().label, bench.hook)


def _converted(bench: Bench, groups: list[list[Sample]]) -> Any:
    config = bench.config(**({"rollout_batch_size": len(groups), "n_samples_per_prompt": len(groups[0])} | dict(bench.subject.args)))
    return build_train_batch(config, bench.load(config), groups)


def convert(bench: Bench) -> None:
    """It returns the required keys as equally long lists, with masks and log-probs as long as their responses."""
    try:
        _converted(bench, batch())
        _converted(bench, batch((3, 1, 2), seed=1))
    except ConfigError as error:
        skip(f"it refuses the configuration of the checks: {error.message}; give one that it takes as args")


def _rows(bench: Bench, groups: list[list[Sample]]) -> Any:
    try:
        return _converted(bench, groups)
    except (Exception, CheckFailed):  # noqa: BLE001 - reported by train-data-result
        skip("there are no rows to look at, see train-data-result")


def convert_order(bench: Bench) -> None:
    """The reward and the tokens of a row belong to the sample that its sample_indices name."""
    groups = batch(seed=2)
    by_index = {sample.index: sample for group in groups for sample in group}
    rows = _rows(bench, groups)
    for row, index in enumerate(rows.sample_indices):
        sample = by_index.get(index)
        if sample is None:
            fail(
                f"row {row} has the sample index {index}, which no sample has", hint="sample_indices are those of the samples: sample.index"
            )
        if rows.raw_rewards[row] != sample.reward:
            fail(
                f"row {row} has the sample index {index} and the raw_reward {rows.raw_rewards[row]:g}; sample {index} has {sample.reward}",
                hint="build every list in one order",
            )
        if rows.tokens[row] != sample.tokens:
            fail(f"row {row} has the sample index {index} and the tokens of another sample", hint="build every list in one order")


def convert_removed(bench: Bench) -> None:
    """Removed samples and masked tokens stay out of the loss."""
    groups = batch()
    removed, masked = groups[0][1], groups[1][0]
    removed.remove_sample = True
    masked.loss_mask = [0] * masked.response_length
    rows = _rows(bench, groups)
    for row, index in enumerate(rows.sample_indices):
        if index in (removed.index, masked.index) and any(rows.loss_masks[row]):
            why = "is removed" if index == removed.index else "has a loss mask of zeros"
            fail(
                f"sample {index} {why}, and its row is trained",
                hint="loss_masks: [0] * response_length where sample.remove_sample, else sample.loss_mask, else ones",
            )


def convert_pure(bench: Bench) -> None:
    """Samples and configuration stay as they are."""
    groups = batch()
    before = Snapshot(sample for group in groups for sample in group)
    _rows(bench, groups)
    before.check(bench.function().label, CONVERT)


CHECKS: tuple[Check, ...] = (
    Check("log-rollout-result", ROLLOUT, log_result),
    Check("log-rollout-metrics", ROLLOUT, log_metrics),
    Check("log-rollout-pure", ROLLOUT, log_pure),
    Check("log-eval-result", EVALUATION, log_result),
    Check("log-eval-metrics", EVALUATION, log_metrics),
    Check("log-eval-pure", EVALUATION, log_pure),
    Check("train-data-result", CONVERT, convert),
    Check("train-data-order", CONVERT, convert_order),
    Check("train-data-removed", CONVERT, convert_removed),
    Check("train-data-pure", CONVERT, convert_pure),
)
