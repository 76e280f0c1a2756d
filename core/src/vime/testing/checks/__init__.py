"""The checks of the contract kit, a module per hook or family of hooks."""

from __future__ import annotations

from vime.testing.checks import (
    all_samples,
    buffer_filter,
    data_source,
    filters,
    generate,
    logging,
    packaging,
    post_process,
    reward,
    rollout,
    sample_filter,
    sample_hook,
    shape_reward,
    training,
    training_data,
)
from vime.testing.checks.base import Check

ALL_CHECKS: tuple[Check, ...] = (
    *packaging.CHECKS,
    *data_source.CHECKS,
    *rollout.CHECKS,
    *generate.CHECKS,
    *sample_hook.CHECKS,
    *reward.CHECKS,
    *shape_reward.CHECKS,
    *filters.CHECKS,
    *sample_filter.CHECKS,
    *buffer_filter.CHECKS,
    *all_samples.CHECKS,
    *logging.CHECKS,
    *post_process.CHECKS,
    *training_data.CHECKS,
    *training.CHECKS,
)
"""Every check, in the order in which a report lists them."""
