"""Overlong filtering, as in DAPO (Yu et al. 2025, section 3.4): answers that were cut off at the length limit leave the loss.

A cut answer may have been on its way to the right result, and its reward says nothing about its reasoning.
`remove_sample` takes it out of the loss and leaves it in its group, whose baseline it still counts for. Where most of
a group was cut there is little to learn from the rest, and the whole group goes.
"""

from __future__ import annotations

import vime.api
from vime.api import Sample, Status, hookimpl


class OverlongFilter:
    """Leaves cut answers out of the loss, and whole groups of which too much was cut."""

    class Settings(vime.api.Settings):
        whole_group_from: float = 0.75
        """Share of cut answers from which the whole group is left out; more than 1 for never."""

    def __init__(self, settings: OverlongFilter.Settings) -> None:
        self.settings = settings

    @hookimpl
    def rollout_sample_filter(self, samples: list[list[Sample]]) -> None:
        """Sets flags; groups, samples and their order stay."""
        for group in samples:
            cut = [sample for sample in group if sample.status is Status.TRUNCATED]
            everything = bool(group) and len(cut) / len(group) >= self.settings.whole_group_from
            for sample in group if everything else cut:
                sample.remove_sample = True
