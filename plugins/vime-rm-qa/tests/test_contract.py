"""The contract of custom_rm for every reward of this package, and known answers."""

from __future__ import annotations

from typing import ClassVar

import pytest

from vime.testing import RewardCase
from vime.testing.contracts import RewardContract

NUM_GPUS = 0


class TestExact(RewardContract):
    plugin = "exact"
    cases = (
        RewardCase("Capital of France?", "<think>hm</think><answer>The Paris!</answer>", "paris", 1.0),
        RewardCase("Capital of France?", r"\boxed{Lyon}", ["Paris", "Lutetia"], 0.0),
    )


class TestF1(RewardContract):
    plugin = "f1"
    cases = (
        RewardCase("Who wrote it?", "Jane Austen", "Jane Austen", 1.0),
        RewardCase("Who wrote it?", "<answer>Austen</answer>", "Jane Austen", 2 / 3),
        RewardCase("Who wrote it?", "Emily", ["Jane Austen", "Austen"], 0.0),
    )


class TestChoice(RewardContract):
    plugin = "choice"
    cases = (
        RewardCase("Which?", "The answer is (B).", "B", 1.0),
        RewardCase("Which?", "The answer is (A).", "B", 0.0),
        RewardCase("Which?", r"\boxed{C}", 2, 1.0, {"choices": ["w", "x", "y", "z"]}),
    )


class TestFormat(RewardContract):
    plugin = "format"
    cases = (
        RewardCase("2 + 2?", "<think>2 + 2</think>\n<answer>4</answer>", None, 1.0),
        RewardCase("2 + 2?", "<answer>4</answer>", None, 0.0),
    )


class TestFormatByPattern(RewardContract):
    plugin = "format"
    settings: ClassVar[dict[str, str]] = {"pattern": r".*\\boxed\{[^{}]+\}.{0,10}"}
    cases = (
        RewardCase("2 + 2?", "so it is\n\\boxed{4}.", None, 1.0),
        RewardCase("2 + 2?", "4", None, 0.0),
    )


class TestRandom(RewardContract):
    plugin = "random"
    deterministic = False  # it looks at the sample's index, which no other sample has


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
