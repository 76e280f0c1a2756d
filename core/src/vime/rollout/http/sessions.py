"""What a client of the HTTP endpoint generated, token by token: sessions, and the transcripts that become samples.

A session belongs to one rollout (one Sample that is being generated). Each conversation of it is a transcript: the
prompt, what the policy generated (trained), and what came in between (not trained). A request that continues a
transcript reuses its token ids as they are; one that does not match any starts another transcript, a sibling.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vime.engine.base import SamplingParams
from vime.errors import ContractError
from vime.outputs import Generation
from vime.rollout.generate import FINISH_STATUS
from vime.sample import Sample, Status

Message = dict[str, Any]

_SENTINEL = "\ue000vime\ue001"
"""Stands for the last answer when a chat template is asked what follows it; private-use characters, so no template has it."""


@dataclass
class Piece:
    """A stretch of a transcript after its prompt: generated (with log-probs), or given by the client (without)."""

    token_ids: list[int]
    log_probs: list[float] | None
    text: str
    weight_version: int | None = None


@dataclass(eq=False)
class Transcript:
    """One conversation. `prompt_ids` and the pieces, one after the other, are the row that is trained."""

    prompt_ids: list[int]
    prompt_text: str
    messages: list[Message] | None
    """The conversation so far, answers included; None for a plain completion."""
    pieces: list[Piece] = field(default_factory=list[Piece])
    finish_reason: str = "stop"
    busy: bool = False
    """Whether a request is extending it right now: another one does not, and starts its own."""

    @property
    def token_ids(self) -> list[int]:
        return self.prompt_ids + [token for piece in self.pieces for token in piece.token_ids]

    @property
    def is_open(self) -> bool:
        """Whether a request may continue it."""
        return bool(self.pieces) and not self.busy

    @property
    def response_length(self) -> int:
        return sum(len(piece.token_ids) for piece in self.pieces)

    @property
    def text(self) -> str:
        """Prompt and response as text."""
        return self.prompt_text + "".join(piece.text for piece in self.pieces)

    def branch(self) -> Transcript:
        """A copy to go on with, for a further choice. What is generated already is trained in the original alone."""
        context = [replace(piece, log_probs=None, weight_version=None) for piece in self.pieces]
        return Transcript(self.prompt_ids, self.prompt_text, copy.deepcopy(self.messages), context, self.finish_reason)


class Session:
    """All transcripts of one rollout. Used from the run's event loop only."""

    def __init__(self, session_id: str, sample: Sample, sampling_params: SamplingParams, tokenizer: Any) -> None:
        self.session_id = session_id
        self.transcripts: list[Transcript] = []
        self.sampling_params = sampling_params
        """Of the rollout. What a request asks for may shorten an answer and add stops; the distribution stays that of training."""
        self._sample = sample
        self._tokenizer = tokenizer
        self._turns = itertools.count()

    # --- what a request continues ---------------------------------------------------------------------------------

    def continue_chat(self, messages: Sequence[Message], template_options: dict[str, Any]) -> tuple[Transcript, Piece | None]:
        """The transcript that these messages continue, and what they add to it; a new one where they continue none."""
        wanted = [_comparable(message) for message in messages]
        for transcript in sorted(self.transcripts, key=lambda known: -len(known.messages or ())):
            known = [_comparable(message) for message in transcript.messages or ()]
            if known and len(wanted) > len(known) and wanted[: len(known)] == known and transcript.is_open:
                added = self._after_last_answer(transcript, list(messages), len(known), template_options)
                if added is not None:
                    return transcript, added
        text = self._render(list(messages), template_options, add_generation_prompt=True)
        return Transcript(self._encode(text), text, list(messages)), None

    def continue_text(self, prompt: str | Sequence[int]) -> tuple[Transcript, Piece | None]:
        """As `continue_chat`, for a plain completion: by its text, or by its token ids."""
        for transcript in sorted(self.transcripts, key=lambda known: -len(known.token_ids)):
            if transcript.messages is not None or not transcript.is_open:
                continue
            if isinstance(prompt, str) and prompt.startswith(transcript.text):
                added = prompt[len(transcript.text) :]
                return transcript, Piece(self._encode(added), None, added) if added else None
            known = transcript.token_ids
            if not isinstance(prompt, str) and list(prompt[: len(known)]) == known:
                ids = list(prompt[len(known) :])
                return transcript, Piece(ids, None, self._tokenizer.decode(ids)) if ids else None
        if isinstance(prompt, str):
            return Transcript(self._encode(prompt), prompt, None), None
        return Transcript(list(prompt), self._tokenizer.decode(list(prompt)), None), None

    def _after_last_answer(self, transcript: Transcript, messages: list[Message], known: int, options: dict[str, Any]) -> Piece | None:
        """What the chat template puts between the last answer and the next one, or None where that cannot be told."""
        marked = [*messages[: known - 1], {**messages[known - 1], "content": _SENTINEL}, *messages[known:]]
        before, found, after = self._render(marked, options, add_generation_prompt=True).rpartition(_SENTINEL)
        if not found or _SENTINEL in before:
            return None
        last = transcript.pieces[-1]
        ended_by = self._tokenizer.decode([last.token_ids[-1]]) if last.token_ids and transcript.finish_reason == "stop" else ""
        if ended_by and after.startswith(ended_by):
            after = after[len(ended_by) :]  # the policy has generated the end of its turn itself
        return Piece(self._encode(after), None, after)

    def _render(self, messages: list[Message], options: dict[str, Any], *, add_generation_prompt: bool) -> str:
        return self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt, **options)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    # --- what is asked of the engine, and what comes back ---------------------------------------------------------

    def request_params(self, asked: SamplingParams, transcript: Transcript, added: Piece | None) -> SamplingParams | None:
        """The sampling parameters of one turn, or None where the response has no room left."""
        params = SamplingParams(**self.sampling_params)
        used = transcript.response_length + (len(added.token_ids) if added else 0)
        room = params.get("max_new_tokens", asked.get("max_new_tokens", 0)) - used
        if room <= 0:
            return None
        params["max_new_tokens"] = min(room, asked.get("max_new_tokens", room))
        params["min_new_tokens"] = min(params.get("min_new_tokens", 0), params["max_new_tokens"])
        params["stop"] = [*(params.get("stop") or []), *(asked.get("stop") or [])] or None
        params["stop_token_ids"] = [*(params.get("stop_token_ids") or []), *(asked.get("stop_token_ids") or [])] or None
        seed = params.get("seed")
        params["seed"] = None if seed is None else (seed + next(self._turns)) % 2**63
        return params

    def record(self, transcript: Transcript, added: Piece | None, generation: Generation, answer: Message | None) -> None:
        """Append one turn to its transcript: what the client added, then what was generated."""
        if transcript not in self.transcripts:
            self.transcripts.append(transcript)
        if added is not None and added.token_ids:
            transcript.pieces.append(added)
        text = self._tokenizer.decode(generation.token_ids, skip_special_tokens=False)
        transcript.pieces.append(Piece(generation.token_ids, generation.log_probs, text, generation.weight_version))
        transcript.finish_reason = generation.finish_reason
        if transcript.messages is not None and answer is not None:
            transcript.messages.append(answer)

    # --- what it comes to -----------------------------------------------------------------------------------------

    def samples(self) -> list[Sample]:
        """One sample for each conversation, siblings of one rollout where there are several.

        Raises ContractError where the client has generated nothing.
        """
        if not self.transcripts:
            raise ContractError(
                f"the HTTP session of sample {self._sample.index} ended without a request",
                hint="the agent must call the endpoint under session.base_url",
            )
        made = [self._to_sample(transcript) for transcript in self.transcripts]
        if len(made) > 1:
            for sample in made:
                sample.rollout_id = sample.rollout_id if sample.rollout_id is not None else sample.index
        return made

    def _to_sample(self, transcript: Transcript) -> Sample:
        sample = copy.deepcopy(self._sample)
        sample.tokens, sample.response, sample.response_length = list(transcript.prompt_ids), "", 0
        sample.loss_mask = sample.rollout_log_probs = None
        sample.weight_versions = []
        for piece in transcript.pieces:
            sample.append_response_tokens(
                tokens=piece.token_ids,
                log_probs=piece.log_probs,
                trainable=piece.log_probs is not None,
                text=piece.text,
                meta_info=None if piece.weight_version is None else {"weight_version": piece.weight_version},
            )
        sample.status = FINISH_STATUS.get(transcript.finish_reason, Status.COMPLETED)
        return sample


def _comparable(message: Message) -> tuple[Any, ...]:
    """A message by what the model saw of it: clients add and drop fields, and strip answers."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return message.get("role"), (content or "").strip(), repr(message.get("tool_calls") or None)
