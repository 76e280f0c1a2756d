"""Engines die, stand still and do not start: every request is answered once, and a new engine holds the current weights."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vime.errors import EngineDeadError, EngineError
from vime.outputs import Generation
from vime.testing.fakes import FakeEngine

NUM_GPUS = 0


def dies_at(index: int, method: str, how: str, life: int = 0) -> Any:
    """A fault of that life of that engine, at its first call of that method."""

    def fault(channel: Any, called: str, number: int) -> str | None:
        return how if (channel.index, channel.life, called) == (index, life, method) else None

    return fault


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("method", ["submit", "poll"])
def test_requests_of_an_engine_that_dies_are_finished_elsewhere(pools: Any, method: str, how: str):
    pools.fault = dies_at(0, method, how)
    pool, alone = pools.pool(2), FakeEngine()
    pool.update_weights([("w", 1)], 1)
    wave = pools.requests([f"{n}=" for n in range(40)])
    answers = asyncio.run(pool.generate_many(wave))
    expected = asyncio.run(alone.generate_many(wave))
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    asyncio.run(pools.until(lambda: len(pool._members) == 2))
    assert pool.restarts == 1 and pools.channels[0].dead.is_set()
    assert pools.channels[2].engine.weights == {"w": 1}
    assert pools.said[0].startswith("engine 0 (life 0) has died; ") and "a new one is starting (1 of 3)" in pools.said[0]
    asyncio.run(pools.until(lambda: len(pools.said) == 2))
    assert pools.said[1].startswith("engine 0 (life 1) is there")


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("method", ["update_weights", "score"])
def test_a_death_during_a_sync_or_a_score_leaves_the_others_right(pools: Any, method: str, how: str):
    pools.fault = dies_at(1, method, how)
    pool = pools.pool(2)
    pool.update_weights([("w", 1)], 1)
    scores = pool.score_each([[4, 5]])
    assert len(scores) >= 1 and pool.weight_version == 1
    asyncio.run(pools.until(lambda: len(pool._members) == 2))
    assert [channel.engine.weight_version for channel in pools.channels if not channel.dead.is_set()] == [1, 1]
    assert pool.restarts == 1


def test_an_idle_engine_that_dies_is_replaced_at_once(pools: Any):
    pool = pools.pool(2)
    asyncio.run(pools.until(lambda: pools.channels[1].methods() == ["poll"]))
    pools.channels[1].kill()
    asyncio.run(pools.until(lambda: len(pools.channels) == 3 and len(pool._members) == 2))
    assert pools.said[0] == "engine 1 (life 0) has died; a new one is starting (1 of 3)"


def test_a_new_engine_has_the_newest_weights_though_they_changed_while_it_started(pools: Any):
    started, go_on = threading.Event(), threading.Event()

    def fault(channel: Any, method: str, number: int) -> str | None:
        if channel.life == 1 and method == "update_weights" and not started.is_set():
            started.set()
            go_on.wait(10.0)
        return None

    pools.fault = fault
    pool = pools.pool(2)
    pool.update_weights([("w", 1)], 1)
    pools.channels[0].kill()
    assert started.wait(10.0)
    pool.update_weights([("w", 2)], 2)
    go_on.set()
    asyncio.run(pools.until(lambda: len(pool._members) == 2))
    assert pools.channels[2].engine.weights == {"w": 2}


def test_all_engines_may_die_at_once(pools: Any):
    pools.engine = {"latency": 0.2}
    pool, alone = pools.pool(2), FakeEngine()
    wave = pools.requests([f"{n}=" for n in range(40)])
    go_on, start = threading.Event(), pools.start

    def slow_start(index: int) -> Any:
        go_on.wait(10.0)
        return start(index)

    pool._start = slow_start

    async def run() -> list[Generation]:
        task = asyncio.ensure_future(pool.generate_many(wave))
        await pools.until(lambda: sum(channel.engine.running for channel in pools.channels) == 40)
        for channel in pools.channels[:2]:
            channel.kill()
        await pools.until(lambda: len(pool._waiting) == 40)
        go_on.set()
        return await task

    assert [a.token_ids for a in asyncio.run(run())] == [a.token_ids for a in asyncio.run(alone.generate_many(wave))]
    assert pool.restarts == 2
    assert any("; its 40 unfinished requests wait; " in said for said in pools.said)


def test_an_abort_reaches_requests_that_wait_for_an_engine(pools: Any):
    pools.engine = {"latency": 30.0}
    pool = pools.pool(1)
    held = threading.Event()
    start = pools.start

    def slow_start(index: int) -> Any:
        held.wait(10.0)
        return start(index)

    pool._start = slow_start

    async def run() -> list[Generation]:
        task = asyncio.ensure_future(pool.generate_many([([5, n], {"max_new_tokens": 9}) for n in range(3)]))
        await pools.until(lambda: pools.channels[0].engine.running == 3)
        pools.channels[0].kill()
        await pools.until(lambda: len(pool._waiting) == 3)
        await pool.abort_all()
        held.set()
        return await task

    assert asyncio.run(run()) == [Generation([], [], "", "abort", 0)] * 3


def test_requests_that_were_aborted_are_not_begun_again_elsewhere(pools: Any):
    pools.engine = {"latency": 30.0}
    pools.fault = lambda channel, method, number: "before" if (method, channel.index) == ("abort", 0) else None
    pool = pools.pool(2)

    async def run() -> list[Generation]:
        task = asyncio.ensure_future(pool.generate_many([([5, n], {"max_new_tokens": 9}) for n in range(8)]))
        await pools.until(lambda: sum(channel.engine.running for channel in pools.channels) == 8)
        await pool.abort_all()
        return await task

    assert [answer.finish_reason for answer in asyncio.run(run())] == ["abort"] * 8
    asyncio.run(pools.until(lambda: len(pool._members) == 2))
    assert sum(len(pools.submitted(channel)) for channel in pools.channels) == 8


def test_an_engine_that_says_that_it_cannot_go_on_is_replaced(pools: Any):
    """vLLM failed in a step: the process is there, but each request ends with EngineDeadError."""

    class Broken(FakeEngine):
        async def generate(self, token_ids: Any, sampling_params: Any, *, session_id: str | None = None) -> Generation:
            await asyncio.sleep(0.01)
            raise EngineDeadError("vLLM failed in an engine step")

    pools.kinds[0] = Broken
    pool = pools.pool(2, max_restarts=1)
    pools.kinds.clear()
    answers = asyncio.run(pool.generate_many(pools.requests([f"{n}=" for n in range(20)])))
    assert {answer.finish_reason for answer in answers} <= {"stop", "length"} and len(answers) == 20
    assert pools.said[0].startswith("engine 0 (life 0) cannot go on: vLLM failed in an engine step; its ")
    assert pools.channels[0].dead.is_set()


def test_one_death_more_than_allowed_ends_the_run_with_the_cause(pools: Any):
    pools.fault = lambda channel, method, number: "after" if method == "submit" else None
    pool = pools.pool(2, max_restarts=2)
    with pytest.raises(EngineDeadError, match=r"engine \d \(life \d\) has died") as caught:
        asyncio.run(asyncio.wait_for(pool.generate_many(pools.requests([f"{n}=" for n in range(20)])), 10.0))
    assert caught.value.hint is not None and caught.value.hint.startswith("2 engines were started anew already (--max-engine-restarts)")
    with pytest.raises(EngineDeadError):
        pool.update_weights([], 1)
    with pytest.raises(EngineDeadError):
        pool.score([[4, 5]])
    with pytest.raises(EngineDeadError):
        asyncio.run(pool.generate([5], {"max_new_tokens": 1}))


def test_a_start_that_fails_is_tried_again(pools: Any):
    pools.start_fails = lambda life: life < 3
    pool = pools.pool(1)
    pools.channels[0].kill()
    answer = asyncio.run(asyncio.wait_for(pool.generate([5], {"max_new_tokens": 4}), 10.0))
    assert answer.token_ids and pool.restarts == 3
    assert pools.said[1] == "engine 0 could not be started: engine 0 has died in its start; the next one is starting (2 of 3)"


def test_starts_that_all_fail_end_the_run(pools: Any):
    pools.start_fails = lambda life: True
    pool = pools.pool(1)
    pools.channels[0].kill()
    with pytest.raises(EngineDeadError, match=r"^engine 0 could not be started: engine 0 has died in its start"):
        asyncio.run(asyncio.wait_for(pool.generate([5], {"max_new_tokens": 4}), 10.0))
    assert pool.restarts == 3


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_new_engine_that_dies_with_the_weights_is_replaced_too(pools: Any, how: str):
    pools.fault = dies_at(0, "update_weights", how, life=1)
    pool = pools.pool(1)
    pool.update_weights([("w", 1)], 1)
    pools.channels[0].kill()
    answer = asyncio.run(asyncio.wait_for(pool.generate([5], {"max_new_tokens": 4}), 10.0))
    assert answer.weight_version == 1 and pool.restarts == 2
    assert pools.channels[2].methods()[0] == "update_weights"


def test_an_engine_that_makes_no_step_is_taken_for_dead(pools: Any):
    class Stuck(FakeEngine):
        async def generate(self, token_ids: Any, sampling_params: Any, *, session_id: str | None = None) -> Generation:
            await asyncio.sleep(60.0)
            raise AssertionError

    pools.kinds[0] = Stuck
    pool = pools.pool(2, timeout=0.3)
    answers = asyncio.run(pool.generate_many(pools.requests([f"{n}=" for n in range(20)])))
    assert len(answers) == 20
    assert pools.said[0].startswith("engine 0 (life 0) made no step in 0.3 s and was ended; its ")
    assert pools.channels[0].dead.is_set()


def test_an_engine_that_answers_nothing_is_taken_for_dead_even_if_idle(pools: Any):
    pools.fault = lambda channel, method, number: "stall" if (channel.index, channel.life) == (1, 0) else None
    pool = pools.pool(2, timeout=0.1)
    asyncio.run(pools.until(lambda: len(pools.channels) == 3 and len(pool._members) == 2))
    assert pools.said[0].startswith("engine 1 (life 0) gave no answer in 0.1 s and was ended")


def test_a_slow_engine_is_not_taken_for_dead(pools: Any):
    pools.engine = {"policy": lambda ids, params: [7] * 20, "latency": 2.0}
    pool = pools.pool(1, timeout=1.0)
    assert len(asyncio.run(pool.generate([5], {"max_new_tokens": 20})).token_ids) == 20
    assert pools.said == []


def test_a_long_sync_with_requests_in_flight_is_no_standstill(pools: Any):
    class Slow(FakeEngine):
        def update_weights(self, named_tensors: Any, version: int, *, keep_requests: bool = False) -> None:
            time.sleep(0.6)
            super().update_weights(named_tensors, version, keep_requests=keep_requests)

        async def generate(self, token_ids: Any, sampling_params: Any, *, session_id: str | None = None) -> Generation:
            while self.weight_version == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return await super().generate(token_ids, sampling_params, session_id=session_id)

    pools.kinds[0] = Slow
    pool = pools.pool(1, timeout=0.3)

    async def run() -> None:
        task = asyncio.ensure_future(pool.generate([5], {"max_new_tokens": 4}))
        await asyncio.sleep(0.02)
        await asyncio.to_thread(lambda: pool.update_weights([], 1, keep_requests=True))
        await task

    asyncio.run(run())
    assert pools.said == []


def test_this_process_standing_still_is_no_standstill_of_an_engine(pools: Any, monkeypatch: pytest.MonkeyPatch):
    pool = pools.pool(1, timeout=5.0)
    member = pool._members[0]
    before = time.monotonic()
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + 1000.0)  # as after SIGSTOP and SIGCONT of the driver
    asyncio.run(pools.until(lambda: member._heard > before + 900.0))
    assert pools.said == []


def test_closing_while_an_engine_starts_leaves_none_behind(pools: Any):
    pool = pools.pool(1)
    arrived, go_on, start = threading.Event(), threading.Event(), pools.start

    def slow_start(index: int) -> Any:
        arrived.set()
        go_on.wait(10.0)
        return start(index)

    pool._start = slow_start
    pools.channels[0].kill()
    assert arrived.wait(10.0)
    pool.close()
    go_on.set()
    asyncio.run(pools.until(lambda: len(pools.channels) == 2 and pools.channels[1].dead.is_set()))
    assert len(pools.said) == 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), engines=st.integers(1, 3), rate=st.sampled_from([0.02, 0.1, 0.3]))
def test_nothing_is_lost_or_answered_twice_wherever_engines_die(pools: Any, seed: int, engines: int, rate: float):
    """Syncs, scores and counters go on in another thread meanwhile."""
    rng, versions = random.Random(seed), [0]
    pools.channels.clear()
    pools.engine = {"latency": 0.002}
    lives_left = [0]

    def fault(channel: Any, method: str, number: int) -> str | None:
        if rng.random() < rate and lives_left[0] > 0:
            lives_left[0] -= 1
            return rng.choice(["before", "after"])
        return None

    pools.fault = fault
    pool, alone = pools.pool(engines, max_restarts=20), FakeEngine()
    wave = [([5, n], {"max_new_tokens": 6, "seed": n}) for n in range(60)]
    pool.update_weights([("w", 0)], 0)
    lives_left = [12]
    stop = threading.Event()

    def sync() -> None:
        while not stop.is_set():
            versions[0] += 1
            pool.update_weights([("w", versions[0])], versions[0], keep_requests=True)
            pool.score([[4, 5]])
            pool.stats()
            time.sleep(0.002)

    async def run() -> list[Generation]:
        thread = asyncio.ensure_future(asyncio.to_thread(sync))
        tasks: list[asyncio.Task[Generation]] = []
        for n, (ids, params) in enumerate(wave):
            tasks.append(asyncio.ensure_future(pool.generate(ids, params)))
            if n % 7 == 0:
                await asyncio.sleep(0.001)
        answers = await asyncio.wait_for(asyncio.gather(*tasks), 20.0)
        stop.set()
        await thread
        await pools.until(lambda: len(pool._members) == engines)
        assert all(member.load == 0 for member in pool._members.values())
        return answers

    try:
        answers = asyncio.run(run())
        expected = asyncio.run(alone.generate_many(wave))
        assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
        living = [channel for channel in pools.channels if not channel.dead.is_set()]
        assert len(living) == engines
        assert {channel.engine.weight_version for channel in living} == {versions[0]}
        for channel in pools.channels[engines:]:
            assert channel.methods()[0] == "update_weights"
        assert pool.restarts == len(pools.channels) - engines
    finally:
        stop.set()
        pool.close()


def test_a_new_engine_is_not_taken_for_one_that_has_seen_the_prefixes_of_the_old(pools: Any):
    pool = pools.pool(2)
    (ids, params), *_ = pools.requests(["x" * 40])
    asyncio.run(pool.generate(ids, params))
    pools.channels[0].kill()
    asyncio.run(pools.until(lambda: len(pools.channels) == 3 and len(pool._members) == 2))
    assert pool._router.choose(ids, {0: 1, 1: 0}) == 1


def test_an_engine_error_is_not_a_death(pools: Any):
    class Refusing(FakeEngine):
        async def generate(self, token_ids: Any, sampling_params: Any, *, session_id: str | None = None) -> Generation:
            raise EngineError("vLLM refused a request")

    pools.kinds[0] = Refusing
    pool = pools.pool(1)
    with pytest.raises(EngineError, match="vLLM refused a request"):
        asyncio.run(pool.generate([5], {"max_new_tokens": 4}))
    assert pool.restarts == 0


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
