"""From a conversation to token ids and a loss mask, under any chat template.

A template is a program: it may add a system prompt, trim contents, merge tool messages, or drop the reasoning of earlier
turns. So the trained spans are found in the text it renders, never built by hand:

- the text up to an assistant turn, with the generation prompt, is what the model will see before it answers; where the
  whole conversation starts with it, the turn begins at its end;
- elsewhere (a template that changes earlier turns in view of later ones) the conversation is rendered once more with
  the turn's content replaced by a marker, and where the two texts differ is the turn.

A turn ends with the token that ends it; whitespace that the template puts after that token is not trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vime.api import DataError

Message = dict[str, Any]
_MARKER = "\ue000\ue001"
"""Characters of the private use area: no template and no conversation has them."""


@dataclass(frozen=True)
class Encoded:
    """T token ids and the T entries of their loss mask."""

    token_ids: list[int]
    loss_mask: list[int]

    @property
    def prompt_length(self) -> int:
        """Number of tokens before the first trained one."""
        return self.loss_mask.index(1) if 1 in self.loss_mask else len(self.loss_mask)


def encode_pair(tokenizer: Any, prompt: str, response: str) -> Encoded:
    """A prompt and its response as they stand, the response with the end-of-sequence token; the response is trained."""
    prompt_ids = _encode(tokenizer, prompt)
    response_ids = _encode(tokenizer, response)
    eos = tokenizer.eos_token_id
    if eos is not None and response_ids[-1:] != [eos]:
        response_ids.append(eos)
    return Encoded(prompt_ids + response_ids, [0] * len(prompt_ids) + [1] * len(response_ids))


def encode_conversation(tokenizer: Any, messages: list[Message], *, last_only: bool = False, **template_options: Any) -> Encoded:
    """A conversation that ends with an assistant turn; all assistant turns are trained, or the last one only.

    `template_options` go to the chat template. Raises what the template raises, and DataError where it shows nothing
    of an assistant turn.
    """
    conversation = _Conversation(tokenizer, messages, template_options)
    turns = [position for position, message in enumerate(messages) if message["role"] == "assistant"]
    spans = [conversation.trained_span(position) for position in (turns[-1:] if last_only else turns)]
    return _encode_spans(tokenizer, conversation.text[: spans[-1][1]], spans)


class _Conversation:
    """A rendered conversation, in which the text of each assistant turn can be found."""

    def __init__(self, tokenizer: Any, messages: list[Message], template_options: dict[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.messages = messages
        self.template_options = template_options
        self.text = self._render(messages)

    def trained_span(self, position: int) -> tuple[int, int]:
        """Start and end, in `text`, of what the model itself says in the turn at `position`, its end token included."""
        before = self._render_part(position, generation_prompt=True)
        if before is None or not self.text.startswith(before):
            before = None
        through = self.text if position == len(self.messages) - 1 else self._render_part(position + 1)
        if before is not None and through is not None and self.text.startswith(through) and len(through) > len(before):
            return len(before), self._without_space_after_end(len(before), len(through))
        start, end = self._where_content_differs(position)
        return start if before is None else len(before), self._with_end_token(end)

    def _where_content_differs(self, position: int) -> tuple[int, int]:
        marked = [*self.messages[:position], {"role": "assistant", "content": _MARKER}, *self.messages[position + 1 :]]
        other = self._render(marked)
        start = _common_prefix(self.text, other)
        tail = _common_prefix(self.text[start:][::-1], other[start:][::-1])
        if _MARKER not in other:
            raise DataError(
                f"the chat template shows nothing of the assistant turn at message {position}",
                hint="check the roles of the conversation against the model's chat template",
            )
        return start, len(self.text) - tail

    def _without_space_after_end(self, start: int, end: int) -> int:
        """The end of a turn without the whitespace that follows its end token; unchanged where there is no such token."""
        said = self.text[start:end].rstrip()
        return start + len(said) if said.endswith(self._special_tokens()) else end

    def _with_end_token(self, end: int) -> int:
        """The end of a turn's content, moved behind the end token that follows it."""
        rest = self.text[end:].lstrip()
        token = max((token for token in self._special_tokens() if rest.startswith(token)), key=len, default="")
        return len(self.text) - len(rest) + len(token) if token else end

    def _special_tokens(self) -> tuple[str, ...]:
        named = [str(token) for token in getattr(self.tokenizer, "all_special_tokens", None) or [self.tokenizer.eos_token]]
        added = self.tokenizer.get_added_vocab() if hasattr(self.tokenizer, "get_added_vocab") else {}
        return tuple(token for token in {*named, *added} if token and token.strip())

    def _render_part(self, count: int, *, generation_prompt: bool = False) -> str | None:
        """The first `count` messages, or None where the template refuses such a part of a conversation."""
        try:
            return self._render(self.messages[:count], generation_prompt=generation_prompt)
        except Exception:  # noqa: BLE001 - a template raises what it likes; the turn is then found without it
            return None

    def _render(self, messages: list[Message], *, generation_prompt: bool = False) -> str:
        options = {**self.template_options, "tokenize": False, "add_generation_prompt": generation_prompt}
        return self.tokenizer.apply_chat_template(messages, **options)


def _common_prefix(first: str, second: str) -> int:
    """Number of characters that two texts share at their beginning."""
    return next((index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False)) if text else []


def _encode_spans(tokenizer: Any, text: str, spans: list[tuple[int, int]]) -> Encoded:
    """Encode `text` piece by piece, as prompt and response are in a rollout; the spans get mask 1.

    A tokenizer that puts a space before every text it gets (SentencePiece) would put one before each piece: there the
    whole text is encoded, and a token is trained when it lies inside a span.
    """
    if _encode(tokenizer, "\na")[-1:] != _encode(tokenizer, "a") and getattr(tokenizer, "is_fast", False):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        inside = [any(start <= a and b <= end for start, end in spans) for a, b in encoded["offset_mapping"]]
        return Encoded(list(encoded["input_ids"]), [int(flag) for flag in inside])
    token_ids: list[int] = []
    loss_mask: list[int] = []
    position = 0
    for start, end in [*spans, (len(text), len(text))]:
        for piece, trained in ((text[position:start], 0), (text[start:end], 1)):
            ids = _encode(tokenizer, piece)
            token_ids += ids
            loss_mask += [trained] * len(ids)
        position = end
    return Encoded(token_ids, loss_mask)
