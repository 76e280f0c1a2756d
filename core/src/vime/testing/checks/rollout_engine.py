"""The engine of the rollout checks: FakeEngine that keeps its answers, with a tokenizer whose text does not give its tokens back."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vime.engine.base import SamplingParams
from vime.errors import EngineError
from vime.outputs import Generation
from vime.sample import Sample
from vime.testing.checks.base import fail, skip
from vime.testing.fakes import FakeEngine, FakeTokenizer, Policy

VOCABULARY = 138
"""Four special tokens, the 102 printable characters, and 32 pairs of digits."""


class PairingTokenizer(FakeTokenizer):
    """FakeTokenizer in which some pairs of digits are one token too, as real vocabularies have them.

    A model may still write `1` and `2` where the tokenizer writes `12`: decoding and encoding again gives other tokens.
    """

    def __init__(self) -> None:
        super().__init__(VOCABULARY)
        self._texts[-32:] = [f"{tens}{ones}" for tens in string.digits[1:5] for ones in string.digits[1:9]]
        self._ids = {text: token for token, text in enumerate(self._texts)}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        token_ids: list[int] = []
        position = 0
        specials = self.all_special_tokens
        while position < len(text):
            piece = next((name for name in specials if text.startswith(name, position)), None)
            if piece is None:
                piece = text[position : position + 2] if text[position : position + 2] in self._ids else text[position]
            token_ids.append(self._ids.get(piece, self.unk_token_id))
            position += len(piece)
        return token_ids


@dataclass(frozen=True)
class Answer:
    """What the engine was asked to continue, how, and with what it did."""

    prompt: list[int]
    params: SamplingParams
    generation: Generation


class RecordingEngine(FakeEngine):
    """FakeEngine that keeps its answers, and fails where `failure` says so."""

    def __init__(self, policy: Policy = None, latency: float | Callable[[Sequence[int], SamplingParams], float] = 0.0) -> None:
        super().__init__(VOCABULARY, policy, latency)
        self.tokenizer: Any = PairingTokenizer()
        self.answers: list[Answer] = []
        self.failure: EngineError | None = None

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._running)

    async def generate(self, token_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str | None = None) -> Generation:
        params = SamplingParams(**sampling_params)
        generation = await super().generate(token_ids, params, session_id=session_id)
        if self.failure is not None:
            raise self.failure
        self.answers.append(Answer(list(token_ids), params, generation))
        return generation

    def close(self) -> None:
        fail("it closed the engine, which belongs to the run", hint="generate and abort only; close, sleep and wake are the run's")

    def sleep(self) -> None:
        self.close()


class SpelledDigits:
    """A policy that writes numbers digit by digit, where the tokenizer has a token for two of them.

    The first answer to a prompt is 1212..., and the later ones differ. It ends each with the end-of-sequence token
    unless `endless`.
    """

    def __init__(self, *, endless: bool = False) -> None:
        self.endless = endless
        self._asked: dict[tuple[int, ...], int] = {}

    def __call__(self, token_ids: Sequence[int], params: SamplingParams) -> list[int]:
        times = self._asked.get(tuple(token_ids), 0)
        self._asked[tuple(token_ids)] = times + 1
        tokenizer = FakeTokenizer()
        digits = [tokenizer.encode(character)[0] for character in f"1212{times}{sum(token_ids) % 97}"]
        if self.endless:
            return digits * (1 + params.get("max_new_tokens", 16) // len(digits))
        return [*digits, tokenizer.eos_token_id]


class Replies:
    """A policy that answers with these texts in turn, whatever it is asked."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts, self.asked = texts, 0

    def __call__(self, token_ids: Sequence[int], params: SamplingParams) -> list[int]:
        text = self.texts[self.asked % len(self.texts)]
        self.asked += 1
        tokenizer = FakeTokenizer()
        return [*tokenizer.encode(text), tokenizer.eos_token_id]


def covered(sample: Sample, answers: Sequence[Answer]) -> set[int]:
    """The positions in `sample.tokens` that the engine generated there, after exactly the tokens before them."""
    positions: set[int] = set()
    for answer in answers:
        start = len(answer.prompt)
        if sample.tokens[:start] != answer.prompt:
            continue
        for offset, token in enumerate(answer.generation.token_ids):
            if sample.tokens[start + offset : start + offset + 1] != [token]:
                break
            positions.add(start + offset)
    return positions


def trained_positions(sample: Sample) -> list[int]:
    """The positions in `sample.tokens` that the loss sees."""
    start = len(sample.tokens) - sample.response_length
    mask = sample.loss_mask if sample.loss_mask is not None else [1] * sample.response_length
    return [start + offset for offset, flag in enumerate(mask) if flag]


def _skip_misaligned(sample: Sample) -> None:
    for name in ("loss_mask", "rollout_log_probs"):
        values = getattr(sample, name)
        if values is not None and len(values) != sample.response_length:
            skip(f"{name} does not fit the response, see the check of the training rollout")


def check_tokens(sample: Sample, engine: RecordingEngine) -> None:
    """Fail for a trained token that the engine did not generate after the tokens before it."""
    _skip_misaligned(sample)
    known = covered(sample, engine.answers)
    foreign = next((position for position in trained_positions(sample) if position not in known), None)
    if foreign is None:
        return
    name, start, decode = f"sample {sample.index}", len(sample.tokens) - sample.response_length, engine.tokenizer.decode
    for answer in engine.answers:
        offset, generated = foreign - len(answer.prompt), answer.generation.token_ids
        if 0 <= offset < len(generated) and sample.tokens[:foreign] == answer.prompt + generated[:offset]:
            fail(
                f"{name}: the engine generated the token {decode(generated[offset])!r} at position {foreign - start} of the response, "
                f"and the sample has {decode(sample.tokens[foreign])!r} there",
                hint="keep generation.token_ids: text that is tokenised again gives other tokens, which the policy did not sample",
            )
    if not any(sample.tokens[: len(answer.prompt)] == answer.prompt for answer in engine.answers):
        fail(
            f"{name}: the engine was never asked to continue the {start} tokens that its prompt has",
            hint="begin sample.tokens with the token ids that go to engine.generate",
        )
    fail(
        f"{name}: the token {decode(sample.tokens[foreign])!r} at position {foreign - start} of the response is trained, "
        "and the engine did not generate it",
        hint="append tool output and the text between turns with sample.append_response_tokens(..., trainable=False)",
    )


def check_log_probs(sample: Sample, engine: RecordingEngine) -> bool:
    """Fail where a log-prob is not the engine's for that token; whether there was one to compare."""
    if not sample.rollout_log_probs:
        return False
    _skip_misaligned(sample)
    (expected,) = engine.score([sample.tokens])
    start = len(sample.tokens) - sample.response_length
    known = covered(sample, engine.answers)
    compared = [position for position in trained_positions(sample) if position in known]
    for position in compared:
        got, right = sample.rollout_log_probs[position - start], expected[position - 1]
        if not abs(got - right) < 1e-6:
            fail(
                f"sample {sample.index}: log-prob {position - start} of the response is {got:.4f}; the engine gave {right:.4f} there",
                hint="pass generation.log_probs on as they are, next to generation.token_ids",
            )
    return bool(compared)
