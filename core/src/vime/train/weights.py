"""Pushing the trainer's weights into the engine, and proving that they arrived."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from vime.engine.base import ManyEngines, TrainableEngine
from vime.errors import EngineError
from vime.train.base import Trainer

PROBE_TOKENS = 256
"""Scored tokens of a probe, at the least."""
RECENT_TOKENS = 512
"""Tokens of recent rollouts in a probe, up to the end of the sequence that reaches it."""
PROBE_LENGTH = 64
"""Tokens of a random probe sequence."""


class WeightSync:
    """Owns the channel from the trainer to the engine, through which `push(version)` sends the weights.

    The probe covers the whole vocabulary as far as a few hundred tokens can, with random sequences that stay the same
    for the run, and the sequences last given to `set_probe`, which are what the policy really sees. Below float32 only
    the responses among these count, where there are enough: on tokens that the policy finds absurd, two right
    implementations differ by more than the tolerance.
    """

    def __init__(self, config: Any, trainer: Trainer, engine: TrainableEngine, push: Callable[[int], None]) -> None:
        self.config = config
        self.trainer = trainer
        self.engine = engine
        self.push = push
        self.synced_version: int | None = None
        """Weight version that the engine holds; None before the first sync."""
        self._syncs_since_check = 0
        self._was_checked = False
        self._recent: list[tuple[list[int], int]] = []
        self._limit = min(trainer.max_positions, engine.max_model_len) - 1
        """Longest probe: the engine wants room for one token more."""
        self._random = random_probe(trainer.vocab_size, self._limit)

    def set_probe(self, sequences: Sequence[Sequence[int]], response_lengths: Sequence[int] | None = None) -> None:
        """Use these token sequences (recent rollouts), which end in responses of these lengths, beside the random ones.

        The first that make `RECENT_TOKENS` are taken.
        """
        self._recent, total = [], 0
        lengths = response_lengths if response_lengths is not None else [len(tokens) - 1 for tokens in sequences]
        for tokens, length in zip(sequences, lengths, strict=True):
            cut = list(tokens)[: self._limit]
            first = max(1, len(tokens) - length)
            if total < RECENT_TOKENS and len(cut) > first:
                self._recent.append((cut, first))
                total += len(cut) - (first if self.trainer.is_low_precision else 0)

    def _probe(self) -> list[tuple[list[int], int]]:
        """Sequences with the first position that counts in each."""
        responses = sum(len(tokens) - first for tokens, first in self._recent)
        if self.trainer.is_low_precision and responses >= PROBE_TOKENS:
            return self._recent
        return [(tokens, 1) for tokens in self._random] + [(tokens, 1) for tokens, _ in self._recent]

    def sync(self) -> None:
        """Push the weights, unless the engine has them already: a rollout without a step of the policy leaves them as they were.

        Verifies on the first sync after an optimizer step, then every `check_weights_every` syncs.
        """
        version = self.trainer.weight_version
        if version == self.synced_version == self.engine.weight_version:
            return
        self.push(version)
        self.synced_version = version
        self._syncs_since_check += 1
        is_due = self._syncs_since_check >= self.config.check_weights_every if self._was_checked else self.trainer.applied_steps > 0
        if is_due:
            self.verify()

    def verify(self) -> dict[str, float]:
        """Compare log-probs of the probe, of every engine. Returns the largest mean and its max |difference|.

        Raises EngineError with the numbers where an engine differs.
        """
        probe = self._probe()
        sequences = [tokens for tokens, _ in probe]
        expected = self.trainer.score(sequences)
        found = [self._compare(who, probe, scores, expected) for who, scores in engine_scores(self.engine, sequences).items()]
        self._syncs_since_check, self._was_checked = 0, True
        return max(found, key=lambda differences: differences["mean"])

    def _compare(
        self, who: str, probe: list[tuple[list[int], int]], found: list[list[float]], expected: list[list[float]]
    ) -> dict[str, float]:
        worst, worst_token, total, count = 0.0, (0, 0), 0.0, 0
        scores = zip(probe, found, expected, strict=True)
        for number, ((tokens, first), its_scores, trainer_scores) in enumerate(scores):
            if len(its_scores) != len(trainer_scores):
                raise EngineError(
                    f"{who} scored {len(its_scores)} tokens of probe {number}, expected {len(trainer_scores)} (all but the first)"
                )
            for position in range(first, len(tokens)):
                difference = abs(trainer_scores[position - 1] - its_scores[position - 1])
                total, count = total + difference, count + 1
                if not math.isnan(worst) and not difference <= worst:
                    worst, worst_token = difference, (tokens[position], position)
        mean, tolerance = total / count, self.trainer.sync_tolerance()
        if not mean <= tolerance:
            raise EngineError(
                f"{who} does not hold the trainer's weights (version {self.trainer.weight_version}): log-probs of {count} probe "
                f"tokens differ by {mean:.3g} in the mean and {worst:.3g} at most, the tolerance is {tolerance:g}; "
                f"worst: token {worst_token[0]} at position {worst_token[1]}",
                hint="the weight sync of this engine is broken for this model: do not train on; --check-weights-tolerance sets the limit",
            )
        return {"mean": mean, "max": worst, "tokens": float(count)}


def engine_scores(engine: TrainableEngine, sequences: Sequence[Sequence[int]]) -> dict[str, list[list[float]]]:
    """What each engine finds, by its name in messages: of several that are one, one may have missed a sync."""
    if isinstance(engine, ManyEngines):
        return engine.score_each(sequences)
    return {"the engine": engine.score(sequences)}


def random_probe(vocab_size: int, max_positions: int, seed: int = 0) -> list[list[int]]:
    """Sequences of random token ids: every id once where the vocabulary is small, else a spread of `PROBE_TOKENS` or more."""
    generator = random.Random(seed)
    length = max(2, min(PROBE_LENGTH, max_positions))
    wanted = PROBE_TOKENS + PROBE_TOKENS // (length - 1) + 1
    ids = list(range(vocab_size)) if vocab_size <= wanted else generator.sample(range(vocab_size), wanted)
    ids += [generator.randrange(vocab_size) for _ in range(wanted - len(ids))]
    generator.shuffle(ids)
    return [ids[start : start + length] for start in range(0, len(ids), length) if len(ids) - start > 1]
