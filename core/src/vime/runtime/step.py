"""One turn of the training loop, as it is timed and measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Step:
    """One turn of the loop: the seconds its parts took, and its metrics by full key."""

    number: int
    seconds: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    engine_seconds: float = 0.0

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = time.perf_counter() - started

    def perf_metrics(self, elapsed: float) -> dict[str, float]:
        """Seconds by part, and the share of the whole that was neither an engine step, nor training, nor a sync.

        Rewards overlap with generation; only what they add beyond it shows in that share.
        """
        busy = self.engine_seconds + self.seconds.get("train", 0.0) + self.seconds.get("sync", 0.0)
        times = {f"{part}_time": seconds for part, seconds in self.seconds.items()}
        return {**times, "step_time": elapsed, "overhead_fraction": max(0.0, 1.0 - busy / elapsed) if elapsed else 0.0}
