"""The checks of the contract kit, a module per hook or family of hooks."""

from __future__ import annotations

from vime.testing.checks import all_samples, buffer_filter, filters, packaging, reward, sample_filter, sample_hook, shape_reward
from vime.testing.checks.base import Check

ALL_CHECKS: tuple[Check, ...] = (
    *packaging.CHECKS,
    *sample_hook.CHECKS,
    *reward.CHECKS,
    *shape_reward.CHECKS,
    *filters.CHECKS,
    *sample_filter.CHECKS,
    *buffer_filter.CHECKS,
    *all_samples.CHECKS,
)
"""Every check, in the order in which a report lists them."""
