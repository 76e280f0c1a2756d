"""Rollouts do not notice that their engine is several, nor that some of these die."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from vime.api import Sample, http_session
from vime.engine.base import Engine
from vime.engine.host import EngineHost
from vime.engine.pool import EnginePool
from vime.engine.routing import Router
from vime.errors import EngineDeadError
from vime.rollout.http.server import serving
from vime.rollout.runner import RolloutRunner
from vime.rollout.vllm_rollout import VllmRollout
from vime.sample import Status
from vime.testing.fakes import FakeEngine

NUM_GPUS = 0


class Handle:
    """An engine in another thread's loop, which dies at its call number `last`."""

    def __init__(self, index: int, loop: asyncio.AbstractEventLoop, last: float) -> None:
        self.label = f"engine {index}"
        self._loop, self._last, self._count, self._open = loop, last, itertools.count(), set[Future[Any]]()
        self._is_dead = False
        self.engine = FakeEngine(latency=0.003)
        self._host: EngineHost | None = None

    def call(self, method: str, *args: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        self._open.add(answer)
        if self._is_dead or next(self._count) >= self._last:
            self.kill()
        else:
            asyncio.run_coroutine_threadsafe(self._carry_out(method, args, answer), self._loop)
        return answer

    async def _carry_out(self, method: str, args: Any, answer: Future[Any]) -> None:
        self._host = self._host or EngineHost(self.engine, lambda weights: weights)
        result = await getattr(self._host, method)(*args)
        if not answer.done():
            answer.set_result(result)

    def kill(self) -> None:
        self._is_dead = True
        for answer in list(self._open):
            if not answer.done():
                answer.set_exception(EngineDeadError("has died"))


@pytest.fixture
def make_pool() -> Iterator[Callable[..., EnginePool]]:
    loop, made = asyncio.new_event_loop(), list[EnginePool]()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def make(*, last: float = float("inf")) -> EnginePool:
        pool = EnginePool(
            [Handle(index, loop, last + index) for index in range(2)],
            start=lambda index: Handle(index, loop, float("inf")),
            put=list,
            tokenizer=FakeEngine().tokenizer,
            max_model_len=2**20,
            router=Router(1000),
            max_restarts=2,
            engine_timeout=60.0,
            sync_timeout=10.0,
            say=lambda text: None,
        )
        made.append(pool)
        return pool

    yield make
    for pool in made:
        pool.close()

    async def end() -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(end(), loop).result(10.0)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10.0)
    loop.close()


def on(setup: Any, engine: Any) -> Any:
    """The same runner on another engine."""
    context = dataclasses.replace(setup.runner.context, engine=engine, deterministic=True)
    setup.runner = RolloutRunner(context, VllmRollout(context, setup.source, [setup.dataset]))
    return setup


async def two_turns(sample: Sample, sampling_params: Any, engine: Engine) -> Sample:
    """Asks twice, the second time with what came before."""
    tokens = engine.tokenizer.encode(str(sample.prompt))
    for turn in range(2):
        params = {**sampling_params, "seed": (sample.index or 0) * 2 + turn}
        answer = await engine.generate([*tokens, *sample.tokens], params)
        sample.append_response_tokens(None, tokens=answer.token_ids, log_probs=answer.log_probs)
    sample.tokens = [*tokens, *sample.tokens]
    sample.status = Status.COMPLETED
    return sample


def outcome(rollout: Any) -> list[Any]:
    return [(sample.index, sample.tokens, sample.reward, sample.status) for group in rollout.groups for sample in group]


@pytest.mark.parametrize("last", [float("inf"), 2, 5])
@pytest.mark.parametrize("hooks", [{}, {"custom_generate": two_turns}], ids=["built-in", "two turns"])
def test_a_rollout_and_an_evaluation_are_those_of_one_engine(
    setup_run: Callable[..., Any], make_pool: Callable[..., EnginePool], hooks: dict[str, Any], last: float
) -> None:
    alone = on(setup_run(rollout_batch_size=4, n_samples_per_prompt=4, **hooks), FakeEngine())
    expected, expected_scores = outcome(alone.train()), alone.evaluate()[1]
    pool = make_pool(last=last)
    many = on(setup_run(rollout_batch_size=4, n_samples_per_prompt=4, **hooks), pool)
    rollout = many.train()
    assert outcome(rollout) == expected
    metrics = rollout.metrics
    assert metrics["samples_generated"] == metrics["samples_trained"] == 16 and metrics["samples_failed"] == 0
    scores = many.evaluate()[1]
    assert {key: value for key, value in scores.items() if "time" not in key} == {
        key: value for key, value in expected_scores.items() if "time" not in key
    }
    assert pool.restarts == (0 if last == float("inf") else 2)


def test_an_agent_over_http_is_answered_by_the_pool(make_pool: Callable[..., EnginePool]) -> None:
    openai = pytest.importorskip("openai")
    pytest.importorskip("uvicorn")
    from vime.engine.base import set_current_engine

    async def run() -> list[Sample]:
        pool = make_pool(last=3)
        with serving(pool, asyncio.get_running_loop(), {"max_new_tokens": 16}) as endpoint:
            set_current_engine(pool, endpoint)
            with http_session(Sample(prompt="p", index=3), {"temperature": 1.0, "max_new_tokens": 16, "seed": 7}) as session:
                async with openai.AsyncOpenAI(base_url=session.base_url, api_key="none", max_retries=0) as api:
                    await api.chat.completions.create(model="policy", messages=[{"role": "user", "content": "1+1="}])
                return session.samples()

    (sample,) = asyncio.run(run())
    assert sample.response_length > 0 and sample.index == 3


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
