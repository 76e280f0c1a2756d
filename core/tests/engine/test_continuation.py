"""What is left of a request that goes on under new weights."""

from __future__ import annotations

import pytest

from vime.engine.base import SamplingParams
from vime.engine.continuation import rest_of

NUM_GPUS = 0


def test_limits_count_from_the_first_token_of_the_whole_request() -> None:
    asked = SamplingParams(max_new_tokens=10, min_new_tokens=4, temperature=0.5, stop=["\n"], seed=None)
    assert rest_of(asked, 3) == {**asked, "max_new_tokens": 7, "min_new_tokens": 1}
    assert rest_of(asked, 6) == {**asked, "max_new_tokens": 4, "min_new_tokens": 0}
    assert rest_of(asked, 0) == asked
    assert "max_new_tokens" not in rest_of(SamplingParams(), 3), "without a limit the context is the limit"


def test_the_same_random_numbers_are_not_drawn_again() -> None:
    seeds = [rest_of(SamplingParams(seed=7), done).get("seed") for done in range(50)]
    assert len(set(seeds)) == 50 and seeds[0] == 7
    assert all(seed is not None and 0 <= seed < 2**63 for seed in seeds)
    assert seeds == [rest_of(SamplingParams(seed=7), done).get("seed") for done in range(50)]
    assert rest_of(SamplingParams(seed=8), 1) != rest_of(SamplingParams(seed=7), 1)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
