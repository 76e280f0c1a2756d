"""The end of a rollout and the agents that are still at work: asked again they get nothing, and nothing that was cut is trained."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from vime.api import Sample, Status, current_engine, http_session
from vime.engine.base import Engine, set_current_engine
from vime.errors import EngineError
from vime.rollout.ending import LATE_REQUESTS, CallEngine, RolloutEnd
from vime.testing.fakes import FakeEngine

NUM_GPUS = 0


def test_after_the_end_a_request_returns_at_once_and_the_engine_sees_none() -> None:
    engine, end = FakeEngine(), RolloutEnd()
    call = CallEngine(engine, end)
    before = asyncio.run(call.generate([5], {"max_new_tokens": 4}))
    assert before.token_ids and not call.was_cut
    end.reached = True
    late = asyncio.run(call.generate([5], {"max_new_tokens": 4}))
    assert (late.token_ids, late.log_probs, late.text, late.finish_reason, late.weight_version) == ([], [], "", "abort", 0)
    assert [answer.finish_reason for answer in asyncio.run(call.generate_many([([5], {}), ([6], {})]))] == ["abort", "abort"]
    assert call.was_cut and len(engine.requests) == 1


def test_who_asks_for_ever_gets_an_error() -> None:
    call = CallEngine(FakeEngine(), RolloutEnd(reached=True))

    async def ask() -> None:
        for _ in range(LATE_REQUESTS):
            await call.generate([5], {})
        with pytest.raises(EngineError, match="has asked the engine 101 times since"):
            await call.generate([5], {})

    asyncio.run(ask())


def test_an_abort_of_the_agents_own_is_no_end() -> None:
    engine = FakeEngine(latency=30.0)
    call = CallEngine(engine, RolloutEnd())

    async def race() -> str:
        request = asyncio.ensure_future(call.generate([5], {"max_new_tokens": 4}, session_id="branch"))
        await asyncio.sleep(0)
        await call.abort("branch")
        return (await request).finish_reason

    assert asyncio.run(race()) == "abort" and not call.was_cut


def test_it_is_an_engine_with_all_that_the_engine_has() -> None:
    engine = FakeEngine()
    call = CallEngine(engine, RolloutEnd())
    assert isinstance(call, Engine)
    assert (call.tokenizer, call.weight_version, call.max_model_len) == (engine.tokenizer, 0, engine.max_model_len)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = call.no_such_thing


def cut_off(setup_run: Callable[..., Any], generate: Any, **options: Any) -> Any:
    """A rollout of one group that is full while sample 2, of the other group, is at work. Returns the setup."""
    setup = setup_run(custom_generate=generate, latency=0.01, rollout_batch_size=1, over_sampling_batch_size=2, **options)
    rollout = setup.train()
    assert [group[0].group_index for group in rollout.groups] == [0]
    assert rollout.metrics["samples_aborted"] == 2
    return setup


async def _answer(sample: Sample, sampling_params: Any, engine: Any) -> Sample:
    sample.tokens = sample.tokens or engine.tokenizer.encode(sample.prompt)
    generation = await engine.generate(sample.tokens, sampling_params)
    sample.append_response_tokens(tokens=generation.token_ids, log_probs=generation.log_probs, text=generation.text)
    sample.status = Status.COMPLETED
    return sample


async def deaf(sample: Sample, sampling_params: Any, engine: Any) -> Sample:
    if sample.group_index == 1:
        await asyncio.sleep(0.2)  # a tool; the rollout ends meanwhile
    return await _answer(sample, sampling_params, engine)


async def brittle(sample: Sample, sampling_params: Any, engine: Any) -> Sample:
    answered = await deaf(sample, sampling_params, engine)
    if not answered.response:
        raise ValueError("no call in the answer")
    return answered


async def endless(sample: Sample, sampling_params: Any, engine: Any) -> Sample:
    answered = await deaf(sample, sampling_params, engine)
    while sample.group_index == 1:
        answered = await _answer(sample, sampling_params, engine)
    return answered


async def by_name(sample: Sample, sampling_params: Any, engine: Any) -> Sample:
    return await deaf(sample, sampling_params, current_engine())


def in_a_thread(sample: Sample, sampling_params: Any, engine: Any) -> Sample:
    return asyncio.run(deaf(sample, sampling_params, engine))


@pytest.mark.parametrize("agent", [deaf, brittle, endless, by_name, in_a_thread])
def test_what_an_agent_makes_of_a_cut_answer_goes_back_as_a_prompt(setup_run: Callable[..., Any], agent: Any) -> None:
    setup = cut_off(setup_run, agent)
    (group,) = setup.source.buffer
    assert [(sample.index, sample.status, sample.response_length, sample.reward) for sample in group] == [
        (2, Status.PENDING, 0, None),
        (3, Status.PENDING, 0, None),
    ]
    assert len(setup.engine.requests) == 2, "nothing was asked of the engine after the end"


def test_an_agents_own_error_before_the_end_is_an_error(setup_run: Callable[..., Any]) -> None:
    async def broken(sample: Sample, sampling_params: Any, engine: Any) -> Sample:
        await _answer(sample, sampling_params, engine)
        raise ValueError("the tool broke")

    with pytest.raises(ValueError, match="the tool broke"):
        setup_run(custom_generate=broken).train()


def test_a_partial_sample_keeps_the_part_it_had_where_its_agent_pays_no_heed(setup_run: Callable[..., Any]) -> None:
    setup = setup_run(custom_generate=deaf, latency=0.01, rollout_batch_size=1, over_sampling_batch_size=2, partial_rollout=True)
    fresh, started = setup.source.get_samples(2)
    for sample in started:
        sample.tokens = [5]
        sample.append_response_tokens(tokens=[6, 7], log_probs=[-1.0, -1.0])
        sample.status = Status.ABORTED
    setup.source.add_samples([fresh, started])
    setup.train()
    (group,) = setup.source.buffer
    assert [(sample.tokens, sample.status) for sample in group] == [([5, 6, 7], Status.ABORTED)] * 2


def test_an_http_session_is_over_with_its_rollout() -> None:
    openai = pytest.importorskip("openai")
    pytest.importorskip("uvicorn")
    from vime.rollout.http.server import serving

    engine, end = FakeEngine(), RolloutEnd()

    async def agent() -> list[Sample]:
        with serving(engine, asyncio.get_running_loop(), {"max_new_tokens": 4}) as endpoint:
            set_current_engine(CallEngine(engine, end), endpoint)
            with http_session(Sample(index=0), {"max_new_tokens": 4}) as session:
                async with openai.AsyncOpenAI(base_url=session.base_url, api_key="none", max_retries=0) as client:
                    await client.completions.create(model="policy", prompt="a")
                    end.reached = True
                    await client.completions.create(model="policy", prompt="a")
                    raise AssertionError("the session answers after the end")
            return session.samples()

    samples = asyncio.run(agent())
    assert samples[-1].status is Status.ABORTED and len(engine.requests) == 1


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
