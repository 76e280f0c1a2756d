"""A run without a model: a trainer that counts and sleeps beside a FakeEngine, where a run has its placement.

engine = FakeEngine(latency=0.1)
train(resolved, FakePlacement(engine, FakeTrainer(engine, seconds=0.1)))
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime.runtime.placement import keeps_requests
from vime.testing.fakes import FakeEngine

if TYPE_CHECKING:
    from vime.engine.base import TrainableEngine
    from vime.runtime.placement import Needs
    from vime.sample import Sample
    from vime.train.base import Trainer
    from vime.train.batch import TrainBatch

QUICKSTART = Path(__file__).parents[1] / "quickstart" / "model"
"""A model folder with a tokenizer; what its checkpoints are shaped like."""


class FakeTrainer:
    """A `Trainer` whose steps cost `seconds` (a number, or a function of the batch) and change nothing but the version.

    `batches` holds what it was given. Its log-probs are those of `engine`, so that a weight sync verifies.
    """

    max_positions = 2**20
    is_low_precision = False

    def __init__(self, engine: FakeEngine, seconds: float | Callable[[TrainBatch], float] = 0.0) -> None:
        self.engine, self.seconds = engine, seconds
        self.vocab_size: int = engine.tokenizer.vocab_size
        self.weight_version = self.applied_steps = 0
        self.batches: list[TrainBatch] = []
        self.closed = False

    def train(self, batch: TrainBatch, *, verify: Callable[[], object] | None = None) -> dict[str, float]:
        time.sleep(self.seconds(batch) if callable(self.seconds) else self.seconds)
        self.batches.append(batch)
        stale = sum(any(version != self.weight_version for version in versions) for versions in batch.weight_versions)
        self.weight_version += 1
        self.applied_steps += 1
        return {"optimizer_steps": 1.0, "stale_samples": float(stale)}

    def named_weights(self) -> Iterator[tuple[str, Any]]:
        yield "version", self.weight_version

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return self.engine.score(sequences)

    def sample_log_probs(self, samples: Sequence[Sample]) -> list[list[float]]:
        return [self.score([sample.tokens])[0][-sample.response_length :] for sample in samples]

    def sync_tolerance(self) -> float:
        return 1e-9

    def save(self, directory: str | Path) -> None:
        shutil.copy(QUICKSTART / "config.json", directory)
        (Path(directory) / "trainer.json").write_text(json.dumps({"version": self.weight_version, "steps": self.applied_steps}))

    def load(self, directory: str | Path) -> None:
        state = json.loads((Path(directory) / "trainer.json").read_text())
        self.weight_version, self.applied_steps = state["version"], state["steps"]

    def close(self) -> None:
        self.closed = True


class FakePlacement:
    """Hands out this engine and this trainer; a sync costs `sync_seconds`."""

    def __init__(self, engine: FakeEngine, trainer: FakeTrainer, sync_seconds: float = 0.0) -> None:
        self.engine, self.trainer, self.sync_seconds = engine, trainer, sync_seconds
        self._keep_requests = False

    def open(self, needs: Needs) -> None:
        self._keep_requests = keeps_requests(needs.config)

    def start_trainer(self) -> Trainer:
        return self.trainer

    def start_engine(self) -> TrainableEngine:
        return self.engine

    def before_training(self) -> None:
        pass

    def push_weights(self, version: int) -> None:
        time.sleep(self.sync_seconds)
        self.engine.update_weights(self.trainer.named_weights(), version, keep_requests=self._keep_requests)

    def close(self) -> None:
        pass
