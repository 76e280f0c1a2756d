"""The learning rate by step."""

import pytest

from vime.errors import ConfigError
from vime.train.schedule import LrSchedule

NUM_GPUS = 0


def test_constant_after_warmup():
    schedule = LrSchedule(lr=1.0, warmup=4)
    assert [schedule.at(step) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_ends_at_the_minimum_and_stays_there():
    schedule = LrSchedule(lr=1.0, style="linear", warmup=2, total=6, min_lr=0.2)
    assert [schedule.at(step) for step in (2, 4, 6, 9)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


def test_cosine_is_half_way_in_the_middle():
    schedule = LrSchedule(lr=2.0, style="cosine", total=10)
    assert [schedule.at(step) for step in (0, 5, 10)] == pytest.approx([2.0, 1.0, 0.0])


@pytest.mark.parametrize(("style", "total"), [("cosin", 5), ("linear", None)])
def test_what_cannot_work_is_refused(style, total):
    with pytest.raises(ConfigError):
        LrSchedule(lr=1.0, style=style, total=total)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
