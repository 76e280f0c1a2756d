"""The engine protocol: what rollouts, plugins and the runtime ask of an inference engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, TypedDict, runtime_checkable

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


_current_engine: ContextVar[Engine | None] = ContextVar("vime_current_engine", default=None)


def current_engine() -> Engine:
    """The engine of the hook call that is running. Raises RuntimeError outside a hook call."""
    engine = _current_engine.get()
    if engine is None:
        raise RuntimeError("current_engine() was called outside a hook call; take the `engine` argument of the hook, or call it inside one")
    return engine


def set_current_engine(engine: Engine | None) -> None:
    """Make `engine` what `current_engine()` returns in this context. Called by the runtime only."""
    _current_engine.set(engine)
