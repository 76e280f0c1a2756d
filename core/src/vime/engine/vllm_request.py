"""What the engine of this process keeps of a request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from vime.engine.base import SamplingParams
from vime.outputs import Generation


@dataclass(eq=False)
class VllmRequest:
    request_id: str
    session_id: str | None
    token_ids: list[int]
    """The prompt."""
    asked: SamplingParams
    params: Any
    """vLLM's form of what is left of `asked`."""
    future: asyncio.Future[Generation]
    internal_id: str = ""
    done_ids: list[int] = field(default_factory=list)
    """Generated before the request was last taken out of vLLM (`_park`), with log-probs and text."""
    done_log_probs: list[float] = field(default_factory=list)
    done_text: str = ""
    version: int | None = None
    """Of the weights that made its first token; None while that is to come."""


def sampled(logprobs: Any, count: int) -> list[float]:
    """The log-probs of the `count` sampled tokens in vLLM's flat form."""
    values = [] if logprobs is None else list(logprobs.logprobs)
    if len(values) != count and logprobs is not None:
        return [logprobs.logprobs[start] for start in logprobs.start_indices]  # entries of other tokens beside the sampled one
    return values
