"""Leaves answers that are too short or too long out of training, by `remove_sample`.

For answers whose length alone says that they are not worth training on: empty or cut-off ones, or ones that would not
fit into memory. It hides them from the loss and does not discourage them; the plugin `overlong` does that. They stay in
their group, and in its baseline unless `--exclude-removed-from-baseline` is given. Without a bound nothing is removed.
Enable with `--plugin length --set length.max_tokens=2048`.
"""

from __future__ import annotations

from pydantic import Field, model_validator

import vime.api
from vime.api import Sample, hookimpl
from vime_filters_basic.verdicts import finished_rollouts


class Length:
    """Removes rollouts with fewer than `min_tokens` or more than `max_tokens` response tokens.

    The samples of one rollout (sub-agents, context compaction) are one answer: their lengths are added up, and they are
    removed together, as they count once in the loss and share one reward. Failed samples are not trained anyway: they do
    not count and are not marked. What another filter has removed stays removed.
    """

    class Settings(vime.api.Settings):
        min_tokens: int | None = Field(default=None, ge=0)
        """Rollouts with fewer response tokens than this are removed; null for no bound."""
        max_tokens: int | None = Field(default=None, ge=0)
        """Rollouts with more response tokens than this are removed; null for no bound."""
        trained_only: bool = False
        """Count tokens with loss mask 1 only, as `effective_response_length` does: without tool output, and without the tokens
        that `--mask-offpolicy-in-partial-rollout` masks. Otherwise all response tokens, as in `rollout/response_len`."""

        @model_validator(mode="after")
        def _in_order(self) -> Length.Settings:
            if self.min_tokens is not None and self.max_tokens is not None and self.min_tokens > self.max_tokens:
                raise ValueError(f"min_tokens ({self.min_tokens}) is above max_tokens ({self.max_tokens}), so that every sample is removed")
            return self

    def __init__(self, settings: Length.Settings) -> None:
        self.settings = settings

    @hookimpl
    def rollout_sample_filter(self, samples: list[list[Sample]]) -> None:
        """Marks the samples of rollouts outside the bounds."""
        for group in samples:
            for siblings in finished_rollouts(group):
                if not self._fits(siblings):
                    for sample in siblings:
                        sample.remove_sample = True

    def _fits(self, siblings: list[Sample]) -> bool:
        low, high, trained_only = self.settings.min_tokens, self.settings.max_tokens, self.settings.trained_only
        length = sum(sample.effective_response_length if trained_only else sample.response_length for sample in siblings)
        return (low is None or length >= low) and (high is None or length <= high)
