"""Uses the groups of the buffer whose tokens are newest first, and drops those that are too old.

For runs that put generated groups back (over-sampling, `--partial-rollout`): the closer the weights that wrote an answer
are to those that train on it, the less off-policy the step. Without this plugin the groups that waited longest go first.
Enable with `--plugin freshest`.
"""

from __future__ import annotations

import contextlib

from pydantic import Field

import vime.api
from vime.api import Sample, current_engine, hookimpl


class Freshest:
    """Hands out groups by weight version, the newest first, and groups without a version last.

    The version of a group is that of its newest tokens, as for `--max-staleness`. Equal ones go in the order of the buffer.
    Groups without a version, such as prompts that were put back from scratch, have no age and lose nothing by waiting,
    while tokens get older with every step.
    """

    class Settings(vime.api.Settings):
        max_age: int | None = Field(default=None, ge=0)
        """Groups whose newest tokens are more than this many weight versions old are taken out of the buffer for good, prompt
        and all, and counted in `rollout/buffer_discarded`; null keeps them. Ages count from the weights of the engine; where
        there is none, from the newest version in the buffer, which may itself be old. (`--max-staleness` does the same in any
        run, and counts samples, in `rollout/samples_stale`.)"""

    def __init__(self, settings: Freshest.Settings) -> None:
        self.settings = settings

    @hookimpl
    def buffer_filter(self, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
        """Takes out what is too old, and returns the newest `num_samples` groups."""
        if self.settings.max_age is not None:
            oldest = _current_version(buffer) - self.settings.max_age
            buffer[:] = [group for group in buffer if (version := version_of(group)) is None or version >= oldest]
        return sorted(buffer, key=_newest_first)[:num_samples]


def version_of(group: list[Sample]) -> int | None:
    """The weight version of the newest tokens of a group; None where no token has one."""
    return max((version for sample in group for version in sample.weight_versions), default=None)


def _newest_first(group: list[Sample]) -> tuple[bool, int]:
    version = version_of(group)
    return version is None, -(version or 0)


def _current_version(buffer: list[list[Sample]]) -> int:
    versions = [version for group in buffer if (version := version_of(group)) is not None]
    with contextlib.suppress(RuntimeError):  # there is no engine
        versions.append(current_engine().weight_version)
    return max(versions, default=0)
