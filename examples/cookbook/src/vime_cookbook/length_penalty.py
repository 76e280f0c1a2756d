"""A price for length: right answers that are shorter than their siblings are worth more.

`shape_reward` adds to whatever reward a run has. Only answers that succeed pay: to be wrong at great length is no
worse than to be wrong, or a policy that cannot solve a problem learns to give up early.
"""

from __future__ import annotations

from typing import Any

import vime.api
from vime.api import Sample, hookimpl


class LengthPenalty:
    """Takes up to `weight` off the reward of a right answer, in proportion to its length."""

    class Settings(vime.api.Settings):
        weight: float = 0.2
        """What an answer of the greatest length loses."""
        success: float = 1.0
        """Rewards from here on count as right."""

    def __init__(self, settings: LengthPenalty.Settings) -> None:
        self.settings = settings

    @hookimpl
    def shape_reward(self, args: Any, sample: Sample) -> float | None:
        """What is added to the reward of one sample: from -weight to 0, or None for nothing."""
        if sample.reward is None or sample.get_reward_value(args) < self.settings.success:
            return None
        share = sample.effective_response_length / args.rollout_max_response_len
        return -self.settings.weight * min(1.0, share)
