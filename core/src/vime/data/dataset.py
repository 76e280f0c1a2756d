"""Prompt files: every row is checked once at start, then read on demand.

`load_dataset("train.jsonl@[0:1000]", input_key="question", label_key="answer")[0]` is, for example,
`PromptRow(prompt="What is 2 + 3?", label="5", metadata={})`.
"""

from __future__ import annotations

import difflib
import json
import logging
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vime.data.files import open_rows
from vime.data.rows import BadRow, RowReader, json_type
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

    def parse(self, row: dict[str, Any]) -> tuple[str | list[dict[str, Any]], Any, dict[str, Any]]:
        """Prompt (not yet rendered), label and metadata of a row. Raises BadRow."""
        prompt = _check_prompt(_required(row, self.input_key, "--input-key"), self.input_key)
        label = _required(row, self.label_key, "--label-key") if self.label_key else None
        metadata = _as_json(row.get(self.metadata_key)) if self.metadata_key else None
        if metadata is None:
            metadata = {}
        elif not isinstance(metadata, dict):
            raise BadRow(f"{self.metadata_key!r} is a JSON {json_type(metadata)}, not an object")
        tools = _as_json(row.get(self.tool_key)) if self.tool_key else None
        if tools is not None:
            if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
                raise BadRow(f"{self.tool_key!r} is not a list of tool descriptions")
            metadata = {**metadata, "tools": _without_nulls(tools)}
        return prompt, label, metadata

    def optional_keys(self) -> list[str]:
        """Keys that rows may lack, but not all rows: the names that a user chose."""
        return [key for key, usual in ((self.metadata_key, "metadata"), (self.tool_key, "tools")) if key and key != usual]

    def keys(self) -> set[str]:
        return {key for key in (self.input_key, self.label_key, self.metadata_key, self.tool_key) if key}


class Dataset:
    """The usable rows of one data file, in file order. Made by `load_dataset`.

    In memory are byte offsets (text files) or Arrow columns (parquet), never all rows as Python objects.
    """

    def __init__(self, rows: RowReader, kept: Sequence[int], row_format: RowFormat, tokenizer: Any) -> None:
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

    def __getitem__(self, index: int) -> PromptRow:
        number = self._kept[index]
        try:
            prompt, label, metadata = self._format.parse(self._rows.read(number))
        except BadRow as error:
            raise DataError(
                f"{self._where(number)}: {error}; it was a good row when the run started",
                hint="leave a data file as it is while a run reads it",
            ) from None
        return PromptRow(self._render(prompt, metadata, number), label, metadata)

    def __iter__(self) -> Iterator[PromptRow]:
        for index in range(len(self)):
            yield self[index]

    def _where(self, number: int) -> str:
        return f"{self.source}, {self._rows.place(number)}"

    def _render(self, prompt: str | list[dict[str, Any]], metadata: dict[str, Any], number: int) -> str | list[dict[str, Any]]:
        if not self._format.apply_chat_template:
            return prompt
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        options = {"add_generation_prompt": True, **(self._format.apply_chat_template_kwargs or {})}
        if "tools" in metadata:
            options["tools"] = metadata["tools"]
        try:
            return self._tokenizer.apply_chat_template(messages, tokenize=False, **options)
        except Exception as error:  # a template is a program of the model's author, and raises what it likes
            raise DataError(
                f"{self._where(number)}: the chat template refuses this prompt: {error}",
                hint="check the roles of its messages, and --apply-chat-template-kwargs",
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
    may_be_empty: bool = False,
) -> Dataset:
    """Open PATH (.jsonl, .json, .parquet, .csv with an optional @[start:stop], or hf:NAME) and check all its rows.

    Raises DataError with file, line and the keys that exist for the first bad row (`skip_bad_rows` counts them in
    `Dataset.skipped_rows` instead), and when no row is left; `may_be_empty` allows a file without any. `max_prompt_len`
    (tokens) and `apply_chat_template` need the tokenizer.
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
    dataset = _checked(path, row_format, tokenizer, skip_bad_rows, may_be_empty=may_be_empty)
    if apply_chat_template and len(dataset):
        dataset[0]  # a template that refuses all prompts is found here and not in the first rollout
    if max_prompt_len is not None:
        dataset._drop_longer_than(max_prompt_len)
    return dataset


def check_prompt_data(config: Any) -> None:
    """Raise what is wrong with the training and evaluation data of a run, without a tokenizer or any heavy import.

    A data source of the user's own, and a run that trains on saved rollouts, have no training data to check.
    """
    own_source = getattr(config, "data_source_path", None) or getattr(config, "debug_train_only", False)
    if config.prompt_data is not None and not own_source:
        _checked(config.prompt_data, _format_of(config, config), None, config.skip_bad_rows)
    empty: list[str] = []
    for dataset in config.eval_datasets or ():
        try:
            rows = _checked(dataset.path, _format_of(dataset, config), None, config.skip_bad_rows, may_be_empty=True)
        except DataError as error:
            error.add_note(f"it is the data of the evaluation dataset {dataset.name!r}")
            raise
        if len(rows) == 0:
            empty.append(rows.source)
        elif dataset.min_eval_samples is not None:
            _check_enough(dataset, len(rows))
    if empty and len(empty) == len(config.eval_datasets):
        raise DataError(f"there is nothing to evaluate on: {', '.join(empty)} has no rows", hint="an evaluation needs rows in one dataset")
    for source in empty:
        logger.warning("%s has no rows: its evaluation has no score", source)


def _check_enough(dataset: Any, rows: int) -> None:
    """Raise ConfigError where a dataset cannot have as many rollouts as its min_eval_samples asks for."""
    n = dataset.n_samples_per_eval_prompt or 1
    if rows * n < dataset.min_eval_samples:
        raise ConfigError(
            f"evaluation dataset {dataset.name!r}: min_eval_samples is {dataset.min_eval_samples}, but {rows} rows x {n} samples "
            f"are {rows * n}",
            hint="lower it, or raise n_samples_per_eval_prompt",
        )


def _format_of(dataset: Any, config: Any) -> RowFormat:
    """The keys of an evaluation data set, each else the run's own."""
    return RowFormat(
        **{key: getattr(dataset, key) or getattr(config, key) for key in ("input_key", "label_key", "metadata_key", "tool_key")}
    )


def _checked(path: str, row_format: RowFormat, tokenizer: Any, skip_bad_rows: bool, *, may_be_empty: bool = False) -> Dataset:
    rows, selected = open_rows(path, row_format.keys(), may_be_empty=may_be_empty)
    if len(selected) == 0:
        return Dataset(rows, selected, row_format, tokenizer)
    unseen = set(row_format.optional_keys())
    bad: set[int] = set()
    for number in selected:
        try:
            row = rows.read(number)
            row_format.parse(row)
        except BadRow as error:
            if not skip_bad_rows:
                where = f"{rows.source}, {rows.place(number)}"
                raise DataError(f"{where}: {error}", hint=error.hint) from None
            bad.add(number)
        else:
            unseen.difference_update(row)
    if len(bad) == len(selected):
        raise DataError(
            f"{rows.source}: 0 of {len(selected)} rows left: all of them are bad", hint="see what is wrong without --skip-bad-rows"
        )
    if unseen:
        there = ", ".join(map(repr, rows.read(next(number for number in selected if number not in bad))))
        raise DataError(
            f"{rows.source}: no row has the key {min(unseen)!r}; the keys of the first row: {there}", hint="check the key's name"
        )
    if bad:
        logger.warning("%s: %d of %d rows are bad and left out", rows.source, len(bad), len(selected))
    kept = array("Q", (number for number in selected if number not in bad)) if bad else selected
    dataset = Dataset(rows, kept, row_format, tokenizer)
    dataset.skipped_rows = len(bad)
    return dataset


def _required(row: dict[str, Any], key: str, flag: str) -> Any:
    if key not in row:
        there = ", ".join(map(repr, row)) or "none"
        near = (difflib.get_close_matches(key, row, n=1) or ["KEY"])[0]
        raise BadRow(f"it has no key {key!r}; the keys that are there: {there}", hint=f"name the right key: {flag} {near}")
    return row[key]


def _check_prompt(value: Any, key: str) -> str | list[dict[str, Any]]:
    if isinstance(value, str):
        if not value:
            raise BadRow(f"{key!r} is empty")
        return value
    if not isinstance(value, list) or not value:
        kind = "an empty list" if value == [] else f"a JSON {json_type(value)}"
        raise BadRow(f"{key!r} is {kind}, not text or a list of chat messages")
    for position, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRow(f"message {position} of {key!r} is not an object with 'role' and 'content'")
        if "content" not in message and not message.get("tool_calls"):
            raise BadRow(f"message {position} of {key!r} has no 'content'; its keys: {', '.join(map(repr, message))}")
        content = message.get("content")
        if content is not None and not isinstance(content, str | list):
            raise BadRow(f"the content of message {position} of {key!r} is a JSON {json_type(content)}, not text")
    return [{name: part for name, part in message.items() if part is not None or name == "content"} for message in value]


def _as_json(value: Any) -> Any:
    """Tables and csv files hold objects as JSON text; "" and null mean that there is none."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else None
    except json.JSONDecodeError:
        return value


def _without_nulls(value: Any) -> Any:
    """Tables give every tool the keys of all tools, as nulls; chat templates would print them."""
    if isinstance(value, list):
        return [_without_nulls(part) for part in value]
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return value


def _token_lengths(prompts: list[str | list[dict[str, Any]]], tokenizer: Any) -> list[int]:
    texts = [
        prompt if isinstance(prompt, str) else tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        for prompt in prompts
    ]
    if callable(tokenizer):
        batch: Any = tokenizer(texts, add_special_tokens=False)
        return [len(ids) for ids in batch["input_ids"]]
    return [len(tokenizer.encode(text)) for text in texts]
