"""Punishes answers that come close to the length limit: the soft overlong punishment of DAPO.

For runs whose answers grow until they are cut off: the punishment sets in before the cut, so that there is a slope to
follow. Added to the reward is, for an answer of L tokens (Yu et al. 2025, equation 13, times `factor`):

    0                                        up to L_max - L_cache
    ((L_max - L_cache) - L) / L_cache        from there to L_max, down to -1
    -1                                       beyond

Evaluation answers are not punished: their limits may differ, and `eval/<name>` is to be the plain reward.

A hook that sees one sample cannot measure a rollout of several (sub-agents, context compaction). Each sample is measured
alone there, and vime refuses the rollout where they come out differently; punish such rollouts in the reward instead.
Enable with `--plugin overlong`.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

import vime.api
from vime.api import ConfigError, Sample, hookimpl

IN_EVALUATION = "overlong_in_evaluation"
"""Key of `sample.metadata` that marks evaluation samples between their generation and their reward."""


class Overlong:
    """Adds a punishment between 0 and -`factor` to the reward of answers within `buffer_len` tokens of the length limit."""

    class Settings(vime.api.Settings):
        max_response_len: int | None = Field(default=None, ge=1)
        """L_max: answers of this many tokens, and longer ones, get the whole punishment. null: --rollout-max-response-len."""
        buffer_len: int | None = Field(default=None, ge=0)
        """L_cache: the punishment sets in this many tokens before L_max. null: a fifth of L_max, as in the paper (4096 of 20480).
        0: no slope, only answers beyond L_max are punished."""
        factor: float = Field(default=1.0, ge=0, allow_inf_nan=False)
        """The punishment is multiplied by this."""
        trained_only: bool = False
        """Count tokens with loss mask 1 only, as `effective_response_length` does: without tool output, and without the tokens
        that `--mask-offpolicy-in-partial-rollout` masks. Otherwise all response tokens, as --rollout-max-response-len does."""

        @model_validator(mode="after")
        def _buffer_fits(self) -> Overlong.Settings:
            if self.max_response_len is not None and self.buffer_len is not None and self.buffer_len > self.max_response_len:
                raise ValueError(f"buffer_len ({self.buffer_len}) is above max_response_len ({self.max_response_len})")
            return self

    def __init__(self, settings: Overlong.Settings) -> None:
        self.settings = settings

    @hookimpl
    def rollout_sample_hook(self, sample: Sample, evaluation: bool) -> None:
        """Marks evaluation samples, which shape_reward passes over."""
        if evaluation:
            sample.metadata[IN_EVALUATION] = True

    @hookimpl
    def shape_reward(self, args: Any, sample: Sample) -> float | None:
        """The punishment of this answer, None in evaluation.

        Raises ConfigError where `buffer_len` does not fit into --rollout-max-response-len.
        """
        if sample.metadata.get(IN_EVALUATION):
            return None
        length = sample.effective_response_length if self.settings.trained_only else sample.response_length
        return self.settings.factor * punishment(length, *self._limits(args))

    def _limits(self, args: Any) -> tuple[int, int]:
        """L_max and L_cache."""
        own, buffer_len = self.settings.max_response_len, self.settings.buffer_len
        max_len: int = args.rollout_max_response_len if own is None else own
        if buffer_len is None:
            return max_len, max(1, max_len // 5)
        if buffer_len > max_len:
            raise ConfigError(
                f"overlong: buffer_len is {buffer_len}, and --rollout-max-response-len is {max_len}",
                hint=f"--set overlong.buffer_len=N with N at most {max_len}, or leave it out for a fifth of the limit",
            )
        return max_len, buffer_len


def punishment(length: int, max_len: int, buffer_len: int) -> float:
    """Equation 13 of DAPO (Yu et al. 2025): a number from -1 to 0 for an answer of `length` tokens, 0 <= buffer_len <= max_len."""
    excess = length - (max_len - buffer_len)
    if excess <= 0:
        return 0.0
    return -1.0 if length > max_len else -excess / buffer_len
