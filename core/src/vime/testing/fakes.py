"""An engine and a tokenizer without torch: real implementations of the protocols, small and deterministic.

`FakeEngine` is for tests of rollouts, rewards, filters and plugins:

    engine = FakeEngine(policy={"1+1=": "2"})
    generation = await engine.generate(engine.tokenizer.encode("1+1="), {"max_new_tokens": 8})
    assert generation.text == "2" and generation.finish_reason == "stop"
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import random
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vime.engine.base import SamplingParams
from vime.errors import EngineError
from vime.outputs import Generation

Tokens = Sequence[int] | str
"""Token ids, or a text that the engine's tokenizer encodes (and that ends with the end-of-sequence token)."""
Policy = Callable[[Sequence[int], SamplingParams], Tokens] | Mapping[Any, Tokens] | None

_PAD, _EOS, _TURN, _UNK = 0, 1, 2, 3
_SPECIAL = {"<|pad|>": _PAD, "<|im_end|>": _EOS, "<|im_start|>": _TURN, "<|unk|>": _UNK}
_MASK = (1 << 64) - 1


def _alphabet(size: int) -> str:
    """`size` distinct characters: digits first, then the rest of printable ASCII, then Latin and beyond."""
    first = string.digits + string.ascii_letters + string.punctuation + " \n\t"
    return (first + "".join(map(chr, range(0xA1, 0xA1 + max(0, size - len(first))))))[:size]


class FakeTokenizer:
    """One token per character, with the part of the Hugging Face interface that vime uses.

    Ids 0 to 3 are `<|pad|>`, `<|im_end|>` (also the end of a sequence), `<|im_start|>` and `<|unk|>`; 4 to
    vocab_size - 1 are characters, digits first (102 ids are enough for printable ASCII). The chat template is ChatML.
    """

    pad_token_id, eos_token_id, unk_token_id = _PAD, _EOS, _UNK
    pad_token, eos_token, unk_token = "<|pad|>", "<|im_end|>", "<|unk|>"
    bos_token_id, bos_token = None, None
    all_special_ids = (_PAD, _EOS, _TURN, _UNK)
    all_special_tokens = tuple(_SPECIAL)
    padding_side = "right"
    chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )

    def __init__(self, vocab_size: int = 128) -> None:
        if vocab_size <= len(_SPECIAL):
            raise ValueError(f"vocab_size must be at least {len(_SPECIAL) + 1} (four special tokens and one character), got {vocab_size}")
        self.vocab_size = vocab_size
        self._texts = [*_SPECIAL, *_alphabet(vocab_size - len(_SPECIAL))]
        self._ids = {text: token for token, text in enumerate(self._texts)}

    def __len__(self) -> int:
        return self.vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; the names of special tokens become these, and nothing is added at either end."""
        token_ids: list[int] = []
        position = 0
        while position < len(text):
            special = next((name for name in _SPECIAL if text.startswith(name, position)), None)
            piece = special or text[position]
            token_ids.append(self._ids.get(piece, _UNK))
            position += len(piece)
        return token_ids

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False, **_ignored: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return "".join(self._texts[token] for token in ids if not (skip_special_tokens and token in self.all_special_ids))

    def batch_decode(self, sequences: Iterable[Sequence[int]], skip_special_tokens: bool = False, **_ignored: Any) -> list[str]:
        return [self.decode(token_ids, skip_special_tokens) for token_ids in sequences]

    def __call__(self, text: str | list[str], add_special_tokens: bool = True, **_ignored: Any) -> dict[str, list[Any]]:
        if isinstance(text, str):
            token_ids = self.encode(text)
            return {"input_ids": token_ids, "attention_mask": [1] * len(token_ids)}
        rows = [self.encode(row) for row in text]
        return {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> int | list[int]:
        if isinstance(tokens, str):
            return self._ids.get(tokens, _UNK)
        return [self._ids.get(token, _UNK) for token in tokens]

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        return_dict: bool = True,
        **_ignored: Any,
    ) -> Any:
        """The conversation as ChatML: the text, the token ids, or (the default, as transformers has it) a dict of both lists."""
        turns = [f"<|im_start|>{message['role']}\n{message.get('content') or ''}<|im_end|>\n" for message in conversation]
        if tools:
            turns.insert(0, f"<|im_start|>tools\n{list(tools)}<|im_end|>\n")
        text = "".join(turns) + ("<|im_start|>assistant\n" if add_generation_prompt else "")
        if not tokenize:
            return text
        encoded = self(text)
        return encoded if return_dict else encoded["input_ids"]


@dataclass
class FakeRequest:
    """What the engine was asked: kept in `FakeEngine.requests`, in the order of arrival."""

    token_ids: list[int]
    sampling_params: SamplingParams
    session_id: str | None
    aborted: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    loop: Any = field(default_factory=asyncio.get_running_loop, repr=False)
    version: int | None = field(default=None, repr=False)
    """Of the weights that made its first token."""


class FakeEngine:
    """Implements `TrainableEngine` without a model.

    policy
        None: random tokens, a function of (seed, token_ids, sampling_params["seed"]) alone; requests without a seed
        are numbered per prompt, so that the samples of a group differ and a second engine gives the same ones.
        A dict from prompts (text or tuple of ids) to responses, or a callable (token_ids, sampling_params) -> response.
        A response given as text ends with the end-of-sequence token; one given as ids is taken as it is.
    latency
        Seconds from a request to its answer, or a callable (token_ids, sampling_params) -> seconds. Requests run side
        by side, token by token, so that an abort returns a part.
    failure_rate
        Share of the requests that raise EngineError. Which ones is a function of seed, prompt and how often this prompt
        was asked, so that a retry may succeed.

    Stops, `min_new_tokens` (random policy) and `max_new_tokens` are honoured; temperature, top_p and top_k do not matter.
    Log-probs are numbers in (-3, 0) that depend on the token and all tokens before it; `score` gives the same ones.
    """

    def __init__(
        self,
        vocab_size: int = 128,
        policy: Policy = None,
        latency: float | Callable[[Sequence[int], SamplingParams], float] = 0.0,
        failure_rate: float = 0.0,
        seed: int = 0,
    ) -> None:
        if not 0.0 <= failure_rate <= 1.0:
            raise ValueError(f"failure_rate must be between 0 and 1, got {failure_rate}")
        self.tokenizer: Any = FakeTokenizer(vocab_size)
        self.max_model_len = 2**20
        self.policy = policy
        self.latency = latency
        self.failure_rate = failure_rate
        self.seed = seed
        self.requests: list[FakeRequest] = []
        self.weights: dict[str, Any] = {}
        self.asleep = self.closed = False
        self.steps = 0
        self._running: dict[int, FakeRequest] = {}
        self._asked: dict[tuple[int, ...], int] = {}
        self._version = 0
        self._counters = self._zero_counters()

    @property
    def weight_version(self) -> int:
        return self._version

    @property
    def running(self) -> int:
        """How many requests have not been answered: 0 once a rollout that was cancelled has cleaned up."""
        return len(self._running)

    async def generate(self, token_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str | None = None) -> Generation:
        prompt = list(token_ids)
        self._check_request(prompt)
        request = FakeRequest(prompt, sampling_params.copy(), session_id)
        self.requests.append(request)
        attempt = self._asked.get(tuple(prompt), 0)
        self._asked[tuple(prompt)] = attempt + 1
        script, finish_reason = self._plan(prompt, sampling_params, attempt)
        seconds = self.latency(prompt, sampling_params) if callable(self.latency) else self.latency
        self._running[id(request)] = request
        try:
            tokens = await self._run(request, script, seconds)
        finally:
            del self._running[id(request)]
        if self._random("failure", tuple(prompt), attempt).random() < self.failure_rate:
            raise EngineError(f"FakeEngine: request for {len(prompt)} tokens failed, as failure_rate {self.failure_rate} asks for")
        self._counters["prompt_tokens"] += len(prompt)
        self._counters["generated_tokens"] += len(tokens)
        return Generation(
            token_ids=tokens,
            log_probs=self._log_probs(prompt + tokens)[len(prompt) - 1 :],
            text=self._visible_text(tokens, sampling_params),
            finish_reason=finish_reason if len(tokens) == len(script) else "abort",
            weight_version=self._version if request.version is None else request.version,
        )

    async def generate_many(self, requests: Sequence[tuple[Sequence[int], SamplingParams]]) -> list[Generation]:
        return list(await asyncio.gather(*(self.generate(token_ids, params) for token_ids, params in requests)))

    async def abort(self, session_id: str) -> None:
        for request in self._running.values():
            if request.session_id == session_id:
                request.aborted.set()

    async def abort_all(self) -> None:
        for request in self._running.values():
            request.aborted.set()

    def update_weights(self, named_tensors: Iterable[tuple[str, Any]], version: int, *, keep_requests: bool = False) -> None:
        """Keep the tensors in `weights` and move `weight_version`; what is generated does not depend on them.

        Requests in flight are aborted, or go on with `keep_requests`. May be called from any thread.
        """
        self.weights = dict(named_tensors)
        self._version = version
        self.asleep = False
        if not keep_requests:
            self._abort_from_any_thread()

    def _abort_from_any_thread(self) -> None:
        for request in list(self._running.values()):
            if not request.loop.is_closed():
                request.loop.call_soon_threadsafe(request.aborted.set)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        self.asleep = False
        return [self._log_probs(list(sequence)) for sequence in sequences]

    def stats(self) -> dict[str, float]:
        counters, self._counters = self._counters, self._zero_counters()
        return counters

    def sleep(self) -> None:
        """Ends what is in flight; the next request, score or update wakes the engine."""
        self.asleep = True
        self._abort_from_any_thread()

    def close(self) -> None:
        self.closed = True

    def _check_request(self, prompt: list[int]) -> None:
        if self.closed:
            raise EngineError("FakeEngine: a request came while the engine is closed")
        self.asleep = False
        if not prompt:
            raise EngineError("FakeEngine: the prompt has no tokens")
        foreign = [token for token in prompt if not 0 <= token < self.tokenizer.vocab_size]
        if foreign:
            raise EngineError(f"FakeEngine: token {foreign[0]} is outside the vocabulary of {self.tokenizer.vocab_size}")

    def _plan(self, prompt: list[int], params: SamplingParams, attempt: int) -> tuple[list[int], str]:
        """The tokens that this request ends with if nobody aborts it, and why it ends there."""
        limit = params.get("max_new_tokens", 16)
        wanted = self._random_response(prompt, params, attempt, limit) if self.policy is None else self._scripted(prompt, params)
        stop_ids = {self.tokenizer.eos_token_id, *(params.get("stop_token_ids") or ())}
        stop_texts = params.get("stop") or []
        text = ""
        for count, token in enumerate(wanted[:limit], start=1):
            text += self.tokenizer.decode(token)
            if token in stop_ids or any(text.endswith(stop) for stop in stop_texts):
                return wanted[:count], "stop"
        return wanted[:limit], "length" if len(wanted) >= limit else "stop"

    def _scripted(self, prompt: list[int], params: SamplingParams) -> list[int]:
        if callable(self.policy):
            response = self.policy(prompt, params)
        else:
            assert self.policy is not None
            text = self.tokenizer.decode(prompt)
            key = tuple(prompt) if tuple(prompt) in self.policy else text
            if key not in self.policy:
                raise EngineError(f"FakeEngine: the policy has no response for the prompt {text!r} {tuple(prompt)}")
            response = self.policy[key]
        return [*self.tokenizer.encode(response), self.tokenizer.eos_token_id] if isinstance(response, str) else list(response)

    def _random_response(self, prompt: list[int], params: SamplingParams, attempt: int, limit: int) -> list[int]:
        seed = params.get("seed")
        rng = self._random("tokens", tuple(prompt), ("unseeded", attempt) if seed is None else seed)
        length = rng.randint(max(1, params.get("min_new_tokens", 0)), max(1, limit, params.get("min_new_tokens", 0)))
        tokens = [rng.randrange(len(_SPECIAL), self.tokenizer.vocab_size) for _ in range(length)]
        return [*tokens, self.tokenizer.eos_token_id]

    async def _run(self, request: FakeRequest, script: list[int], seconds: float) -> list[int]:
        """Hand out one token per turn of the event loop, or evenly over `seconds`, until done or aborted."""
        for count in range(len(script)):
            if seconds > 0:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(request.aborted.wait(), seconds / len(script))
            else:
                await asyncio.sleep(0)
            if request.aborted.is_set():
                return script[:count]
            request.version = self._version if request.version is None else request.version
            self.steps += 1
        return script

    def _visible_text(self, tokens: list[int], params: SamplingParams) -> str:
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        for stop in params.get("stop") or []:
            text = text.removesuffix(stop)
        return text

    def _log_probs(self, sequence: list[int]) -> list[float]:
        """T-1 log-probs for T tokens, by a running 64-bit hash of the tokens so far."""
        state = self.seed & _MASK
        result: list[float] = []
        for token in sequence:
            state = (state * 6364136223846793005 + token + 1442695040888963407) & _MASK
            mixed = ((state ^ (state >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
            result.append(math.log(0.05 + 0.94 * ((mixed >> 11) / (1 << 53))))
        return result[1:]

    def _random(self, *key: object) -> random.Random:
        digest = hashlib.blake2b(repr((self.seed, *key)).encode(), digest_size=8).digest()
        return random.Random(int.from_bytes(digest, "big"))

    @staticmethod
    def _zero_counters() -> dict[str, float]:
        return {"prompt_tokens": 0.0, "cached_tokens": 0.0, "generated_tokens": 0.0, "busy_seconds": 0.0}
