"""How the kit drives plugins in an event loop: blocking, cancellation, and engines that record."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from vime.sample import Sample
from vime.testing.checks.base import CheckFailed
from vime.testing.checks.rollout_engine import PairingTokenizer, RecordingEngine, SpelledDigits, check_log_probs, check_tokens, covered
from vime.testing.checks.rollout_loop import Turns, cancelled, drive

NUM_GPUS = 0


async def watched(work: Callable[[], Coroutine[Any, Any, Any]]) -> Turns:
    async with Turns() as turns:
        await work()
    return turns


def test_a_blocking_call_is_named_with_its_line() -> None:
    async def blocks() -> None:
        await asyncio.sleep(0)
        time.sleep(0.5)  # noqa: ASYNC251 - what is tested

    line = blocks.__code__.co_firstlineno + 2
    with pytest.raises(CheckFailed, match=f"blocks the event loop for more than 0.25 s, at test_rollout_loop.py:{line} in blocks"):
        drive(watched(blocks)).check()


def test_waiting_and_working_in_threads_do_not_block() -> None:
    async def waits() -> None:
        await asyncio.sleep(0.4)
        await asyncio.to_thread(time.sleep, 0.4)

    drive(watched(waits)).check()


def test_a_deadline_ends_what_waits_for_ever_and_no_thread_keeps_the_process() -> None:
    async def waits() -> None:
        await asyncio.to_thread(threading.Event().wait)

    with pytest.raises(CheckFailed, match=r"did not return within 0\.1 s"):
        drive(waits(), 0.1)
    assert all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread())


def test_a_timeout_of_the_plugin_itself_is_its_own() -> None:
    async def raises() -> None:
        raise TimeoutError("the tool took too long")

    with pytest.raises(TimeoutError, match="the tool took too long"):
        drive(raises(), 5.0)


def asks(engine: RecordingEngine, *, swallow: bool = False, detach: bool = False) -> Coroutine[Any, Any, Any]:
    async def work() -> Any:
        request = engine.generate([5, 6], {"max_new_tokens": 4})
        if detach:
            task = asyncio.ensure_future(request)
            await asyncio.wait([task])
            return task.result()
        try:
            return await request
        except asyncio.CancelledError:
            if swallow:
                return None
            raise

    return work()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"swallow": True}, "it returned a result although it was cancelled"),
        ({"detach": True}, "requests still running in the engine after it was cancelled: 1"),
    ],
)
def test_what_a_cancelled_call_leaves_behind(options: dict[str, bool], message: str) -> None:
    engine = RecordingEngine(latency=60.0)
    with pytest.raises(CheckFailed, match=message):
        drive(cancelled(asks(engine, **options), lambda: engine.in_flight, "it"))


def test_a_call_that_cleans_up_passes_and_one_without_requests_does_not_count() -> None:
    engine = RecordingEngine(latency=60.0)
    assert drive(cancelled(asks(engine), lambda: engine.in_flight, "it"))
    assert not drive(cancelled(asyncio.sleep(0), lambda: engine.in_flight, "it"))


def test_text_does_not_give_the_tokens_of_the_policy_back() -> None:
    engine = RecordingEngine(policy=SpelledDigits())
    answer = asyncio.run(engine.generate(engine.tokenizer.encode("1+1="), {"max_new_tokens": 16}))
    assert isinstance(engine.tokenizer, PairingTokenizer)
    assert engine.tokenizer.encode(answer.text) != answer.token_ids[: len(engine.tokenizer.encode(answer.text))]
    assert engine.tokenizer.decode(engine.tokenizer.encode(answer.text)) == answer.text


def recorded(turns: int = 1) -> tuple[RecordingEngine, Sample]:
    """A sample as the engine made it, in one turn or with a tool's output between two."""
    engine = RecordingEngine(policy=SpelledDigits())
    sample = Sample(index=0, tokens=engine.tokenizer.encode("1+1="))
    for turn in range(turns):
        if turn:
            sample.append_response_tokens(tokens=engine.tokenizer.encode(" = 12 "), trainable=False)
        answer = asyncio.run(engine.generate(sample.tokens, {"max_new_tokens": 16}))
        sample.append_response_tokens(tokens=answer.token_ids, log_probs=answer.log_probs)
    return engine, sample


@pytest.mark.parametrize("turns", [1, 3])
def test_what_the_engine_made_is_recognised(turns: int) -> None:
    engine, sample = recorded(turns)
    check_tokens(sample, engine)
    assert check_log_probs(sample, engine)
    assert len(covered(sample, engine.answers)) == sample.effective_response_length


def test_a_response_that_was_cut_or_masked_in_part_is_recognised() -> None:
    engine, sample = recorded()
    sample.tokens, sample.response_length = sample.tokens[:-2], sample.response_length - 2
    sample.rollout_log_probs = (sample.rollout_log_probs or [])[:-2]
    sample.loss_mask = [0, 0] + [1] * (sample.response_length - 2)
    check_tokens(sample, engine)
    assert check_log_probs(sample, engine)


def test_a_trained_tool_token_is_not() -> None:
    engine, sample = recorded(2)
    sample.loss_mask = [1] * sample.response_length
    with pytest.raises(CheckFailed, match="the token ' ' at position 8 of the response is trained, and the engine did not generate it"):
        check_tokens(sample, engine)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
