"""The engine protocol: what rollouts, plugins and the runtime ask of an inference engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol, TypedDict, runtime_checkable

from vime.errors import ConfigError
from vime.outputs import Generation


class SamplingParams(TypedDict, total=False):
    """Parameters of one request. Lengths are in tokens; `top_k` -1 and `top_p` 1.0 switch truncation off."""

    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int
    min_new_tokens: int
    stop: list[str] | None
    stop_token_ids: list[int] | None
    repetition_penalty: float
    seed: int | None


@runtime_checkable
class Engine(Protocol):
    """Generates token by token with the current policy weights.

    `tokenizer` is the Hugging Face tokenizer of the model; `weight_version` is the version of the weights in use
    (0 before the first sync). A request that cannot be served raises EngineError; one that is aborted returns what it
    has, with finish_reason "abort".
    """

    tokenizer: Any

    @property
    def weight_version(self) -> int: ...

    async def generate(self, token_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str | None = None) -> Generation:
        """Continue `token_ids`. `session_id` names the request for `abort`."""
        ...

    async def generate_many(self, requests: Sequence[tuple[Sequence[int], SamplingParams]]) -> list[Generation]:
        """Generate for all requests, admitted together, and return the results in the order of the requests."""
        ...

    async def abort(self, session_id: str) -> None:
        """Stop the running requests of this session; each returns what it has generated so far."""
        ...


class TrainableEngine(Engine, Protocol):
    """What the runtime asks of an engine in addition. Plugins see `Engine` only.

    `max_model_len` is the longest prompt plus response, in tokens.
    """

    max_model_len: int

    async def abort_all(self) -> None: ...

    def update_weights(self, named_tensors: Iterable[tuple[str, Any]], version: int) -> None:
        """Replace all weights with these (Hugging Face names), drop cached prefixes, move `weight_version`."""
        ...

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probs of tokens 1..T-1 of each sequence at temperature 1 (T-1 numbers for T tokens)."""
        ...

    def stats(self) -> dict[str, float]:
        """Counters since the last call: prompt_tokens, cached_tokens (those in the prefix cache), generated_tokens,
        busy_seconds (time inside engine steps)."""
        ...

    def close(self) -> None: ...


class HttpSession(Protocol):
    """One rollout of an agent that speaks HTTP (--serve-engine)."""

    base_url: str
    """Where an OpenAI client of this rollout goes: OpenAI(base_url=session.base_url, api_key="none")."""
    session_id: str
    aborted: bool
    """Whether the rollout ended while the agent was at work."""

    def samples(self) -> list[Any]:
        """The session's conversations as samples, with the engine's own tokens and log-probs; siblings where there are several.

        Raises ContractError where the agent has sent no request.
        """
        ...


class HttpSessions(Protocol):
    """What opens them."""

    def session(self, sample: Any, sampling_params: SamplingParams) -> AbstractContextManager[HttpSession]: ...


_current_engine: ContextVar[Engine | None] = ContextVar("vime_current_engine", default=None)


def current_engine() -> Engine:
    """The engine of the hook call that is running. Raises RuntimeError outside a hook call."""
    engine = _current_engine.get()
    if engine is None:
        raise RuntimeError("current_engine() was called outside a hook call; take the `engine` argument of the hook, or call it inside one")
    return engine


_current_endpoint: ContextVar[HttpSessions | None] = ContextVar("vime_current_endpoint", default=None)


def http_session(sample: Any, sampling_params: SamplingParams) -> AbstractContextManager[HttpSession]:
    """A session of the HTTP endpoint for this sample, for use in custom_generate:

        with http_session(sample, sampling_params) as session:
            await run_my_agent(base_url=session.base_url)
        return session.samples()

    An exception of the agent that comes from the end of the rollout (`session.aborted`) ends the block quietly. Raises
    ConfigError where the run has no endpoint.
    """
    endpoint = _current_endpoint.get()
    if endpoint is None:
        raise ConfigError("http_session was called in a run without an HTTP endpoint", hint="switch it on: --serve-engine")
    return endpoint.session(sample, sampling_params)


def set_current_engine(engine: Engine | None, endpoint: HttpSessions | None = None) -> None:
    """Make these what `current_engine()` and `http_session()` find in this context. Called by the runtime only."""
    _current_engine.set(engine)
    _current_endpoint.set(endpoint)
