"""The plugin `remote` against a real HTTP server that is slow, fails, answers garbage and drops connections."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import math
import socket
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from vime.api import ConfigError, Sample, Status
from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager
from vime.rollout.rewards import RewardScorer
from vime_rm_remote.client import MOST_BYTES, RemoteRewardError
from vime_rm_remote.remote import Remote

NUM_GPUS = 0

FAST = {"backoff": 0.01, "longest_backoff": 0.02}


def reply(body: Any, status: int = 200, **headers: str) -> Callable[[Any, Any], None]:
    """An answer with this body: bytes as they are, anything else as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def answer(handler: Any, asked: Any) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def right(handler: Any, asked: Any) -> None:
    """1.0 for a response that is its label; of a group a list."""
    found = [float(one["response"] == one["label"]) for one in (asked if isinstance(asked, list) else [asked])]
    reply(found if isinstance(asked, list) else found[0])(handler, asked)


def drop(handler: Any, asked: Any) -> None:
    """Close the connection without an answer, as a process that dies does."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True


def cut(handler: Any, asked: Any) -> None:
    """Announce a long body, and close the connection in the middle of it."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100")
    handler.end_headers()
    handler.wfile.write(b"0.")
    handler.close_connection = True


def slow(seconds: float, then: Any = 1.0) -> Callable[[Any, Any], None]:
    def answer(handler: Any, asked: Any) -> None:
        time.sleep(seconds)
        with contextlib.suppress(OSError):
            reply(then)(handler, asked)

    return answer


def endless(handler: Any, asked: Any) -> None:
    """A body without an end."""
    handler.send_response(200)
    handler.end_headers()
    handler.close_connection = True
    with contextlib.suppress(OSError):
        for _ in range(100):
            handler.wfile.write(b" " * 65536)


def sample(index: int = 0, response: str = "4", **fields: Any) -> Sample:
    fields = {"prompt": "2+2", "label": "4", "status": Status.COMPLETED, **fields}
    return Sample(index=index, group_index=0, tokens=[1, 2], response=response, response_length=1, **fields)


def score(url: str | None, samples: list[Sample], settings: dict[str, Any] | None = None, **options: Any) -> dict[str, float]:
    """Score samples as a run does. Returns the counters; raises what a run would raise."""
    config = RunConfig(plugin=["remote"], plugin_settings={"remote": FAST | (settings or {})}, rm_url=url, **options)
    plugins = PluginManager()
    plugins.add(Remote, name="remote", settings=config.plugin_settings["remote"])
    scorer = RewardScorer(config, plugins)
    try:
        asyncio.run(scorer.score_group(samples))
    finally:
        scorer.close()
    return scorer.take_metrics()


def failure(url: str, one: Sample | None = None, settings: dict[str, Any] | None = None, **options: Any) -> RemoteRewardError:
    with pytest.raises(RemoteRewardError) as caught:
        score(url, [one or sample()], settings, **options)
    return caught.value


# --- what is sent, and what comes back ------------------------------------------------------------------------------


def test_one_post_for_each_sample(service) -> None:
    service.script = [right]
    samples = [
        sample(0),
        sample(1, "5"),
        sample(2, metadata={"level": 3, "tags": ["a"]}),
        sample(3, prompt=[{"role": "user", "content": "2+2"}]),
    ]
    score(service.url, samples)
    assert [one.reward for one in samples] == [1.0, 0.0, 1.0, 1.0]
    assert {json.dumps(asked, sort_keys=True) for asked in service.requests} == {
        json.dumps(asked, sort_keys=True)
        for asked in (
            {"prompt": "2+2", "response": "4", "label": "4", "metadata": {}},
            {"prompt": "2+2", "response": "5", "label": "4", "metadata": {}},
            {"prompt": "2+2", "response": "4", "label": "4", "metadata": {"level": 3, "tags": ["a"]}},
            {"prompt": [{"role": "user", "content": "2+2"}], "response": "4", "label": "4", "metadata": {}},
        )
    }


def test_one_post_for_a_group(service) -> None:
    service.script = [right]
    samples = [sample(0), sample(1, "5"), sample(2)]
    score(service.url, samples, group_rm=True, n_samples_per_prompt=3)
    assert [one.reward for one in samples] == [1.0, 0.0, 1.0]
    (asked,) = service.requests
    assert [one["response"] for one in asked] == ["4", "5", "4"]


@pytest.mark.parametrize(
    ("answer", "reward"),
    [(1, 1.0), (-0.5, -0.5), (True, 1.0), (1e300, 1e300), ({"score": 1, "style": 0.25}, {"score": 1.0, "style": 0.25}), (b" 0.5\n", 0.5)],
)
def test_rewards_that_are_rewards(service, answer: Any, reward: Any) -> None:
    service.script = [reply(answer)]
    one = sample()
    score(service.url, [one], **({"reward_key": "score"} if isinstance(reward, dict) else {}))
    assert one.reward == reward


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"not json", "status 200, expected JSON: 'not json'"),
        (b"", "status 200, expected JSON, without a body"),
        (b"<html><body>Login</body></html>", "status 200, expected JSON: '<html><body>Login"),
        (b"\xff\xfe\x00", "status 200, expected JSON"),
        (b"[" * 100_000, "status 200, expected JSON"),
        ("1.0", "status 200, expected a number or an object of numbers, got a string: '\"1.0\"'"),
        (None, "got null"),
        (b"NaN", "expected a finite number, got NaN"),
        (b"-Infinity", "expected a finite number, got -Infinity"),
        (b"1e999", "expected a finite number"),
        (b"1" + b"0" * 400, "expected a finite number"),
        ([1.0], "expected a number or an object of numbers, got a list"),
        ({}, "got an empty object"),
        ({"score": "high"}, "expected a number under 'score', got a string"),
        ({"score": None}, "expected a number under 'score', got null"),
        ({"score": {"a": 1}}, "expected a number under 'score', got an object"),
        (b'{"score": NaN}', "expected a finite number, got NaN"),
    ],
)
def test_garbage_is_an_error_that_shows_it(service, answer: Any, message: str) -> None:
    service.script = [reply(answer)]
    error = failure(service.url)
    assert error.message.startswith(f"{service.url}: status 200, ")
    assert message in error.message
    assert len(error.message) < 400
    assert len(service.requests) == 1, "the same answer would come again"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (1.0, "expected a list of 2 rewards, one for each sample of the group, got a number"),
        ([1.0], "expected a list of 2 rewards, one for each sample of the group, got 1"),
        ([1.0, 0.0, 0.0], "got 3"),
        ([1.0, None], "expected a number at place 1, got null"),
        ([1.0, "0"], "expected a number at place 1, got a string"),
        ({"0": 1.0}, "got an object"),
    ],
)
def test_a_group_needs_a_list_of_its_length(service, answer: Any, message: str) -> None:
    service.script = [reply(answer)]
    with pytest.raises(RemoteRewardError) as caught:
        score(service.url, [sample(0), sample(1)], group_rm=True, n_samples_per_prompt=2)
    assert message in caught.value.message


def test_the_first_200_characters_are_shown(service) -> None:
    service.script = [reply(b"x" * 5000)]
    assert failure(service.url).message.endswith(f": '{'x' * 200}'")


@pytest.mark.parametrize(
    "answer", [endless, reply(b" " * (MOST_BYTES + 1)), reply(b"1" * 5 * MOST_BYTES)], ids=["endless", "long", "longer"]
)
def test_a_body_of_any_length_is_not_read_to_its_end(service, answer) -> None:
    service.script = [answer]
    assert f"an answer of more than {MOST_BYTES} bytes" in failure(service.url).message


# --- failures and repetitions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["raise", "drop", "zero"])
@pytest.mark.parametrize(
    ("answer", "attempts"),
    [(reply(b"down", 500), 4), (slow(0.4), 4), (reply(b"not json"), 1), (reply("1.0"), 1)],
    ids=["500 for ever", "times out", "not JSON", "a string"],
)
def test_case_b16_a_reward_that_does_not_come_goes_through_the_error_policy(service, answer, attempts: int, policy: str) -> None:
    service.script = [answer]
    one = sample()
    if policy == "raise":
        with pytest.raises(RemoteRewardError) as caught:
            score(service.url, [one], {"timeout": 0.1})
        assert service.url in caught.value.message
        assert any("sample 0" in note for note in caught.value.__notes__)
        assert one.reward is None
    else:
        counts = score(service.url, [one], {"timeout": 0.1}, on_reward_error=policy)
        assert counts["reward_errors/remote/RemoteRewardError"] == 1.0
        assert (one.status, one.reward) == ((Status.FAILED, None) if policy == "drop" else (Status.COMPLETED, 0.0))
    assert len(service.requests) == attempts


def test_case_b16_500_500_200_is_a_success(service) -> None:
    service.script = [reply(b"", 500), reply(b"", 500), right]
    one = sample()
    counts = score(service.url, [one])
    assert one.reward == 1.0
    assert len(service.requests) == 3
    assert not any(key.startswith("reward_errors") for key in counts)


@pytest.mark.parametrize("trouble", [drop, cut, reply(b"", 503), reply(b"", 429), reply(b"", 408), reply(b"", 502), slow(0.5)])
def test_what_passes_is_tried_again(service, trouble) -> None:
    service.script = [trouble, right]
    one = sample()
    score(service.url, [one], {"timeout": 0.2})
    assert one.reward == 1.0
    assert len(service.requests) == 2


@pytest.mark.parametrize(
    ("trouble", "message"), [(drop, "tried 3 times"), (cut, "tried 3 times"), (reply(b"busy", 503), "status 503: 'busy' (tried 3 times)")]
)
def test_what_does_not_pass_ends(service, trouble, message: str) -> None:
    service.script = [trouble]
    assert message in failure(service.url, settings={"retries": 2}).message
    assert len(service.requests) == 3


@pytest.mark.parametrize(
    ("status", "hint"), [(400, "see its own log"), (404, "see its own log"), (401, "token_variable"), (403, "token_variable"), (501, "log")]
)
def test_what_is_refused_is_not_tried_again(service, status: int, hint: str) -> None:
    service.script = [reply(b"no such thing", status)]
    error = failure(service.url)
    assert error.message == f"{service.url}: status {status}: 'no such thing'"
    assert hint in (error.hint or "")
    assert len(service.requests) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(service, status: int) -> None:
    service.script = [reply(b"", status, Location="http://me:secret@elsewhere/score?key=1")]
    assert failure(service.url).message == f"{service.url}: status {status}, a redirect to http://elsewhere/score"
    assert len(service.requests) == 1


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/score"
    message = failure(url, settings={"retries": 1}).message
    assert message.startswith(f"{url}: ClientConnectorError: ")
    assert "tried 2 times" in message


def test_retry_after_is_honoured(service) -> None:
    service.script = [reply(b"", 429, Retry_After="1"), right]
    one = sample()
    score(service.url, [one])
    assert one.reward == 1.0
    assert service.times[1] - service.times[0] >= 1.0


def test_a_retry_after_that_does_not_fit_ends_at_once(service) -> None:
    service.script = [reply(b"", 429, Retry_After="3600")]
    message = failure(service.url).message
    assert "status 429, without a body (tried once; it asks to wait 3600 s, longer than --reward-timeout leaves)" in message


@pytest.mark.parametrize("value", ["soon", "-5", "", "Wed, 21 Oct 2015 07:28:00 GMT", "1e9", "٣"])
def test_a_retry_after_that_says_nothing_useful_is_passed_over(service, value: str) -> None:
    service.script = [reply(b"", 503, Retry_After=value) if value.isascii() else reply(b"", 503), right]
    one = sample()
    score(service.url, [one])
    assert one.reward == 1.0


def test_the_reward_timeout_ends_all_attempts(service) -> None:
    service.script = [slow(2.0)]
    one = sample()
    counts = score(service.url, [one], on_reward_error="drop", reward_timeout=0.3)
    assert counts["reward_errors/remote/timeout"] == 1.0
    assert one.status is Status.FAILED


# --- many at once, sessions, secrets --------------------------------------------------------------------------------


def test_many_at_once_share_connections(service) -> None:
    service.script = [slow(0.02, 1.0)]
    samples = [sample(index) for index in range(100)]
    score(service.url, samples, {"connections": 8})
    assert all(one.reward == 1.0 for one in samples)
    assert len(service.requests) == 100
    assert service.most_at_once <= 8
    assert len(service.connections) <= 8


def test_waiting_for_a_connection_is_not_the_time_of_a_reward(service) -> None:
    service.script = [slow(0.3, 1.0)]
    samples = [sample(index) for index in range(64)]  # eight one after the other on each connection: 2.4 s
    counts = score(service.url, samples, {"connections": 8, "timeout": 1.5}, reward_timeout=1.5, on_reward_error="drop")
    assert [one.reward for one in samples] == [1.0] * 64
    assert counts.keys() == {"reward_time"}
    assert service.most_at_once <= 8


def test_waiting_again_before_a_repetition_is_not_either(service) -> None:
    seen: set[str] = set()

    def at_the_second_time(handler: Any, asked: Any) -> None:
        time.sleep(0.1)
        again = asked["prompt"] in seen
        seen.add(asked["prompt"])
        reply(1.0, 200 if again else 503)(handler, asked)

    service.script = [at_the_second_time]
    samples = [sample(index, prompt=str(index)) for index in range(32)]  # two of 0.1 s each, on two connections: 3.2 s
    score(service.url, samples, {"connections": 2}, reward_timeout=1.5)
    assert [one.reward for one in samples] == [1.0] * 32
    assert len(service.requests) == 64


def test_the_loop_goes_on_while_a_service_is_slow(service) -> None:
    service.script = [slow(0.5)]
    config = RunConfig(rm_url=service.url)
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    async def run() -> object:
        heart = asyncio.create_task(beat())
        reward = await Remote(Remote.Settings()).custom_rm(args=config, sample=sample(), samples=None)
        heart.cancel()
        return reward

    assert asyncio.run(run()) == 1.0
    assert beats >= 10


def test_every_loop_has_its_session_and_closes_it(service) -> None:
    service.script = [right]
    plugin, config = Remote(Remote.Settings()), RunConfig(rm_url=service.url)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):

            async def twice() -> None:
                for _ in range(2):
                    assert await plugin.custom_rm(args=config, sample=sample(), samples=None) == 1.0
                assert len(plugin.client._sessions) == 1

            asyncio.run(twice())
            assert plugin.client._sessions == {}
        gc.collect()
    assert len(service.connections) == 3, "one connection for each loop, kept open between its calls"


def test_a_plugin_that_is_forgotten_closes_its_session(service) -> None:
    service.script = [right]

    async def run() -> None:
        assert await Remote(Remote.Settings()).custom_rm(args=RunConfig(rm_url=service.url), sample=sample(), samples=None) == 1.0
        gc.collect()
        await asyncio.sleep(0.05)

    asyncio.run(run())
    gc.collect()


QUIET = """
import asyncio, sys
from vime.api import Sample
from vime.config.run_config import RunConfig
from vime_rm_remote.remote import Remote
plugin = Remote(Remote.Settings())
loop = asyncio.new_event_loop()
print(loop.run_until_complete(plugin.custom_rm(args=RunConfig(rm_url=sys.argv[1]), sample=Sample(response="4", label="4"), samples=None)))
loop.run_until_complete(loop.shutdown_asyncgens())
loop.close()
"""


def test_nothing_is_left_open_at_exit(service) -> None:
    service.script = [right]
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", QUIET, service.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("1.0\n", "")


def test_secrets_of_the_environment_stay_there(service, monkeypatch, tmp_path) -> None:
    service.script = [right]
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://me:s3cret@127.0.0.1:9")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password s3cret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    score(service.url, [sample()])
    assert "s3cret" not in json.dumps([service.headers, service.requests])
    assert {name.lower() for name in service.headers[0]} == {
        "host",
        "content-type",
        "accept",
        "accept-encoding",
        "user-agent",
        "content-length",
    }


def test_a_token_goes_along_and_is_never_written(service, monkeypatch) -> None:
    monkeypatch.setenv("JUDGE_TOKEN", "s3cret")
    service.script = [right]
    score(service.url, [sample()], {"token_variable": "JUDGE_TOKEN"})
    assert service.headers[0]["Authorization"] == "Bearer s3cret"
    score(service.url, [sample()], {"token_variable": "JUDGE_TOKEN", "token_header": "X-Api-Key"})
    assert service.headers[1]["X-Api-Key"] == "s3cret"
    assert "Authorization" not in service.headers[1]
    plugins = PluginManager()
    plugins.add(Remote, name="remote", settings={"token_variable": "JUDGE_TOKEN"})
    assert "s3cret" not in json.dumps(plugins.lock())


def test_user_and_query_of_the_address_are_sent_and_not_shown(service) -> None:
    service.script = [reply(b"", 404)]
    message = failure(service.url.replace("http://", "http://me:s3cret@") + "?key=s3cret").message
    assert message == f"{service.url}: status 404, without a body"
    assert service.headers[0]["Authorization"].startswith("Basic ")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"token_variable": "NO_SUCH_VARIABLE"}, "no such environment variable"),
        ({"token_variable": "sk-123.abc"}, "never the token itself"),
        ({"token_header": "X Key"}, "name of a header"),
        ({"timeout": 0}, "greater than 0"),
        ({"retries": -1}, "greater than or equal to 0"),
        ({"connections": 0}, "greater than or equal to 1"),
        ({"retrys": 1}, "retrys"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Remote.Settings(**settings)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (None, "plugin 'remote' has no address to ask: --rm-url is not set"),
        ("", "--rm-url is not set"),
        ("judge:8000", "--rm-url judge:8000: expected an address that starts with http"),
        ("127.0.0.1:8000/score", "expected an address that starts with http"),
        ("ftp://judge/score", "expected an address that starts with http"),
        ("http://", "names a host"),
        ("http://judge:port/score", "--rm-url http://judge:port/score: no address: Port"),
        ("http://judge:99999/", "no address: Port out of range"),
        ("http://a b/", "expected an address"),
        ("http://[::1/", "no address"),
    ],
)
def test_an_address_that_is_none_is_refused_at_start(url: str | None, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        score(url, [sample()])
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint == "--rm-url http://HOST:PORT/PATH, the service that scores the samples"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metadata": {"ok": 1, "seen": {1, 2}}}, r"sample 7: its metadata\['seen'\] cannot be sent"),
        ({"metadata": {"x": math.nan}}, r"sample 7: its metadata\['x'\] cannot be sent"),
        ({"label": b"4"}, "sample 7: its label cannot be sent to the reward service: a bytes"),
        ({"label": math.inf}, "sample 7: its label cannot be sent"),
    ],
)
def test_what_json_cannot_hold_is_named(service, fields: dict[str, Any], message: str) -> None:
    service.script = [right]
    with pytest.raises((TypeError, ValueError), match=message):
        score(service.url, [sample(7, **fields)])
    assert service.requests == []


def test_text_of_all_kinds_arrives(service) -> None:
    service.script = [right]
    for text in ("\0\ud800\u202e", "答案", "a" * 10**6, '"}]'):
        one = sample(0, text, label=text)
        score(service.url, [one])
        assert one.reward == 1.0


def test_the_import_is_light() -> None:
    source = "import sys, vime_rm_remote.remote; print([m for m in ('aiohttp', 'tenacity', 'numpy', 'torch') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout == "[]\n"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
