"""The fake engine keeps the promises of the engine protocol."""

import asyncio
import inspect
from typing import Any

import pytest

from vime.engine.base import Engine, TrainableEngine
from vime.errors import EngineError
from vime.testing import FakeEngine, FakeTokenizer

NUM_GPUS = 0


def run(engine, prompt, session_id=None, **params):
    return asyncio.run(engine.generate(engine.tokenizer.encode(prompt), params, session_id=session_id))


def test_it_is_an_engine():
    assert isinstance(FakeEngine(), Engine)


MEMBERS = [name for base in (Engine, TrainableEngine) for name in [*vars(base), *base.__annotations__] if not name.startswith("_")]


@pytest.mark.parametrize("name", sorted(set(MEMBERS)))
def test_every_member_of_the_protocol_has_the_same_signature(name):
    engine, declared = FakeEngine(), getattr(TrainableEngine, name, None)
    assert hasattr(engine, name)
    if inspect.isfunction(declared):
        own = getattr(FakeEngine, name)
        assert inspect.signature(own) == inspect.signature(declared)
        assert inspect.iscoroutinefunction(own) == inspect.iscoroutinefunction(declared)


def test_the_protocol_has_the_members_that_are_compared():
    assert {"generate", "abort", "score", "tokenizer", "weight_version", "max_model_len"} <= set(MEMBERS)


def test_a_dict_policy_answers_by_text_or_ids():
    tokenizer = FakeTokenizer()
    engine = FakeEngine(policy={"1+1=": "2", tuple(tokenizer.encode("1+2=")): tokenizer.encode("3")})
    by_text, by_ids = run(engine, "1+1=", max_new_tokens=8), run(engine, "1+2=", max_new_tokens=8)
    assert (by_text.text, by_text.finish_reason, by_text.token_ids[-1]) == ("2", "stop", tokenizer.eos_token_id)
    assert by_ids.token_ids == tokenizer.encode("3")
    with pytest.raises(EngineError, match="no response for the prompt '9'"):
        run(engine, "9")


def test_a_callable_policy_sees_tokens_and_parameters():
    engine = FakeEngine(policy=lambda token_ids, params: "ab" * len(token_ids) if params["temperature"] == 1.0 else "no")
    assert run(engine, "xy", temperature=1.0, max_new_tokens=16).text == "abab"


def test_random_responses_depend_on_seed_prompt_and_request_seed_only():
    def sampled(engine_seed, prompt, seed):
        return run(FakeEngine(seed=engine_seed), prompt, seed=seed, max_new_tokens=32)

    first = sampled(1, "a", 5)
    assert sampled(1, "a", 5) == first
    assert len({tuple(sampled(*key).token_ids) for key in [(1, "a", 5), (2, "a", 5), (1, "b", 5), (1, "a", 6)]}) == 4


def test_requests_without_a_seed_differ_and_repeat_in_a_second_engine():
    def four():
        engine = FakeEngine()
        prompt = engine.tokenizer.encode("hi")
        return asyncio.run(engine.generate_many([(prompt, {"max_new_tokens": 20})] * 4))

    assert four() == four()
    assert len({tuple(generation.token_ids) for generation in four()}) == 4


@pytest.mark.parametrize(
    ("params", "text", "count", "reason"),
    [
        ({"max_new_tokens": 3}, "abc", 3, "length"),
        ({"max_new_tokens": 64, "stop": ["d"]}, "abc", 4, "stop"),
        ({"max_new_tokens": 64, "stop_token_ids": FakeTokenizer().encode("b")}, "ab", 2, "stop"),
        ({"max_new_tokens": 64}, "abcdef", 7, "stop"),
    ],
)
def test_limits_and_stops(params, text, count, reason):
    generation = run(FakeEngine(policy={"x": "abcdef"}), "x", **params)
    assert (generation.text, len(generation.token_ids), generation.finish_reason) == (text, count, reason)


def test_min_new_tokens_of_the_random_policy():
    assert all(len(run(FakeEngine(seed=s), "x", min_new_tokens=9, max_new_tokens=10).token_ids) >= 9 for s in range(20))


def test_log_probs_are_those_of_score():
    engine = FakeEngine()
    prompt = engine.tokenizer.encode("what?")
    generation = run(engine, "what?", max_new_tokens=12)
    assert len(generation.log_probs) == len(generation.token_ids)
    assert all(-3.0 < value < 0.0 for value in generation.log_probs)
    assert engine.score([prompt + generation.token_ids])[0][len(prompt) - 1 :] == generation.log_probs


def test_abort_returns_a_part_of_one_session_only():
    async def scenario():
        engine = FakeEngine(policy={"a": "z" * 50, "b": "z" * 50})
        tasks = [
            asyncio.ensure_future(engine.generate(engine.tokenizer.encode(name), {"max_new_tokens": 40}, session_id=name)) for name in "ab"
        ]
        for _ in range(10):
            await asyncio.sleep(0)
        await engine.abort("a")
        return await asyncio.gather(*tasks)

    aborted, whole = asyncio.run(scenario())
    assert aborted.finish_reason == "abort" and 0 < len(aborted.token_ids) < 40 == len(whole.token_ids)
    assert len(aborted.log_probs) == len(aborted.token_ids) and whole.finish_reason == "length"


def test_abort_all_ends_requests_that_would_take_for_ever():
    async def scenario():
        engine = FakeEngine(latency=3600.0, policy=lambda *_: "x" * 1000)
        task = asyncio.ensure_future(engine.generate([5], {"max_new_tokens": 1000}))
        await asyncio.sleep(0.05)
        await engine.abort_all()
        return await asyncio.wait_for(task, 10)

    assert asyncio.run(scenario()).finish_reason == "abort"


def test_failures_are_engine_errors_and_a_retry_may_succeed():
    engine = FakeEngine(failure_rate=0.5)
    outcomes = []
    for _ in range(40):
        try:
            outcomes.append(len(run(engine, "x", seed=1).token_ids))
        except EngineError:
            outcomes.append(0)
    assert 5 < outcomes.count(0) < 35
    with pytest.raises(EngineError, match="failure_rate"):
        run(FakeEngine(failure_rate=1.0), "x")


def test_weights_versions_sleep_and_stats():
    engine = FakeEngine(policy={"x": "yy"})
    engine.update_weights(iter([("w", 1)]), 3)
    assert engine.weights == {"w": 1} and run(engine, "x").weight_version == 3
    assert engine.stats()["generated_tokens"] == 3 and engine.stats()["generated_tokens"] == 0
    for wake in (lambda: run(engine, "x"), lambda: engine.score([[4, 5]]), lambda: engine.update_weights([], 4)):
        engine.sleep()
        assert engine.asleep
        wake()
        assert not engine.asleep
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        run(engine, "x")


def test_a_request_is_kept_as_it_came():
    engine = FakeEngine(policy={"x": "y"})
    params = {"max_new_tokens": 4}
    asyncio.run(engine.generate(engine.tokenizer.encode("x"), params, session_id="s"))
    params["max_new_tokens"] = 5
    assert [(request.sampling_params, request.session_id) for request in engine.requests] == [({"max_new_tokens": 4}, "s")]


def test_a_cancelled_request_is_no_longer_running():
    async def scenario(engine):
        task = asyncio.ensure_future(engine.generate([5], {"max_new_tokens": 10}))
        await asyncio.sleep(0.01)
        assert engine.running == 1
        task.cancel()
        await asyncio.wait([task])

    engine = FakeEngine(latency=3600.0)
    asyncio.run(scenario(engine))
    assert engine.running == 0


def test_stats_are_the_counters_of_the_protocol():
    assert set(FakeEngine().stats()) == {"prompt_tokens", "cached_tokens", "generated_tokens", "busy_seconds"}


@pytest.mark.parametrize(("prompt", "message"), [([], "no tokens"), ([500], "outside the vocabulary of 128")])
def test_bad_prompts_are_refused(prompt, message):
    with pytest.raises(EngineError, match=message):
        asyncio.run(FakeEngine().generate(prompt, {}))


def test_the_tokenizer_round_trips_and_renders_chatml():
    tokenizer = FakeTokenizer()
    text = r"So \boxed{4}. 12+3=15?"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    messages = [{"role": "user", "content": "hi"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    token_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tokenizer.decode(token_ids) == rendered
    assert tokenizer.decode(token_ids, skip_special_tokens=True) == "user\nhi\nassistant\n"


def test_requests_end_or_go_on_with_new_weights() -> None:
    async def run(keep_requests: bool) -> list[Any]:
        engine = FakeEngine(policy=lambda token_ids, params: [5] * 4, latency=0.2)
        early = asyncio.ensure_future(engine.generate([9], {"max_new_tokens": 4}))
        await asyncio.sleep(0.12)
        late = asyncio.ensure_future(engine.generate([8], {"max_new_tokens": 4}))
        await asyncio.sleep(0)
        await asyncio.to_thread(engine.update_weights, [], 3, keep_requests=keep_requests)
        return list(await asyncio.gather(early, late))

    early, late = asyncio.run(run(keep_requests=True))
    assert (early.finish_reason, len(early.token_ids), early.weight_version) == ("length", 4, 0), "that of its oldest token"
    assert (late.finish_reason, len(late.token_ids), late.weight_version) == ("length", 4, 3), "it had no token yet"
    early, late = asyncio.run(run(keep_requests=False))
    assert early.finish_reason == late.finish_reason == "abort" and 0 < len(early.token_ids) < 4 and late.token_ids == []


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
