"""An agent that only speaks HTTP: the real server, the real `openai` client, and samples made of the engine's own tokens."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from vime.api import http_session
from vime.engine.base import SamplingParams, set_current_engine
from vime.errors import ConfigError, ContractError
from vime.rollout.http.server import HttpEndpoint, open_port, serving
from vime.sample import Sample, Status
from vime.testing.fakes import FakeEngine

openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")

NUM_GPUS = 0

PARAMS = SamplingParams(temperature=1.0, max_new_tokens=200, seed=7)


def run(engine: FakeEngine, agent: Callable[[HttpEndpoint], Awaitable[Any]]) -> Any:
    """Run `agent(endpoint)` in an event loop that has an endpoint in front of `engine`."""

    async def main() -> Any:
        with serving(engine, asyncio.get_running_loop(), SamplingParams(max_new_tokens=16)) as endpoint:
            set_current_engine(engine, endpoint)
            return await agent(endpoint)

    return asyncio.run(main())


def client(base_url: str) -> Any:
    return openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)


async def ask(base_url: str, messages: list[dict[str, str]], **more: Any) -> Any:
    async with client(base_url) as api:
        return await api.chat.completions.create(model="policy", messages=messages, **more)


async def asked(engine: FakeEngine) -> None:
    """Returns when the first request is in the engine."""
    while not engine.requests:  # noqa: ASYNC110 - the engine signals nothing
        await asyncio.sleep(0.01)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def endless(prompt: Sequence[int], params: SamplingParams) -> list[int]:
    """Characters that never end, different for prompts of different lengths."""
    return [4 + (7 * len(prompt) + place) % 60 for place in range(300)]


def test_two_turns_are_one_sample_of_the_engines_tokens() -> None:
    engine = FakeEngine(policy=endless)

    async def agent(endpoint: HttpEndpoint) -> tuple[list[Sample], Any, Any]:
        with http_session(Sample(index=5, label="4"), PARAMS) as session:
            first = await ask(session.base_url, [user("2+2?")], max_tokens=6)
            answer = first.choices[0].message.content
            second = await ask(session.base_url, [user("2+2?"), assistant(answer), user("sure?")], max_completion_tokens=5)
        return session.samples(), first, second

    (sample,), first, second = run(engine, agent)
    tokenizer = engine.tokenizer
    requests = engine.requests
    assert requests[1].token_ids[: len(requests[0].token_ids)] == requests[0].token_ids
    generated = [first.choices[0].token_ids, second.choices[0].token_ids]
    middle = requests[1].token_ids[len(requests[0].token_ids) + len(generated[0]) :]
    assert tokenizer.decode(middle) == "<|im_end|>\n<|im_start|>user\nsure?<|im_end|>\n<|im_start|>assistant\n"
    assert sample.tokens == requests[1].token_ids + generated[1]
    assert sample.loss_mask == [1] * len(generated[0]) + [0] * len(middle) + [1] * len(generated[1])
    log_probs = [entry.logprob for answer in (first, second) for entry in answer.choices[0].logprobs.content]
    assert [value for value, flag in zip(sample.rollout_log_probs, sample.loss_mask, strict=True) if flag] == log_probs
    assert (sample.index, sample.label, sample.rollout_id, sample.status) == (5, "4", None, Status.TRUNCATED)
    assert second.usage.prompt_tokens == len(requests[1].token_ids)


def test_the_end_of_a_turn_that_the_policy_generated_is_not_given_twice() -> None:
    engine = FakeEngine(policy=lambda prompt, params: "ok")

    async def agent(endpoint: HttpEndpoint) -> list[Sample]:
        with http_session(Sample(index=0), PARAMS) as session:
            await ask(session.base_url, [user("a")])
            await ask(session.base_url, [user("a"), assistant("ok"), user("b")])
        return session.samples()

    (sample,) = run(engine, agent)
    start = "<|im_start|>assistant\n"
    expected = f"<|im_start|>user\na<|im_end|>\n{start}ok<|im_end|>\n<|im_start|>user\nb<|im_end|>\n{start}ok<|im_end|>"
    assert engine.tokenizer.decode(sample.tokens) == expected
    trained = [token for token, flag in zip(sample.tokens[-sample.response_length :], sample.loss_mask, strict=True) if flag]
    assert engine.tokenizer.decode(trained) == "ok<|im_end|>ok<|im_end|>"
    assert sample.status is Status.COMPLETED


def test_messages_that_do_not_continue_start_a_sibling() -> None:
    engine = FakeEngine(policy=lambda prompt, params: "ok")

    async def agent(endpoint: HttpEndpoint) -> list[Sample]:
        with http_session(Sample(index=9), PARAMS) as session:
            await ask(session.base_url, [user("a")])
            await ask(session.base_url, [user("a"), assistant("something else"), user("b")])
        return session.samples()

    first, second = run(engine, agent)
    assert first.rollout_id == second.rollout_id == 9
    assert engine.tokenizer.decode(second.tokens[: -second.response_length]).count("something else") == 1
    assert first.loss_mask is None or all(first.loss_mask)


def test_several_choices_train_what_they_share_once() -> None:
    engine = FakeEngine(seed=1)

    async def agent(endpoint: HttpEndpoint) -> tuple[list[Sample], Any]:
        with http_session(Sample(index=0), PARAMS) as session:
            first = await ask(session.base_url, [user("a")], max_tokens=4)
            again = [user("a"), assistant(first.choices[0].message.content), user("b")]
            second = await ask(session.base_url, again, n=3, max_tokens=4)
        return session.samples(), second

    samples, answer = run(engine, agent)
    assert len(samples) == len(answer.choices) == 3
    assert len({choice.message.content for choice in answer.choices}) == 3, "the seeds differ"
    assert [sum(sample.loss_mask) for sample in samples] == [
        len(answer.choices[0].token_ids) + 4,
        *(len(choice.token_ids) for choice in answer.choices[1:]),
    ]


def test_plain_completions_continue_by_text_and_by_token_ids() -> None:
    engine = FakeEngine(policy=lambda prompt, params: "xy")

    async def agent(endpoint: HttpEndpoint) -> list[Sample]:
        with http_session(Sample(index=0), PARAMS) as session:
            async with client(session.base_url) as api:
                first = await api.completions.create(model="policy", prompt="ab")
                assert (first.choices[0].text, first.choices[0].finish_reason) == ("xy", "stop")
                so_far = first.prompt_token_ids + first.choices[0].token_ids
                await api.completions.create(model="policy", prompt=so_far + engine.tokenizer.encode("cd"))
                await api.completions.create(model="policy", prompt="abxy<|im_end|>cdxy<|im_end|>e")
        return session.samples()

    (sample,) = run(engine, agent)
    assert engine.tokenizer.decode(sample.tokens) == "abxy<|im_end|>cdxy<|im_end|>exy<|im_end|>"
    assert sample.loss_mask == [1, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1]


def test_the_rollouts_distribution_and_length_hold_whatever_the_client_asks() -> None:
    engine = FakeEngine(policy=endless)

    async def agent(endpoint: HttpEndpoint) -> list[Sample]:
        with http_session(Sample(index=0), SamplingParams(temperature=0.7, max_new_tokens=10, stop=["!"])) as session:
            first = await ask(session.base_url, [user("a")], temperature=0.0, top_p=0.5, max_tokens=500, stop="?")
            more = [user("a"), assistant(first.choices[0].message.content), user("b" * 20)]
            full = await ask(session.base_url, more)
            assert (full.choices[0].message.content, full.choices[0].finish_reason) == ("", "length")
        return session.samples()

    (sample,) = run(engine, agent)
    (request,) = engine.requests
    assert (request.sampling_params["temperature"], request.sampling_params["max_new_tokens"]) == (0.7, 10)
    assert request.sampling_params["stop"] == ["!", "?"]
    assert sample.response_length <= 10
    assert sample.status is Status.TRUNCATED


def test_streams_are_answered() -> None:
    async def agent(endpoint: HttpEndpoint) -> str:
        with http_session(Sample(index=0), PARAMS) as session:
            async with client(session.base_url) as api:
                stream = await api.chat.completions.create(model="policy", messages=[user("a")], stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    assert run(FakeEngine(policy=lambda prompt, params: "hello"), agent) == "hello"


def test_requests_without_a_session_are_answered_and_kept_nowhere() -> None:
    engine = FakeEngine(policy=lambda prompt, params: "yes")

    async def agent(endpoint: HttpEndpoint) -> Any:
        return await ask(f"{endpoint.url}/v1", [user("judge this")], temperature=0.2, max_tokens=8)

    assert run(engine, agent).choices[0].message.content == "yes"
    assert engine.requests[0].sampling_params["temperature"] == 0.2


@pytest.mark.parametrize("where", ["header", "body"])
def test_a_session_is_also_named_by_header_or_body(where: str) -> None:
    async def agent(endpoint: HttpEndpoint) -> list[Sample]:
        with http_session(Sample(index=0, session_id="agent-1"), PARAMS) as session:
            named = {"extra_headers": {"X-Session-Id": "agent-1"}} if where == "header" else {"extra_body": {"session_id": "agent-1"}}
            await ask(f"{endpoint.url}/v1", [user("a")], **named)
        return session.samples()

    assert len(run(FakeEngine(), agent)) == 1


def test_many_sessions_at_once_do_not_mix() -> None:
    engine = FakeEngine(policy=lambda prompt, params: engine.tokenizer.decode(prompt).split("user\n")[-1].partition("<")[0])

    async def one(number: int) -> Sample:
        with http_session(Sample(index=number), PARAMS) as session:
            for turn in range(3):
                history = [part for step in range(turn) for part in (user(f"{number}-{step}"), assistant(f"{number}-{step}"))]
                await ask(session.base_url, [*history, user(f"{number}-{turn}")])
        (sample,) = session.samples()
        return sample

    async def agent(endpoint: HttpEndpoint) -> list[Sample]:
        return list(await asyncio.gather(*(one(number) for number in range(20))))

    for number, sample in enumerate(run(engine, agent)):
        trained = [token for token, flag in zip(sample.tokens[-sample.response_length :], sample.loss_mask, strict=True) if flag]
        assert engine.tokenizer.decode(trained) == "".join(f"{number}-{turn}<|im_end|>" for turn in range(3))


def test_an_agent_that_is_cut_off_by_the_end_of_the_rollout_leaves_an_aborted_sample() -> None:
    engine = FakeEngine(latency=30.0)

    async def agent(endpoint: HttpEndpoint) -> list[Sample]:
        with http_session(Sample(index=0), PARAMS) as session:
            request = asyncio.ensure_future(ask(session.base_url, [user("a")]))
            await asked(engine)
            await engine.abort_all()
            await request
        return session.samples()

    (sample,) = run(engine, agent)
    assert sample.status is Status.ABORTED


def test_an_agents_own_error_is_raised() -> None:
    async def agent(endpoint: HttpEndpoint) -> None:
        with http_session(Sample(index=0), PARAMS) as session:
            await ask(session.base_url, [user("a")])
            raise ValueError("the tool broke")

    with pytest.raises(ValueError, match="the tool broke"):
        run(FakeEngine(), agent)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/sessions/none/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, 404, "no open session 'none'"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages: List should have at least 1 item"),
        ("/v1/chat/completions", {"messages": "a"}, 400, "messages: Input should be a valid list"),
        ("/v1/completions", {"prompt": [1], "max_tokens": 0}, 400, "max_tokens: Input should be greater than or equal to 1"),
        ("/v1/completions", {"prompt": [10**9]}, 400, "the prompt cannot be rendered: IndexError"),
        ("/v1/chat/completions", {"messages": [{"content": "no role"}]}, 400, "the prompt cannot be rendered: KeyError: 'role'"),
    ],
)
def test_bad_requests_are_answered_with_what_is_wrong(path: str, body: dict[str, Any], status: int, message: str) -> None:
    import httpx

    async def agent(endpoint: HttpEndpoint) -> httpx.Response:
        async with httpx.AsyncClient() as api:
            return await api.post(endpoint.url + path, json=body)

    response = run(FakeEngine(), agent)
    assert response.status_code == status
    assert message in response.json()["error"]["message"]


def test_between_rollouts_a_request_is_told_so() -> None:
    import httpx

    loop = asyncio.new_event_loop()
    with serving(FakeEngine(), loop, SamplingParams(max_new_tokens=4)) as endpoint:
        response = httpx.post(f"{endpoint.url}/v1/completions", json={"prompt": "a"})
    loop.close()
    assert response.status_code == 503
    assert "being trained" in response.json()["error"]["message"]


def test_a_request_that_waits_when_the_rollout_ends_is_let_go() -> None:
    import threading

    import httpx

    loop = asyncio.new_event_loop()
    engine = FakeEngine(latency=60.0)
    answers: list[httpx.Response] = []
    with serving(engine, loop, SamplingParams(max_new_tokens=4)) as endpoint:

        def post() -> None:
            answers.append(httpx.post(f"{endpoint.url}/v1/completions", json={"prompt": "a"}, timeout=30))

        asker = threading.Thread(target=post)

        async def until_asked() -> None:
            asker.start()
            await asked(engine)

        loop.run_until_complete(until_asked())
        asker.join(timeout=20)
    assert answers and answers[0].status_code == 503
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def test_only_this_machine_is_served_and_a_taken_port_is_refused() -> None:
    with open_port(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--serve-engine {port}: the port cannot be opened"):
            open_port(port)


def test_a_session_needs_an_endpoint_and_requests() -> None:
    set_current_engine(None)
    with pytest.raises(ConfigError, match="without an HTTP endpoint"):
        http_session(Sample(), PARAMS)

    async def agent(endpoint: HttpEndpoint) -> None:
        with http_session(Sample(index=4), PARAMS) as session:
            pass
        session.samples()

    with pytest.raises(ContractError, match="the HTTP session of sample 4 ended without a request"):
        run(FakeEngine(), agent)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
