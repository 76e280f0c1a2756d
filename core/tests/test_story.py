"""The lines at the end of a run."""

from pathlib import Path

import pytest

from vime.runtime.story import summary_rows

NUM_GPUS = 0


def scores(first, last):
    return summary_rows(first_scores=first, last_scores=last, checkpoint=None, run_folder=Path("run"), seconds=1.0)["held"]


def test_scores_before_and_after():
    assert scores({"held": 0.25}, {"held": 0.5}) == "0.250 -> 0.500  (+0.250)"


def test_a_single_evaluation_is_not_compared_with_itself():
    assert scores({"held": 0.347}, {"held": 0.347}) == "0.347"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
