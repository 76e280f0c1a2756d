"""Drops groups whose rewards are all the same: their advantages would all be zero.

For estimators that compare the answers of a group (grpo, rloo, ...): every group of a training batch then has something
to learn from. The dynamic sampling of DAPO (Yu et al. 2025, section 3.2). Enable with `--plugin nonzero-std`.
"""

from __future__ import annotations

import statistics
from typing import Any

import vime.api
from vime.api import DynamicFilterOutput, Sample, hookimpl
from vime_filters_basic.verdicts import rewards

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
    values = rewards(args, group)
    if len(values) < 2:
        return DynamicFilterOutput(False, "single_sample" if values else "no_reward", keep_when_insufficient)
    if statistics.stdev(values) > tolerance:
        return DynamicFilterOutput(True)
    return DynamicFilterOutput(False, f"zero_std_{round(statistics.fmean(values), 1) + 0.0}", keep_when_insufficient)


def check_reward_nonzero_std(args: Any, samples: list[Sample], **_ignored: Any) -> DynamicFilterOutput:
    """The filter as a path function: `--dynamic-sampling-filter-path vime_filters_basic.nonzero_std.check_reward_nonzero_std`."""
    return judge(args, samples, TOLERANCE)


def check_reward_nonzero_std_with_fallback(args: Any, samples: list[Sample], **_ignored: Any) -> DynamicFilterOutput:
    """The same, but an equal group is kept when dropping it would force another fetch of prompts."""
    return judge(args, samples, TOLERANCE, keep_when_insufficient=True)
