"""The checks of custom_rm."""

from __future__ import annotations

from vime.testing.checks import reward_data, reward_group, reward_runs, reward_values
from vime.testing.checks.base import Check

CHECKS: tuple[Check, ...] = reward_values.CHECKS + reward_group.CHECKS + reward_data.CHECKS + reward_runs.CHECKS
