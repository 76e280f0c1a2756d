"""The trainer as a run sees it, in this process or spread over ranks elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from vime.sample import Sample
    from vime.train.batch import TrainBatch


class Trainer(Protocol):
    """Owns the policy and its optimizer. Methods are called by one thread, one at a time."""

    vocab_size: int
    max_positions: int
    """Tokens of the longest sequence that the model takes."""

    @property
    def weight_version(self) -> int:
        """Rollouts that changed the weights."""
        ...

    @property
    def applied_steps(self) -> int:
        """Optimizer steps that changed the weights."""
        ...

    @property
    def is_low_precision(self) -> bool:
        """Whether trainer or engine compute below float32."""
        ...

    def train(self, batch: TrainBatch, *, verify: Callable[[], object] | None = None) -> dict[str, float]:
        """Apply the optimizer steps of one rollout and return its metrics, without a namespace.

        `verify` is called before the first optimizer step where the mean |train - rollout log-prob| exceeds
        `sync_tolerance`; it raises if the engine's weights are not the trainer's. `batch.rows` holds afterwards what
        training made of each row.
        """
        ...

    def named_weights(self) -> Iterator[tuple[str, Any]]:
        """All weights under their Hugging Face names, each once."""
        ...

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probs of tokens 1..T-1 of each sequence at temperature 1."""
        ...

    def sample_log_probs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """The log-probs of each sample's trained tokens, at temperature 1."""
        ...

    def sync_tolerance(self) -> float:
        """The largest mean |difference of log-probs| that counts as equal weights."""
        ...

    def save(self, directory: str | Path) -> None: ...

    def load(self, directory: str | Path) -> None: ...

    def close(self) -> None: ...
