"""The part of the OpenAI API that the endpoint speaks: requests that are checked, answers as plain dicts.

Field names and shapes are those of the OpenAI API reference (chat completions, completions); `token_ids` and
`prompt_token_ids` are those of vLLM's server.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from vime.engine.base import SamplingParams
from vime.outputs import Generation

MODEL_NAME = "policy"


class RequestRefused(Exception):
    """Ends a request with an OpenAI-style error."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


class _Request(BaseModel):
    """Fields that both kinds of completion have. Others are taken and have no effect, as clients send many."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    n: int = Field(default=1, ge=1, le=128)
    stream: bool = False
    session_id: str | None = None
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = None

    def limit(self) -> int | None:
        """The most tokens that the client wants."""
        raise NotImplementedError

    def distribution(self) -> SamplingParams:
        """What only a request without a session may choose: a session's tokens are trained as the rollout samples them."""
        chosen = SamplingParams(seed=self.seed)
        if self.temperature is not None:
            chosen["temperature"] = self.temperature
        if self.top_p is not None:
            chosen["top_p"] = self.top_p
        return chosen

    def sampling_params(self) -> SamplingParams:
        """What the client may choose: a shorter answer and further stops."""
        params = SamplingParams()
        limit = self.limit()
        if limit is not None:
            params["max_new_tokens"] = limit
        if self.stop:
            params["stop"] = [self.stop] if isinstance(self.stop, str) else self.stop
        if self.stop_token_ids:
            params["stop_token_ids"] = self.stop_token_ids
        return params


class ChatRequest(_Request):
    """POST /v1/chat/completions"""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    tools: list[dict[str, Any]] | None = None
    logprobs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def template_options(self) -> dict[str, Any]:
        """What goes to the chat template beside the messages."""
        return {**({"tools": self.tools} if self.tools else {}), **(self.chat_template_kwargs or {})}


class CompletionRequest(_Request):
    """POST /v1/completions, for one prompt"""

    prompt: str | list[int] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    logprobs: int | None = None

    def limit(self) -> int | None:
        return self.max_tokens


def chat_response(prompt_ids: Sequence[int], generations: Sequence[Generation], pieces: Sequence[list[str]]) -> dict[str, Any]:
    """A chat completion. `pieces` are the texts of each generation's tokens, one by one."""
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": generation.text},
            "finish_reason": generation.finish_reason,
            "logprobs": {
                "content": [
                    {"token": token, "logprob": log_prob, "bytes": list(token.encode()), "top_logprobs": []}
                    for token, log_prob in zip(texts, generation.log_probs, strict=True)
                ]
            },
            "token_ids": list(generation.token_ids),
        }
        for index, (generation, texts) in enumerate(zip(generations, pieces, strict=True))
    ]
    return _response("chat.completion", "chatcmpl", prompt_ids, generations, choices)


def completion_response(prompt_ids: Sequence[int], generations: Sequence[Generation], pieces: Sequence[list[str]]) -> dict[str, Any]:
    """A plain completion."""
    choices = [
        {
            "index": index,
            "text": generation.text,
            "finish_reason": generation.finish_reason,
            "logprobs": {
                "tokens": texts,
                "token_logprobs": list(generation.log_probs),
                "top_logprobs": None,
                "text_offset": [sum(map(len, texts[:place])) for place in range(len(texts))],
            },
            "token_ids": list(generation.token_ids),
        }
        for index, (generation, texts) in enumerate(zip(generations, pieces, strict=True))
    ]
    return _response("text_completion", "cmpl", prompt_ids, generations, choices)


def _response(
    kind: str, prefix: str, prompt_ids: Sequence[int], generations: Sequence[Generation], choices: list[dict[str, Any]]
) -> dict[str, Any]:
    generated = sum(len(generation.token_ids) for generation in generations)
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": MODEL_NAME,
        "choices": choices,
        "prompt_token_ids": list(prompt_ids),
        "weight_version": generations[0].weight_version,
        "usage": {"prompt_tokens": len(prompt_ids), "completion_tokens": generated, "total_tokens": len(prompt_ids) + generated},
    }


def as_chunks(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The same answer as the events of a stream: the whole text in one, then the end, then the usage."""
    is_chat = response["object"] == "chat.completion"
    base = {key: response[key] for key in ("id", "created", "model")} | {
        "object": "chat.completion.chunk" if is_chat else "text_completion"
    }
    chunks: list[dict[str, Any]] = []
    for choice in response["choices"]:
        body = {"index": choice["index"], "logprobs": choice["logprobs"], "token_ids": choice["token_ids"], "finish_reason": None}
        content = {"delta": choice["message"]} if is_chat else {"text": choice["text"]}
        chunks.append({**base, "choices": [{**body, **content}]})
        end = {"delta": {}} if is_chat else {"text": ""}
        chunks.append({**base, "choices": [{"index": choice["index"], "finish_reason": choice["finish_reason"], "logprobs": None, **end}]})
    return [*chunks, {**base, "choices": [], "usage": response["usage"]}]
