"""One turn of the training loop, as it is timed and measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vime.engine.base import ManyEngines
from vime.track.trace import Tracer

if TYPE_CHECKING:
    from vime.engine.base import TrainableEngine
    from vime.rollout.runner import Rollout
    from vime.runtime.pipeline import Made
    from vime.track.console import Console
    from vime.track.tracker import Tracker
    from vime.train.batch import TrainBatch


@dataclass
class Step:
    """One turn of the loop: the seconds its parts took, and its metrics by full key."""

    number: int
    tracer: Tracer = field(default_factory=Tracer)
    console: Console | None = None
    """Shows the part that is under way; the rollout has a bar of its own."""
    engine: TrainableEngine | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    engine_seconds: float = 0.0
    overlaps: bool = False
    """Whether the engine works beside the trainer."""
    rollout: Rollout | None = None
    batch: TrainBatch | None = None

    def __post_init__(self) -> None:
        self._restarts_before = self.engine.restarts if isinstance(self.engine, ManyEngines) else 0

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            with self.tracer.part(part), nullcontext() if self.console is None or part == "rollout" else self.console.working(part):
                yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - started

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

    def metrics_of(self, made: Made, version: int | None) -> dict[str, float]:
        """The metrics of the rollout that this step trains on, by weights of this version (None: it does not train)."""
        self.rollout = made.rollout
        metrics = dict(made.rollout.metrics)
        self.seconds["reward"] = metrics.pop("reward_time", 0.0)
        if self.overlaps:
            self.seconds["generation"] = made.seconds
        stats = made.stats
        self.engine_seconds = stats.get("busy_seconds", 0.0)
        if "generated_tokens" in stats:
            metrics["tokens_per_second"] = stats["generated_tokens"] / stats["seconds"]
        if stats.get("prompt_tokens"):
            metrics["prefix_cache_hit_rate"] = stats.get("cached_tokens", 0.0) / stats["prompt_tokens"]
        samples = [sample for group in made.rollout.groups for sample in group if sample.weight_versions]
        if version is not None and samples:
            staleness = [version - min(sample.weight_versions) for sample in samples]
            metrics |= {"staleness_mean": sum(staleness) / len(staleness), "staleness_max": max(staleness)}
        return metrics

    def perf_metrics(self, elapsed: float) -> dict[str, float]:
        """Seconds by part, and the share of the whole that was neither an engine step, nor training, nor a sync.

        Rewards overlap with generation; only what they add beyond it shows in that share. Where the engine works beside
        the trainer, the time that the step waits for a rollout takes the place of the engine's. Of several engines also
        those that were started anew.
        """
        engine = self.seconds.get("rollout", 0.0) if self.overlaps else self.engine_seconds
        busy = engine + self.seconds.get("train", 0.0) + self.seconds.get("sync", 0.0)
        times = {f"{part}_time": seconds for part, seconds in self.seconds.items()}
        if isinstance(self.engine, ManyEngines):
            times["engine_restarts"] = float(self.engine.restarts - self._restarts_before)
        return {**times, "step_time": elapsed, "overhead_fraction": max(0.0, 1.0 - busy / elapsed) if elapsed else 0.0}
