"""The random states of a step boundary."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from vime.plugins.manager import PluginManager
from vime.runtime.checkpoints import Boundary
from vime.runtime.pipeline import Position

NUM_GPUS = 0

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")


def test_an_interrupted_step_gives_back_the_random_numbers_that_it_drew() -> None:
    run: Any = SimpleNamespace(
        rollout_id=3,
        num_rollout=5,
        plugins=PluginManager(),
        pipeline=SimpleNamespace(position=lambda: Position(None, {})),
        evaluated_at=None,
        first_scores={},
        last_scores={},
    )

    def draw() -> list[float]:
        return [random.random(), float(numpy.random.random()), float(torch.rand(())), random.gauss(0, 1), float(numpy.random.normal())]

    draw()
    boundary = Boundary.of(run)
    first = draw()
    assert draw() != first
    boundary.restore_random_states()
    assert draw() == first
    assert boundary.state["rollout_id"] == 3 and boundary.state["data_source"] is None


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
