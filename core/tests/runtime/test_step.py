"""What a turn of the loop reports of itself."""

from __future__ import annotations

import pytest

from vime.runtime.step import Step
from vime.testing.fakes import FakeEngine

NUM_GPUS = 0


class Restarting:
    restarts = 2

    def score_each(self, sequences: object) -> dict[str, object]:
        return {}


def test_engines_that_were_started_anew_in_this_step_are_counted() -> None:
    engine = Restarting()
    step = Step(0, engine=engine)
    engine.restarts = 5
    assert step.perf_metrics(1.0)["engine_restarts"] == 3.0


def test_one_engine_in_this_process_has_no_such_metric() -> None:
    assert "engine_restarts" not in Step(0, engine=FakeEngine()).perf_metrics(1.0)


def test_what_was_no_work_is_overhead() -> None:
    step = Step(0, engine_seconds=1.0)
    step.seconds = {"train": 2.0, "rollout": 1.5}
    assert step.perf_metrics(4.0) == {"train_time": 2.0, "rollout_time": 1.5, "step_time": 4.0, "overhead_fraction": 0.25}


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
