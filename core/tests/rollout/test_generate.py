"""The built-in generation of one sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from vime.testing.fakes import FakeTokenizer

NUM_GPUS = 0


@dataclass
class Comparable(FakeTokenizer):
    """A tokenizer with an == of its own, and so without a hash."""

    vocab_size: int = 128

    def __post_init__(self) -> None:
        super().__init__(self.vocab_size)


def test_a_tokenizer_without_a_hash_will_do(setup_run: Callable[..., Any]) -> None:
    run = setup_run(prompt="abc")
    expected = run.engine.tokenizer.encode("abc")
    run.engine.tokenizer = Comparable()
    samples = [sample for group in run.train().groups for sample in group]
    assert len(samples) == 4 and all(sample.tokens[: len(expected)] == expected for sample in samples)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
