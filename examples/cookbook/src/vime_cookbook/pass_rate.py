"""Only problems that are neither too hard nor solved: groups are kept by the share of their answers that are right.

A group of right answers only, or of wrong ones only, has nothing to compare. The bounds are for the middle: with 0.1
and 0.9 and eight samples, one to seven of them have to be right.
"""

from __future__ import annotations

from typing import Any

import vime.api
from vime.api import DynamicFilterOutput, Sample, hookimpl, rollouts


class PassRate:
    """Keeps groups whose pass rate is within bounds."""

    class Settings(vime.api.Settings):
        low: float = 0.1
        """Groups with a lower pass rate are dropped as too hard."""
        high: float = 0.9
        """Groups with a higher one are dropped as solved."""
        success: float = 1.0
        """Rewards from here on count as right."""
        keep_when_insufficient: bool = False
        """Keep such a group after all when dropping it would force another fetch of prompts."""

    def __init__(self, settings: PassRate.Settings) -> None:
        self.settings = settings

    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> DynamicFilterOutput:
        """The verdict on one group. Samples of one rollout count once, failed ones not at all."""
        answers = [siblings[0] for siblings in rollouts(samples) if siblings[0].reward is not None]
        if not answers:
            return DynamicFilterOutput(keep=False, reason="no_reward")
        rate = sum(sample.get_reward_value(args) >= self.settings.success for sample in answers) / len(answers)
        reason = "too_hard" if rate < self.settings.low else "solved" if rate > self.settings.high else None
        return DynamicFilterOutput(reason is None, reason, self.settings.keep_when_insufficient)
