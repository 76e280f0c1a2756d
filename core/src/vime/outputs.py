"""What rollouts, filters and engines return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vime.sample import Sample


@dataclass
class RolloutFnTrainOutput:
    """The groups of one training rollout: `samples[g][i]`, rollout_batch_size groups of n_samples_per_prompt rollouts."""

    samples: list[list[Sample]]
    metrics: dict[str, float] | None = None


@dataclass
class RolloutFnEvalOutput:
    """Evaluation results by dataset name: `{"rewards": [...], "truncated": [...], "samples": [...]}`, equally long."""

    data: dict[str, dict[str, list[Any]]]
    metrics: dict[str, float] | None = None


@dataclass
class DynamicFilterOutput:
    """A filter's verdict on one group.

    `reason` is counted as `rollout/dynamic_filter/drop_<reason>`. `keep_when_insufficient` keeps a refused group when
    dropping it would force another fetch.
    """

    keep: bool
    reason: str | None = None
    keep_when_insufficient: bool = False


@dataclass(frozen=True)
class Generation:
    """What the engine generated for one request: T token ids with T log-probs of the sampled tokens.

    Log-probs are those of the distribution that was sampled from (after temperature, top-p and top-k).
    `finish_reason` is "stop", "length" or "abort"; `weight_version` counts the weight syncs the engine has seen.
    """

    token_ids: list[int]
    log_probs: list[float]
    text: str
    finish_reason: str
    weight_version: int
    began_at: float | None = None
    """When the engine began with the request, as time.monotonic() reads here; None where it does not say (only --trace-step asks)."""
