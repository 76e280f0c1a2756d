"""The checks of the contract kit, a module per hook or family of hooks."""

from __future__ import annotations

from vime.testing.checks import reward
from vime.testing.checks.base import Check

ALL_CHECKS: tuple[Check, ...] = (*reward.CHECKS,)
"""Every check, in the order in which a report lists them."""
