"""Drops groups whose answers are all the same text.

A group of copies holds one answer, however often it was sampled: comparing its rewards compares nothing, and where they
differ, the reward is noisy. A stream of such groups says that the temperature is too low or that the policy has
collapsed, so look at `rollout/dynamic_filter/drop_all_same_text`. Enable with `--plugin dedup`.
"""

from __future__ import annotations

import vime.api
from vime.api import DynamicFilterOutput, Sample, hookimpl
from vime_filters_basic.verdicts import finished_rollouts


class Dedup:
    """Drops a group of at least two rollouts whose answers are one text.

    The answer of a rollout of several samples is the list of their texts. Failed samples have no answer. A group with
    one rollout left has nothing that could be its double, and is kept.
    """

    class Settings(vime.api.Settings):
        strip: bool = True
        """Leave white space at both ends of a text out of the comparison."""
        keep_when_insufficient: bool = False
        """Keep a group of copies after all when dropping it would force another fetch of prompts."""

    def __init__(self, settings: Dedup.Settings) -> None:
        self.settings = settings

    @hookimpl
    def dynamic_sampling_filter(self, samples: list[Sample]) -> DynamicFilterOutput:
        """Reason: `all_same_text`."""
        answers = [tuple(self._text(sample) for sample in siblings) for siblings in finished_rollouts(samples)]
        if len(answers) < 2 or len(set(answers)) > 1:
            return DynamicFilterOutput(True)
        return DynamicFilterOutput(False, "all_same_text", self.settings.keep_when_insufficient)

    def _text(self, sample: Sample) -> str:
        return sample.response.strip() if self.settings.strip else sample.response
