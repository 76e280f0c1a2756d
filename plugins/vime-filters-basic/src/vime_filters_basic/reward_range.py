"""Keeps groups whose mean reward lies within bounds: prompts that are neither too hard nor too easy.

For rewards between 0 and 1 the mean is the share of right answers. Prompts that nobody or everybody solves teach
nothing, and those close to it teach little for what they cost. The defaults, 0.1 and 0.9, drop the extremes only;
PRIME (Cui et al. 2025) trains within 0.2 and 0.8. For other rewards set both bounds: `--set reward-range.low=-0.8`.
Enable with `--plugin reward-range`.
"""

from __future__ import annotations

import statistics
from typing import Any

from pydantic import Field, model_validator

import vime.api
from vime.api import DynamicFilterOutput, Sample, hookimpl
from vime_filters_basic.verdicts import rewards

TOLERANCE = 1e-6
"""A mean this close to a bound is within it: sums of floats such as 0.1 are not exact, and rewards may be float32."""


class RewardRange:
    """Keeps a group when the mean of its rewards, one for each rollout, is at least `low` and at most `high`."""

    class Settings(vime.api.Settings):
        low: float | None = Field(default=0.1, allow_inf_nan=False)
        """Groups with a mean reward below this are dropped; null for no bound."""
        high: float | None = Field(default=0.9, allow_inf_nan=False)
        """Groups with a mean reward above this are dropped; null for no bound."""
        keep_when_insufficient: bool = False
        """Keep a group outside the bounds after all when dropping it would force another fetch of prompts."""

        @model_validator(mode="after")
        def _in_order(self) -> RewardRange.Settings:
            if self.low is not None and self.high is not None and self.low > self.high:
                raise ValueError(f"low ({self.low}) is above high ({self.high}), so that no group could be kept")
            return self

    def __init__(self, settings: RewardRange.Settings) -> None:
        self.settings = settings

    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> DynamicFilterOutput:
        """Reasons: `mean_below_range`, `mean_above_range`, and `no_reward` where every rollout failed."""
        reason = self._reason(rewards(args, samples))
        return DynamicFilterOutput(True) if reason is None else DynamicFilterOutput(False, reason, self.settings.keep_when_insufficient)

    def _reason(self, values: list[float]) -> str | None:
        if not values:
            return "no_reward"
        low, high, mean = self.settings.low, self.settings.high, statistics.fmean(values)
        if low is not None and mean < low - TOLERANCE:
            return "mean_below_range"
        if high is not None and mean > high + TOLERANCE:
            return "mean_above_range"
        return None
