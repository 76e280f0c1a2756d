"""Leaves responses that hit the length limit out of training: their reward says nothing about what came before the cut.

Enable with `--plugin truncated`. The samples stay in their group, and in its baseline unless
`--exclude-removed-from-baseline` is given.
"""

from __future__ import annotations

from vime.api import Sample, Status, hookimpl


@hookimpl
def rollout_sample_filter(samples: list[list[Sample]]) -> None:
    for group in samples:
        for sample in group:
            if sample.status is Status.TRUNCATED:
                sample.remove_sample = True
