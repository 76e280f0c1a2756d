"""Which engine a request goes to."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.engine.routing import BLOCK, Router

NUM_GPUS = 0


def prompt(first: int, length: int = 2 * BLOCK) -> list[int]:
    return [first + i for i in range(length)]


def test_a_short_prompt_goes_to_the_engine_with_the_fewest_tokens_in_flight():
    router = Router(slack=1000)
    assert router.choose([1, 2, 3], {0: 50, 1: 20, 2: 30}) == 1
    assert router.choose([1, 2, 3], {0: 10, 1: 20, 2: 30}) == 0


def test_the_samples_of_a_group_go_to_one_engine():
    router, loads = Router(slack=8 * 100), {0: 0, 1: 0, 2: 0}
    for group in range(6):
        engines = set()
        for _ in range(8):
            engine = router.choose(prompt(1000 * group), loads)
            loads[engine] += 100
            engines.add(engine)
        assert len(engines) == 1
    assert set(loads.values()) == {1600}


def test_a_follow_up_goes_where_its_conversation_is():
    router = Router(slack=1000)
    first = prompt(5)
    engine = router.choose(first, {0: 10, 1: 0})
    assert engine == 1
    assert router.choose([*first, 7, 7, 7, *prompt(900)], {0: 0, 1: 400}) == 1


def test_an_engine_that_is_far_behind_is_relieved():
    router = Router(slack=100)
    assert router.choose(prompt(5), {0: 0, 1: 10}) == 0
    assert router.choose(prompt(5), {0: 100, 1: 0}) == 0
    assert router.choose(prompt(5), {0: 101, 1: 0}) == 1
    assert router.choose(prompt(5), {0: 0, 1: 50}) == 1, "the prefix is there now"


def test_what_an_engine_has_seen_can_be_forgotten():
    router = Router(slack=1000)
    assert router.choose(prompt(5), {0: 10, 1: 0}) == 1
    router.forget(1)
    assert router.choose(prompt(5), {0: 10, 1: 20}) == 0
    router.forget()
    assert router.choose(prompt(5), {0: 10, 1: 0}) == 1


def test_an_engine_that_is_gone_is_never_chosen():
    router = Router(slack=1000)
    assert router.choose(prompt(5), {0: 10, 1: 0}) == 1
    assert router.choose(prompt(5), {0: 10}) == 0


def test_memory_is_bounded():
    router = Router(slack=0, remembered=10)
    for first in range(100):
        router.choose(prompt(1000 * first), {0: 0})
    assert len(router._seen) == 10


requests = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5 * BLOCK), st.integers(1, 200)), max_size=60)


@given(requests, st.integers(1, 5), st.integers(0, 2000))
def test_the_loads_stay_within_the_slack_and_one_request(wave: list[tuple[int, int, int]], engines: int, slack: int):
    router, loads = Router(slack), Counter(dict.fromkeys(range(engines), 0))
    for first, length, tokens in wave:
        before = dict(loads)
        chosen = router.choose(prompt(1000 * first, length), before)
        assert before[chosen] <= min(before.values()) + slack
        loads[chosen] += tokens


@given(requests)
def test_with_slack_enough_a_prefix_is_never_computed_twice(wave: list[tuple[int, int, int]]):
    router, loads, homes = Router(10**9), {0: 0, 1: 0, 2: 0}, dict[int, int]()
    for first, length, tokens in wave:
        chosen = router.choose(prompt(1000 * first, length), loads)
        loads[chosen] += tokens
        if length >= BLOCK:
            assert homes.setdefault(first, chosen) == chosen


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
