"""Checks of `convert_samples_to_train_data`: from samples to the rows of the training batch."""

from __future__ import annotations

from typing import Any

from vime.api import ConfigError, Sample
from vime.rollout.unchanged import Snapshot
from vime.testing.checks.base import Bench, Check, CheckFailed, fail, skip
from vime.testing.checks.post_process import batch
from vime.train.batch import build_train_batch

CONVERT = "convert_samples_to_train_data"


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
    Check("train-data-result", CONVERT, convert),
    Check("train-data-order", CONVERT, convert_order),
    Check("train-data-removed", CONVERT, convert_removed),
    Check("train-data-pure", CONVERT, convert_pure),
)
