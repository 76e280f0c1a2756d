"""Prompt files: every row is checked once at start, then read on demand.

rows = load_dataset("train.jsonl@[0:1000]", input_key="question", label_key="answer")
rows[0]  # PromptRow(prompt="What is 2 + 3?", label="5", metadata={})
"""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vime.data.rows import BadRow, RowReader, open_rows
from vime.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

_TOKENIZE_BATCH = 512


@dataclass
class PromptRow:
    """One prompt as the rollout takes it. The caller owns it: nothing in it is shared with other rows or calls."""

    prompt: str | list[dict[str, Any]]
    """Text (also the rendered chat template), or chat messages where no template was asked for."""
    label: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RowFormat:
    """Which keys of a row mean what, and how its prompt is rendered."""

    input_key: str = "input"
    label_key: str | None = None
    metadata_key: str | None = "metadata"
    """A key that some or all rows may lack. A name other than the usual one must be in at least one row."""
    tool_key: str | None = "tools"
    """As metadata_key: a list of tool descriptions (or its JSON text) for the chat template, kept in metadata["tools"]."""
    apply_chat_template: bool = False
    apply_chat_template_kwargs: dict[str, Any] | None = None

    def parse(self, row: dict[str, Any], where: str) -> tuple[str | list[dict[str, Any]], Any, dict[str, Any]]:
        """Prompt (not yet rendered), label and metadata of a row. Raises BadRow."""
        prompt = _check_prompt(_required(row, self.input_key, "--input-key", where), self.input_key, where)
        label = _required(row, self.label_key, "--label-key", where) if self.label_key else None
        metadata = _as_json(row.get(self.metadata_key) if self.metadata_key else None)
        if metadata is None:
            metadata = {}
        if not isinstance(metadata, dict):
            raise BadRow(where, f"{self.metadata_key!r} is a {type(metadata).__name__}, not an object")
        tools = _as_json(row.get(self.tool_key) if self.tool_key else None)
        if tools is not None:
            if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
                raise BadRow(where, f"{self.tool_key!r} is not a list of tool descriptions")
            metadata = {**metadata, "tools": _without_nulls(tools)}
        for key, value in ((self.label_key, label), (self.metadata_key, metadata)):
            if not _is_json(value):
                raise BadRow(where, f"{key!r} holds a value that JSON does not have ({value!r:.80})")
        return prompt, label, metadata

    def optional_keys(self) -> list[str]:
        """Keys that rows may lack, but not all rows: the names that a user chose."""
        return [key for key, usual in ((self.metadata_key, "metadata"), (self.tool_key, "tools")) if key and key != usual]

    def keys(self) -> set[str]:
        return {key for key in (self.input_key, self.label_key, self.metadata_key, self.tool_key) if key}


class Dataset(Sequence[PromptRow]):
    """The usable rows of one data file, in file order. Made by `load_dataset`.

    In memory are byte offsets (text files) or Arrow columns (parquet), never all rows as Python objects.
    """

    def __init__(self, rows: RowReader, kept: array[int], row_format: RowFormat, tokenizer: Any) -> None:
        self._rows = rows
        self._kept = kept
        self._format = row_format
        self._tokenizer = tokenizer
        self.skipped_rows = 0
        """Bad rows that `skip_bad_rows` left out."""
        self.dropped_long = 0
        """Rows whose prompt is longer than `max_prompt_len` tokens."""

    @property
    def source(self) -> str:
        return self._rows.source

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: int) -> PromptRow:  # type: ignore[override]
        row = self._kept[index]
        try:
            prompt, label, metadata = self._format.parse(self._rows.read(row), self._rows.place(row))
        except BadRow as error:
            raise DataError(
                f"{self.source}, {error}; it was a good row when the run started", hint="do not change a data file while a run reads it"
            ) from None
        return PromptRow(_copy(self._render(prompt, metadata, self._rows.place(row))), _copy(label), _copy(metadata))

    def __iter__(self) -> Iterator[PromptRow]:
        for index in range(len(self)):
            yield self[index]

    def _render(self, prompt: str | list[dict[str, Any]], metadata: dict[str, Any], where: str) -> str | list[dict[str, Any]]:
        if not self._format.apply_chat_template:
            return prompt
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        options = {"add_generation_prompt": True, **(self._format.apply_chat_template_kwargs or {})}
        try:
            return self._tokenizer.apply_chat_template(messages, tools=metadata.get("tools"), tokenize=False, **options)
        except Exception as error:  # templates are programs of the model's author; the row and file make the error usable
            raise DataError(
                f"{self.source}, {where}: the chat template refuses this prompt: {error}",
                hint="check the roles of its messages and --apply-chat-template-kwargs",
            ) from error

    def _drop_longer_than(self, limit: int) -> None:
        """Keep the rows whose prompt has at most `limit` tokens."""
        before, kept = len(self), array("Q")
        for start in range(0, before, _TOKENIZE_BATCH):
            numbers = range(start, min(start + _TOKENIZE_BATCH, before))
            lengths = _token_lengths([self[i].prompt for i in numbers], self._tokenizer)
            kept.extend(self._kept[i] for i, length in zip(numbers, lengths, strict=True) if length <= limit)
        self._kept, self.dropped_long = kept, before - len(kept)
        if not kept:
            raise DataError(
                f"{self.source}: 0 of {before} rows left: every prompt is longer than {limit} tokens",
                hint="raise --rollout-max-prompt-len, or use data with shorter prompts",
            )
        if self.dropped_long:
            logger.warning(
                "%s: %d of %d rows left out, their prompts are longer than %d tokens", self.source, self.dropped_long, before, limit
            )


def load_dataset(
    path: str,
    *,
    tokenizer: Any = None,
    input_key: str = "input",
    label_key: str | None = None,
    metadata_key: str | None = "metadata",
    tool_key: str | None = "tools",
    apply_chat_template: bool = False,
    apply_chat_template_kwargs: dict[str, Any] | None = None,
    max_prompt_len: int | None = None,
    skip_bad_rows: bool = False,
) -> Dataset:
    """Open PATH (.jsonl, .json, .parquet, .csv with an optional @[start:stop], or hf:NAME) and check all its rows.

    Raises DataError with file, line and the keys that exist for the first bad row (`skip_bad_rows` counts them in
    `Dataset.skipped_rows` instead), and when no row is left. `max_prompt_len` (tokens) and `apply_chat_template` need
    the tokenizer.
    """
    row_format = RowFormat(input_key, label_key, metadata_key, tool_key, apply_chat_template, apply_chat_template_kwargs)
    if tokenizer is None and (apply_chat_template or max_prompt_len is not None):
        raise ConfigError(
            f"{path}: a chat template or a prompt limit needs the model's tokenizer", hint="name the model: --hf-checkpoint MODEL"
        )
    if apply_chat_template and not getattr(tokenizer, "chat_template", True):
        raise ConfigError(
            "the tokenizer has no chat template", hint="leave out --apply-chat-template, or use a model that was trained for chat"
        )
    dataset = _checked(path, row_format, tokenizer, skip_bad_rows)
    if max_prompt_len is not None:
        dataset._drop_longer_than(max_prompt_len)
    return dataset


def check_prompt_data(config: Any) -> None:
    """Raise what is wrong with the training and evaluation data of a run, without a tokenizer or any heavy import."""
    if config.prompt_data is not None:
        _checked(config.prompt_data, _format_of(config), None, config.skip_bad_rows)
    for dataset in config.eval_datasets or ():
        _checked(dataset.path, _format_of(dataset), None, config.skip_bad_rows)


def _format_of(config: Any) -> RowFormat:
    return RowFormat(config.input_key, config.label_key, config.metadata_key, config.tool_key)


def _checked(path: str, row_format: RowFormat, tokenizer: Any, skip_bad_rows: bool) -> Dataset:
    rows, selected = open_rows(path, row_format.keys())
    dataset = Dataset(rows, array("Q"), row_format, tokenizer)
    unseen = set(row_format.optional_keys())
    for number in selected:
        try:
            row = rows.read(number)
            row_format.parse(row, rows.place(number))
        except BadRow as error:
            if not skip_bad_rows:
                raise DataError(f"{rows.source}, {error}", hint="correct the row, or leave such rows out: --skip-bad-rows") from None
            dataset.skipped_rows += 1
            continue
        if unseen:
            unseen.difference_update(row)
        dataset._kept.append(number)
    if not dataset:
        raise DataError(
            f"{rows.source}: 0 of {len(selected)} rows left: all of them are bad",
            hint="leave out --skip-bad-rows to see what is wrong with the first",
        )
    if unseen:
        raise DataError(
            f"{rows.source}: no row has the key {sorted(unseen)[0]!r}",
            hint=f"the last row has {', '.join(map(repr, rows.read(selected[-1])))}",
        )
    if dataset.skipped_rows:
        logger.warning("%s: %d of %d rows are bad and left out", rows.source, dataset.skipped_rows, len(selected))
    return dataset


def _required(row: dict[str, Any], key: str, flag: str, where: str) -> Any:
    if key not in row:
        there = ", ".join(map(repr, row)) or "none"
        raise BadRow(where, f"it has no key {key!r} ({flag}); the keys that are there: {there}")
    return row[key]


def _check_prompt(value: Any, key: str, where: str) -> str | list[dict[str, Any]]:
    if isinstance(value, str):
        if not value:
            raise BadRow(where, f"{key!r} is empty")
        return value
    if not isinstance(value, list) or not value:
        raise BadRow(
            where, f"{key!r} is {'an empty list' if value == [] else f'a {type(value).__name__}'}, not text or a list of chat messages"
        )
    for position, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRow(where, f"message {position} of {key!r} is not an object with 'role' and 'content'")
        if "content" not in message and not message.get("tool_calls"):
            raise BadRow(where, f"message {position} of {key!r} has no 'content'; its keys: {', '.join(map(repr, message))}")
        if not isinstance(message.get("content"), str | list | None):
            raise BadRow(where, f"the content of message {position} of {key!r} is a {type(message['content']).__name__}, not text")
    return [{name: part for name, part in message.items() if part is not None or name == "content"} for message in value]


def _as_json(value: Any) -> Any:
    """Tables and csv files hold objects as JSON text; "" and null mean that there is none."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else None
    except json.JSONDecodeError:
        return value


def _is_json(value: Any) -> bool:
    if value is None or isinstance(value, str | int | float):
        return True
    if isinstance(value, list):
        return all(map(_is_json, value))
    return isinstance(value, dict) and all(isinstance(key, str) and _is_json(part) for key, part in value.items())


def _without_nulls(value: Any) -> Any:
    """Tables give every tool the keys of all tools, as nulls; chat templates would print them."""
    if isinstance(value, list):
        return [_without_nulls(part) for part in value]
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return value


def _copy(value: Any) -> Any:
    """A deep copy of plain JSON data."""
    if isinstance(value, list):
        return [_copy(part) for part in value]
    if isinstance(value, dict):
        return {key: _copy(part) for key, part in value.items()}
    return value


def _token_lengths(prompts: list[str | list[dict[str, Any]]], tokenizer: Any) -> list[int]:
    texts = [
        prompt if isinstance(prompt, str) else tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        for prompt in prompts
    ]
    if callable(tokenizer):
        return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    return [len(tokenizer.encode(text)) for text in texts]
