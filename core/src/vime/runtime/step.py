"""One turn of the training loop, as it is timed and measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vime.rollout.runner import Rollout
    from vime.track.tracker import Tracker
    from vime.train.batch import TrainBatch


@dataclass
class Step:
    """One turn of the loop: the seconds its parts took, and its metrics by full key."""

    number: int
    seconds: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    engine_seconds: float = 0.0
    rollout: Rollout | None = None
    batch: TrainBatch | None = None

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = time.perf_counter() - started

    @contextmanager
    def writing_samples(self, tracker: Tracker, every: int) -> Iterator[None]:
        """At the end, write what was generated, with what training made of it as far as it came: after a failure it is wanted most."""
        try:
            yield
        finally:
            if every and self.number % every == 0 and self.rollout is not None:
                self._write_samples(tracker, self.rollout)

    def _write_samples(self, tracker: Tracker, rollout: Rollout) -> None:
        trained = None
        if self.batch is not None:
            from vime.train.rollout_data import token_values

            trained = token_values(self.batch, [sample for group in rollout.groups for sample in group])
        tracker.log_samples(self.number, "train", rollout.groups, rollout.dropped, trained)

    def perf_metrics(self, elapsed: float) -> dict[str, float]:
        """Seconds by part, and the share of the whole that was neither an engine step, nor training, nor a sync.

        Rewards overlap with generation; only what they add beyond it shows in that share.
        """
        busy = self.engine_seconds + self.seconds.get("train", 0.0) + self.seconds.get("sync", 0.0)
        times = {f"{part}_time": seconds for part, seconds in self.seconds.items()}
        return {**times, "step_time": elapsed, "overhead_fraction": max(0.0, 1.0 - busy / elapsed) if elapsed else 0.0}
