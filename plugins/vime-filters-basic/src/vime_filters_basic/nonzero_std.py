"""Drops groups whose rewards are all the same: their advantages would all be zero.

The dynamic sampling of DAPO (Yu et al. 2025, section 3.2). Enable with `--plugin nonzero-std`.
"""

from __future__ import annotations

import statistics
from typing import Any

import vime.api
from vime.api import DynamicFilterOutput, Sample, Status, hookimpl, rollouts

TOLERANCE = 1e-5


class NonzeroStd:
    """Keeps a group when the standard deviation of its rewards is above `tolerance`."""

    class Settings(vime.api.Settings):
        tolerance: float = TOLERANCE
        """Rewards whose standard deviation is not above this count as equal."""
        keep_when_insufficient: bool = False
        """Keep an equal group after all when dropping it would force another fetch of prompts."""

    def __init__(self, settings: NonzeroStd.Settings | None = None) -> None:
        self.settings = settings or NonzeroStd.Settings()

    @hookimpl
    def dynamic_sampling_filter(self, args: Any, samples: list[Sample]) -> DynamicFilterOutput:
        return judge(args, samples, self.settings.tolerance, keep_when_insufficient=self.settings.keep_when_insufficient)


def judge(args: Any, group: list[Sample], tolerance: float, *, keep_when_insufficient: bool = False) -> DynamicFilterOutput:
    """The verdict on one group, with one reward per rollout; failed samples have none.

    Reasons: `no_reward`, `single_sample` (nothing to compare with, whatever the tolerance), and `zero_std_<reward>`.
    """
    rewards = [reward for siblings in rollouts(group) if (reward := _reward(args, siblings)) is not None]
    if len(rewards) < 2:
        return DynamicFilterOutput(False, "single_sample" if rewards else "no_reward", keep_when_insufficient)
    if statistics.stdev(rewards) > tolerance:
        return DynamicFilterOutput(True)
    return DynamicFilterOutput(False, f"zero_std_{round(statistics.fmean(rewards), 1) + 0.0}", keep_when_insufficient)


def _reward(args: Any, siblings: list[Sample]) -> float | None:
    for sample in siblings:
        if sample.reward is not None and sample.status is not Status.FAILED:
            return float(sample.get_reward_value(args))
    return None


def check_reward_nonzero_std(args: Any, samples: list[Sample], **_ignored: Any) -> DynamicFilterOutput:
    """The filter as a path function: `--dynamic-sampling-filter-path vime_filters_basic.nonzero_std.check_reward_nonzero_std`."""
    return judge(args, samples, TOLERANCE)


def check_reward_nonzero_std_with_fallback(args: Any, samples: list[Sample], **_ignored: Any) -> DynamicFilterOutput:
    """The same, but an equal group is kept when dropping it would force another fetch of prompts."""
    return judge(args, samples, TOLERANCE, keep_when_insufficient=True)
