"""Several engines behave as one: requests, aborts, weights, scores and counters. Deaths are in test_pool_faults.py."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vime.engine.base import TrainableEngine
from vime.engine.host import Request
from vime.engine.member import Pending, deliver
from vime.engine.routing import BLOCK
from vime.errors import EngineDeadError, EngineError
from vime.outputs import Generation
from vime.testing.fakes import FakeEngine

NUM_GPUS = 0

LONG = "x" * (2 * BLOCK)


def test_it_is_an_engine(pools: Any):
    assert isinstance(pools.pool(), TrainableEngine)


def test_results_equal_those_of_one_engine_for_the_same_seeds(pools: Any):
    pool, alone = pools.pool(3), FakeEngine()
    wave = pools.requests([f"{a}+{b}=" for a in range(10) for b in range(10)])
    assert asyncio.run(pool.generate_many(wave)) == asyncio.run(alone.generate_many(wave))
    assert all(pools.submitted(channel) for channel in pools.channels)


def test_the_samples_of_a_group_share_an_engine_and_the_groups_are_spread(pools: Any):
    pool = pools.pool(2)
    asyncio.run(pool.generate_many(pools.requests([str(group) + LONG for group in range(4) for _ in range(8)])))
    first, second = map(pools.submitted, pools.channels)
    assert len(first) == len(second) == 16
    assert not {tuple(ids) for ids in first} & {tuple(ids) for ids in second}


def test_what_is_asked_in_one_turn_of_the_loop_is_one_message(pools: Any):
    pool = pools.pool(1)

    async def run() -> None:
        await asyncio.gather(*(pool.generate(ids, params) for ids, params in pools.requests(["1+1="] * 20)))

    asyncio.run(run())
    assert pools.channels[0].methods().count("submit") == 1


def test_loads_return_to_zero(pools: Any):
    pool = pools.pool(2)
    asyncio.run(pool.generate_many(pools.requests(["1+1="] * 20)))
    assert [member.load for member in pool._members.values()] == [0, 0]


def test_one_request_that_fails_raises_and_ends_the_others_of_its_call(pools: Any):
    pools.engine = {"policy": {"good": "1" * 1000}, "latency": 30.0}
    pool = pools.pool(1)
    channel = pools.channels[0]
    with pytest.raises(EngineError, match="the policy has no response"):
        asyncio.run(pool.generate_many(pools.requests(["good", "bad"], max_new_tokens=1000)))
    asyncio.run(pools.until(lambda: channel.engine.running == 0 and pool._members[0].load == 0))
    assert pool.restarts == 0


def test_requests_that_fail_are_answered_one_by_one(pools: Any):
    pools.engine = {"failure_rate": 0.3}
    pool = pools.pool(2)
    wave = pools.requests([f"{n}=" for n in range(100)])

    async def run() -> list[Any]:
        return await asyncio.gather(*(pool.generate(*request) for request in wave), return_exceptions=True)

    answers = asyncio.run(run())
    failed = sum(isinstance(answer, EngineError) for answer in answers)
    assert 10 < failed < 60
    assert all(isinstance(answer, EngineError | Generation) for answer in answers)


def test_a_session_is_aborted_with_what_it_has(pools: Any):
    pools.engine = {"policy": lambda ids, params: [7] * 1000, "latency": lambda ids, params: 30.0 if len(ids) == 3 else 0.1}
    pool = pools.pool(2)

    async def run() -> list[Generation]:
        params: Any = {"max_new_tokens": 1000}
        tasks = [asyncio.ensure_future(pool.generate([5] * (3 if n % 2 else 4), params, session_id=str(n % 2))) for n in range(8)]
        await pools.until(lambda: all(channel.engine.running for channel in pools.channels))
        await pool.abort("1")
        assert all(task.done() for task in tasks[1::2])
        return await asyncio.gather(*tasks)

    answers = asyncio.run(run())
    assert [answer.finish_reason for answer in answers] == ["length", "abort"] * 4
    assert all(len(answer.token_ids) < 1000 and len(answer.log_probs) == len(answer.token_ids) for answer in answers[1::2])


def test_abort_all_ends_everything_whether_it_was_sent_or_not(pools: Any):
    pools.engine = {"policy": lambda ids, params: [7] * 1000, "latency": 30.0}
    pool = pools.pool(2)

    async def run(turns: int) -> list[Generation]:
        tasks = [asyncio.ensure_future(pool.generate([5, n], {"max_new_tokens": 1000})) for n in range(8)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await pool.abort_all()
        return await asyncio.gather(*tasks)

    assert asyncio.run(run(1)) == [Generation([], [], "", "abort", 0)] * 8
    assert [pools.submitted(channel) for channel in pools.channels] == [[], []]
    for turns in (2, 3, 10):
        assert [answer.finish_reason for answer in asyncio.run(run(turns))] == ["abort"] * 8
    assert all(channel.engine.running == 0 for channel in pools.channels)


def test_a_caller_that_gives_up_takes_its_request_with_it(pools: Any):
    pools.engine = {"latency": 30.0}
    pool = pools.pool(1)
    engine = pools.channels[0].engine

    async def run() -> None:
        task = asyncio.ensure_future(pool.generate([5, 6], {"max_new_tokens": 100}))
        await pools.until(lambda: engine.running == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await pools.until(lambda: engine.running == 0 and pool._members[0].load == 0)

    asyncio.run(run())


def test_several_event_loops_one_after_another(pools: Any):
    pools.engine = {"latency": lambda ids, params: 30.0 if ids == [9] else 0.0}
    pool = pools.pool(2)
    for _ in range(5):

        async def run() -> Generation:
            left = asyncio.ensure_future(pool.generate([9], {"max_new_tokens": 100}))
            await asyncio.sleep(0.01)
            assert not left.done()
            return await pool.generate([5], {"max_new_tokens": 4})

        assert asyncio.run(asyncio.wait_for(run(), 10.0)).finish_reason in ("stop", "length")
    asyncio.run(pools.until(lambda: all(channel.engine.running == 0 for channel in pools.channels)))


def test_a_loop_that_rests_between_two_runs_loses_nothing(pools: Any):
    pools.engine = {"latency": 0.05}
    pool, loop = pools.pool(2), asyncio.new_event_loop()
    tasks = [loop.create_task(pool.generate([5, n], {"max_new_tokens": 4})) for n in range(10)]
    loop.run_until_complete(asyncio.sleep(0.01))
    time.sleep(0.2)
    answers = loop.run_until_complete(asyncio.gather(*tasks))
    loop.close()
    assert len(answers) == 10


def test_a_loop_that_stopped_before_anything_was_sent_does_not_hold_up_the_next(pools: Any):
    pool = pools.pool(1)
    left, loop = asyncio.new_event_loop(), asyncio.new_event_loop()
    task = left.create_task(pool.generate([5], {"max_new_tokens": 4}))
    left.call_soon(left.stop)
    left.run_forever()
    assert pools.submitted(pools.channels[0]) == []
    assert loop.run_until_complete(asyncio.wait_for(pool.generate([6], {"max_new_tokens": 4}), 5.0)).token_ids
    loop.close()
    left.run_until_complete(task)
    left.close()


def test_an_answer_that_nobody_wants_holds_up_no_other():
    async def run() -> None:
        loop = asyncio.get_running_loop()
        cancelled, wanted = (Pending(Request(n, [5], {}), None, loop.create_future()) for n in range(2))
        cancelled.future.cancel()
        generation = Generation([7], [-1.0], "7", "stop", 0)
        deliver([(cancelled, generation), (wanted, generation)])
        assert await asyncio.wait_for(wanted.future, 5.0) == generation

    asyncio.run(run())


def test_weights_reach_every_engine_and_are_acknowledged(pools: Any):
    pool = pools.pool(3)
    pool.update_weights(iter([("a", 1.0), ("b", 2.0)]), 5)
    assert pool.weight_version == 5
    assert [channel.engine.weights for channel in pools.channels] == [{"a": 1.0, "b": 2.0}] * 3


def test_prefixes_of_the_old_weights_draw_no_request(pools: Any):
    pool = pools.pool(2)
    (ids, params), *_ = pools.requests([LONG])
    asyncio.run(pool.generate(ids, params))
    assert pool._router.choose(ids, {0: 1, 1: 0}) == 0
    pool.update_weights([], 1)
    assert pool._router.choose(ids, {0: 1, 1: 0}) == 1


def test_weights_that_are_sent_in_another_way_are_acknowledged_too(pools: Any):
    pool = pools.pool(2)

    def send(handles: list[Any], reached: int) -> None:
        for handle in handles[:reached]:
            handle.engine.update_weights([("w", 1)], 4)

    with pytest.raises(EngineError, match=r"^engine 1 \(life 0\) acknowledges version 0 of the weights, expected 4$"):
        pool.update_by(lambda handles: send(handles, 1), list, 4)
    pool.update_by(lambda handles: send(handles, 2), lambda: [("w", "renewed")], 4)
    assert pool.weight_version == 4
    pools.channels[0].kill()
    asyncio.run(pools.until(lambda: len(pools.channels) == 3 and len(pool._members) == 2))
    assert (pools.channels[2].engine.weights, pools.channels[2].engine.weight_version) == ({"w": "renewed"}, 4)


def test_weights_that_are_never_sent_are_an_error_of_their_own(pools: Any):
    pool = pools.pool(1, sync=0.1)
    with pytest.raises(EngineError, match=r"^the weights were not sent to the engines in 0.1 s"):
        pool.update_by(lambda handles: time.sleep(1.0), list, 4)
    with pytest.raises(ValueError, match="invalid literal"):
        pool.update_by(lambda handles: int("no such port"), list, 4)
    assert pool.weight_version == 0


def test_an_engine_that_acknowledges_another_version_is_named(pools: Any):
    class Forgetful(FakeEngine):
        def update_weights(self, named_tensors: Any, version: int, *, keep_requests: bool = False) -> None:
            super().update_weights(named_tensors, version - 1, keep_requests=keep_requests)

    pools.kinds[1] = Forgetful
    pool = pools.pool(2)
    with pytest.raises(EngineError, match=r"^engine 1 \(life 0\) acknowledges version 4 of the weights, expected 5$"):
        pool.update_weights([], 5)
    assert pool.weight_version == 0


def test_an_error_of_a_sync_is_the_callers(pools: Any):
    class Picky(FakeEngine):
        def update_weights(self, named_tensors: Any, version: int, *, keep_requests: bool = False) -> None:
            raise ValueError("no such tensor")

    pools.kinds[0] = Picky
    pool = pools.pool(2)
    with pytest.raises(ValueError, match="no such tensor"):
        pool.update_weights([], 1)
    assert pool.restarts == 0


def test_a_sync_that_takes_too_long_fails_with_the_engine_in_question(pools: Any):
    pools.fault = lambda channel, method, number: "stall" if method == "update_weights" and channel.index == 1 else None
    pool = pools.pool(2, sync=0.1)
    with pytest.raises(EngineError, match=r"^update_weights was not done in 0.1 s by engine 1 \(life 0\)"):
        pool.update_weights([], 1)


def test_requests_go_on_or_end_with_a_change_of_weights(pools: Any):
    pools.engine = {"policy": lambda ids, params: [7] * 50, "latency": 0.5}
    pool = pools.pool(2)

    async def run(keep: bool, version: int) -> list[Generation]:
        tasks = [asyncio.ensure_future(pool.generate([5, n], {"max_new_tokens": 50})) for n in range(4)]
        await pools.until(lambda: sum(channel.engine.running for channel in pools.channels) == 4)
        await asyncio.to_thread(lambda: pool.update_weights([], version, keep_requests=keep))
        return await asyncio.gather(*tasks)

    assert [answer.finish_reason for answer in asyncio.run(run(True, 1))] == ["length"] * 4
    assert [answer.finish_reason for answer in asyncio.run(run(False, 2))] == ["abort"] * 4


def test_the_scores_are_those_of_every_engine(pools: Any):
    pool = pools.pool(2)
    assert pool.score([[4, 5, 6]]) == FakeEngine().score([[4, 5, 6]])
    pools.channels[1].engine.seed = 1
    each = pool.score_each([[4, 5, 6]])
    assert list(each) == ["engine 0 (life 0)", "engine 1 (life 0)"]
    assert each["engine 1 (life 0)"] == FakeEngine(seed=1).score([[4, 5, 6]]) != each["engine 0 (life 0)"]


def test_every_engine_sleeps_until_it_is_asked_for_something(pools: Any):
    pools.engine = {"latency": 30.0}
    pool = pools.pool(2)

    async def run() -> Generation:
        task = asyncio.ensure_future(pool.generate([5, 6], {"max_new_tokens": 4}))
        await pools.until(lambda: pools.channels[0].engine.running)
        await asyncio.to_thread(pool.sleep)
        return await task

    assert asyncio.run(run()).finish_reason == "abort"
    assert [channel.engine.asleep for channel in pools.channels] == [True, True]
    pool.score([[4, 5]])
    assert [channel.engine.asleep for channel in pools.channels] == [False, False]


def test_counters_are_summed_and_taken_once(pools: Any):
    pool = pools.pool(2)
    answers = asyncio.run(pool.generate_many(pools.requests(["1+1="] * 20)))
    stats = pool.stats()
    assert stats["prompt_tokens"] == 20 * 4
    assert stats["generated_tokens"] == sum(len(answer.token_ids) for answer in answers) == pool.steps
    assert set(pool.stats().values()) == {0.0}


def test_a_request_that_no_engine_can_be_sent_fails_alone(pools: Any):
    pool = pools.pool(2)

    async def run() -> list[Any]:
        calls = [pool.generate([5], {"max_new_tokens": 4, "stop": lambda: None}), pool.generate([5], {"max_new_tokens": 4})]
        first = await asyncio.gather(calls[0], return_exceptions=True)
        return [*first, await calls[1]]

    refused, answered = asyncio.run(run())
    assert isinstance(refused, EngineError)
    assert answered.finish_reason in ("stop", "length")
    assert pool.restarts == 0 and [member.load for member in pool._members.values()] == [0, 0]


def test_requests_from_a_loop_in_another_thread_while_this_one_syncs_and_scores(pools: Any):
    pools.engine = {"latency": 0.005}
    pool, stop, answers = pools.pool(2), threading.Event(), list[Generation]()

    async def run() -> None:
        while not stop.is_set():
            answers.extend(await asyncio.gather(*(pool.generate([5, n], {"max_new_tokens": 5}) for n in range(8))))

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    for version in range(1, 20):
        pool.update_weights([("w", version)], version, keep_requests=True)
        pool.score([[4, 5]])
        pool.stats()
    stop.set()
    thread.join(timeout=10.0)
    assert not thread.is_alive()
    assert {answer.finish_reason for answer in answers} <= {"stop", "length"}
    assert [channel.engine.weight_version for channel in pools.channels] == [19, 19]


def test_closing_ends_the_engines_and_whoever_waits(pools: Any):
    pools.engine = {"latency": 30.0}
    pool = pools.pool(2)

    async def run() -> None:
        task = asyncio.ensure_future(pool.generate([5], {"max_new_tokens": 4}))
        await asyncio.sleep(0.01)
        pool.close()
        with pytest.raises(EngineDeadError, match="the engines are closed"):
            await task
        with pytest.raises(EngineDeadError, match="the engines are closed"):
            await pool.generate([5], {"max_new_tokens": 4})

    asyncio.run(run())
    assert all(channel.dead.is_set() for channel in pools.channels)
    assert pool.restarts == 0 and pools.said == []


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["answer", "abort", "cancel", "wave"]), min_size=1, max_size=12), st.integers(1, 3))
def test_every_request_is_answered_exactly_once(pools: Any, actions: list[str], engines: int):
    pools.engine = {"latency": 0.002}
    pool = pools.pool(engines)

    async def run() -> None:
        tasks: list[asyncio.Future[Any]] = []
        for number, action in enumerate(actions):
            if action == "wave":
                tasks.append(asyncio.ensure_future(pool.generate_many([([5, number, n], {"max_new_tokens": 6}) for n in range(4)])))
            else:
                tasks.append(asyncio.ensure_future(pool.generate([5, number], {"max_new_tokens": 6}, session_id=str(number))))
            await asyncio.sleep(0)
            if action == "cancel":
                tasks[-1].cancel()
            if action == "abort":
                await pool.abort(str(number))
        answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10.0)
        for action, answer in zip(actions, answers, strict=True):
            assert isinstance(answer, asyncio.CancelledError if action == "cancel" else list if action == "wave" else Generation)
        await pools.until(lambda: all(member.load == 0 for member in pool._members.values()))

    asyncio.run(run())
    pool.close()


def test_what_passes_between_processes_can_be_pickled():
    error = EngineDeadError("gone", hint="look")
    again = pickle.loads(pickle.dumps(error))
    assert (again.message, again.hint) == ("gone", "look")


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
