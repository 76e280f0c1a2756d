"""The checks of the contract kit, a module per hook or family of hooks."""

from __future__ import annotations

from vime.testing.checks import data_source, generate, logging, packaging, post_process, rollout, training, training_data
from vime.testing.checks.base import Check

ALL_CHECKS: tuple[Check, ...] = (
    *packaging.CHECKS,
    *rollout.CHECKS,
    *generate.CHECKS,
    *data_source.CHECKS,
    *post_process.CHECKS,
    *logging.CHECKS,
    *training_data.CHECKS,
    *training.CHECKS,
)
"""Every check, in the order in which a report lists them."""
