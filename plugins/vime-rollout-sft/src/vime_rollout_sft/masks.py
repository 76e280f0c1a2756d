"""From a conversation to token ids and a loss mask, under any chat template.

A template is a program: it may add a system prompt, trim contents, merge tool messages, or drop the reasoning of earlier
turns. So the trained spans are found in the text it renders, never built by hand:

- the text up to an assistant turn, with the generation prompt, is what the model will see before it answers; where the
  whole conversation starts with it, the turn begins at its end;
- elsewhere (a template that changes earlier turns in view of later ones) the conversation is rendered once more with
  the turn's content replaced by a marker, and where the two texts differ is the turn, from the generation prompt that
  stands before it.

A turn ends with the token that ends it; whitespace that the template puts after that token is not trained. What a
template does not show of an assistant turn, such as its tool calls, cannot be trained: that is an error, not a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vime.api import DataError

Message = dict[str, Any]


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
    spans: list[tuple[int, int]] = []
    for position in turns:
        conversation.check_shown(position)
        if position == turns[-1] or not last_only:
            spans.append(conversation.trained_span(position, after=spans[-1][1] if spans else 0))
    return _encode_spans(tokenizer, conversation.text[: spans[-1][1]], spans)


class _Conversation:
    """A rendered conversation, in which the text of each assistant turn can be found."""

    def __init__(self, tokenizer: Any, messages: list[Message], template_options: dict[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.messages = messages
        self.template_options = template_options
        self.text = self._render(messages)

    def check_shown(self, position: int) -> None:
        """Raise DataError for a turn without content that the template renders as the word None, and for tool calls that it leaves out."""
        message = self.messages[position]
        if message.get("content") is None:
            start, end, _ = self._difference({**message, "content": ""}, position)
            if self.text[start:end] == "None":
                raise DataError(
                    f"the assistant turn at message {position} has no content, and the chat template writes 'None' in its place",
                    hint="give it content, or use a model whose chat template knows tool calls",
                )
        if message.get("tool_calls"):
            without = {key: value for key, value in message.items() if key != "tool_calls"}
            start, end, _ = self._difference({**without, "content": message.get("content") or ""}, position)
            if start == end:
                raise DataError(
                    f"the chat template shows nothing of the tool calls of the assistant turn at message {position}",
                    hint="use a model whose chat template knows tool calls, or write them into the content",
                )

    def trained_span(self, position: int, *, after: int) -> tuple[int, int]:
        """Start and end, in `text`, of what the model itself says in the turn at `position`, its end token included.

        The turn before it ends at `after`.
        """
        before = self._render_part(position, generation_prompt=True)
        if before is None or not self.text.startswith(before):
            before = None
        through = self.text if position == len(self.messages) - 1 else self._render_part(position + 1)
        if before is not None and through is not None and self.text.startswith(through) and len(through) > len(before):
            return len(before), self._without_space_after_end(len(before), len(through))
        start, end = self._where_content_differs(position)
        start = self._behind_generation_prompt(start, after, position) if before is None else len(before)
        return start, self._with_end_token(end)

    def _where_content_differs(self, position: int) -> tuple[int, int]:
        marker = next(chr(code) for code in range(0xE000, 0x110000) if chr(code) not in self.text)  # of the private use area, as a rule
        start, end, other = self._difference({"role": "assistant", "content": marker}, position)
        if marker not in other:
            raise DataError(
                f"the chat template shows nothing of the assistant turn at message {position}",
                hint="check the roles of the conversation against the model's chat template",
            )
        return start, end

    def _difference(self, message: Message, position: int) -> tuple[int, int, str]:
        """Where `text` differs from that of the conversation with another message at `position`, and that other text."""
        other = self._render([*self.messages[:position], message, *self.messages[position + 1 :]])
        start = _common_prefix(self.text, other)
        tail = _common_prefix(self.text[start:][::-1], other[start:][::-1])
        return start, len(self.text) - tail, other

    def _behind_generation_prompt(self, start: int, after: int, position: int) -> int:
        """The end of the generation prompt that stands between `after` and `start`: a template may write more than the content.

        It is known by its text elsewhere. Unchanged where it is not there, or a turn ends in between.
        """
        for count in (position, *range(1, len(self.messages))):
            part, prompted = self._render_part(count), self._render_part(count, generation_prompt=True)
            if part is not None and prompted is not None and prompted.startswith(part) and len(prompted) > len(part):
                header = prompted[len(part) :]
                found = self.text.rfind(header, after, start)
                said = self.text[found + len(header) : start]
                return start if found < 0 or any(token in said for token in self._named_tokens()) else found + len(header)
        return start

    def _without_space_after_end(self, start: int, end: int) -> int:
        """The end of a turn without the whitespace that follows its end token; unchanged where there is no such token."""
        said = self.text[start:end].rstrip()
        return start + len(said) if said.endswith(self._special_tokens()) else end

    def _with_end_token(self, end: int) -> int:
        """The end of a turn's content, moved behind the end token that follows it."""
        rest = self.text[end:].lstrip()
        token = max((token for token in self._special_tokens() if rest.startswith(token)), key=len, default="")
        return len(self.text) - len(rest) + len(token) if token else end

    def _named_tokens(self) -> list[str]:
        """The tokenizer's special tokens: that of the end of a turn is among them, those around reasoning are not."""
        return [str(token) for token in getattr(self.tokenizer, "all_special_tokens", None) or [self.tokenizer.eos_token]]

    def _special_tokens(self) -> tuple[str, ...]:
        added = self.tokenizer.get_added_vocab() if hasattr(self.tokenizer, "get_added_vocab") else {}
        return tuple(token for token in {*self._named_tokens(), *added} if token and token.strip())

    def _render_part(self, count: int, *, generation_prompt: bool = False) -> str | None:
        """The first `count` messages, or None where the template refuses such a part of a conversation."""
        try:
            return self._render(self.messages[:count], generation_prompt=generation_prompt)
        except Exception:  # noqa: BLE001 - a template raises what it likes; the turn is then found without it
            return None

    def _render(self, messages: list[Message], *, generation_prompt: bool = False) -> str:
        options = {**self.template_options, "tokenize": False, "add_generation_prompt": generation_prompt}
        return self.tokenizer.apply_chat_template(messages, **options)


def _common_prefix(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Number of characters or tokens that two sequences share at their beginning."""
    low, high = 0, min(len(first), len(second))
    while low < high:  # by halves: comparing slices is what Python does fast
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False)) if text else []


def _encode_spans(tokenizer: Any, text: str, spans: list[tuple[int, int]]) -> Encoded:
    """Encode `text` piece by piece, as prompt and response are in a rollout; the spans get mask 1.

    A tokenizer that puts a space before every text it gets (SentencePiece) would put one before each piece: there the
    whole text is encoded, and a token is trained when it lies inside a span.
    """
    alone = _encode(tokenizer, "a")
    if _encode(tokenizer, "\na")[-len(alone) :] != alone:
        return _encode_whole(tokenizer, text, spans)
    token_ids: list[int] = []
    loss_mask: list[int] = []
    position = 0
    for start, end in spans:
        for piece, trained in ((text[position:start], 0), (text[start:end], 1)):
            ids = _encode(tokenizer, piece)
            token_ids += ids
            loss_mask += [trained] * len(ids)
        position = end
    return Encoded(token_ids, loss_mask)


def _encode_whole(tokenizer: Any, text: str, spans: list[tuple[int, int]]) -> Encoded:
    if getattr(tokenizer, "is_fast", False):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        inside = [any(start <= a and b <= end for start, end in spans) for a, b in encoded["offset_mapping"]]
        return Encoded(list(encoded["input_ids"]), [int(flag) for flag in inside])
    token_ids = _encode(tokenizer, text)
    loss_mask = [0] * len(token_ids)
    for start, end in spans:  # no offsets: a token lies before a place where the text up to there begins with it as well
        first, last = (_common_prefix(token_ids, _encode(tokenizer, text[:place])) for place in (start, end))
        loss_mask[first:last] = [1] * (last - first)
    return Encoded(token_ids, loss_mask)
