"""The contract of custom_rm for every reward of this package, and known answers."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from vime.testing import RewardCase
from vime.testing.contracts import RewardContract

NUM_GPUS = 0


class TestMath(RewardContract):
    plugin = "math"
    cases = (
        RewardCase("2 + 2?", r"so it is \boxed{4}", "4", 1.0),
        RewardCase("2 + 2?", "#### 5", "4", 0.0),
        RewardCase("The side of a square of area 8?", r"\boxed{2\sqrt{2}}", r"\sqrt{8}", 1.0),
    )


class TestDapo(RewardContract):
    plugin = "dapo"
    args: ClassVar[dict[str, Any]] = {"reward_key": "score"}
    cases = (
        RewardCase("2 + 2?", "Answer: 4", "4", {"score": 1.0, "acc": 1.0, "pred": "4"}),
        RewardCase("2 + 2?", "Answer: 5", "4", {"score": -1.0, "acc": 0.0, "pred": "5"}),
    )


class TestDeepScaler(RewardContract):
    plugin = "deepscaler"
    cases = (
        RewardCase("2 + 2?", r"<think>2 and 2</think>\boxed{4}", "4", 1.0),
        RewardCase("2 + 2?", r"<think>2 and 2 is \boxed{4}", "4", 0.0),
    )


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
