"""samples/<split>_<step>.parquet: every sample of a rollout, kept or why not, for people and for the report."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.redact import Redactor
from vime.sample import VERDICTS, Sample

Dropped = Iterable[tuple[list[Sample], str]]
"""Groups that were not trained, each with its reason."""

TOKEN_BUDGET = 65_536
"""Response tokens of a file that are written one by one, with their log-probs and advantages; later rows have nulls there."""

TokenText = Callable[[Sequence[int]], list[str]]


@dataclass(frozen=True)
class TokenValues:
    """What training made of one sample, over its response; nan where the loss mask is 0."""

    log_probs: list[float] | None
    """The trainer's log-probs before the first step on this rollout; None where they were not computed."""
    advantages: list[float] | None


def token_texts(tokenizer: Any) -> TokenText:
    """The text of each token by itself, as the tokenizer decodes it; half a character is the sign U+FFFD."""
    known: dict[int, str] = {}

    def texts(ids: Sequence[int]) -> list[str]:
        for token in set(ids) - known.keys():
            piece = tokenizer.convert_ids_to_tokens([token])[0] if hasattr(tokenizer, "convert_ids_to_tokens") else ""
            # Decoding by itself would take the leading space of a SentencePiece token away.
            is_word = isinstance(piece, str) and piece.startswith("▁")
            known[token] = piece.replace("▁", " ") if is_word else str(tokenizer.decode([token]))
        return [known[token] for token in ids]

    return texts


LONGEST_NAME = 200
"""Bytes of a name before the step; file systems take 255 of a whole name."""


def samples_path(directory: Path, split: str, step: int) -> Path:
    """For example samples/train_000012.parquet. What does not fit into a file name is written as in an address: / as %2F.

    Of a name that is too long for a file system the rest is replaced by its digest.
    """
    name = re.sub(r"[^\w.+-]", _escaped, split)
    encoded = name.encode()
    if len(encoded) > LONGEST_NAME:
        digest = hashlib.sha256(encoded).hexdigest()[:16]
        name = f"{encoded[: LONGEST_NAME - 17].decode(errors='ignore')}-{digest}"
    return directory / f"{name}_{step:06d}.parquet"


def _escaped(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "replace"))


def write_samples(
    directory: Path,
    step: int,
    split: str,
    groups: Iterable[list[Sample]],
    dropped: Dropped = (),
    *,
    trained: Mapping[int, TokenValues] | None = None,
    text_of: TokenText | None = None,
    hides: Redactor | None = None,
) -> Path:
    """Write all samples of a rollout aside and rename. Needs pyarrow.

    `trained` has the trainer's numbers by the place of a sample among `groups`; `text_of` gives the text of each token.
    What `hides` knows is masked, and a response that it is found in has no tokens.
    """
    import pyarrow
    import pyarrow.parquet as parquet

    rows = [(sample, None) for group in groups for sample in group]
    rows += [(sample, reason) for group, reason in dropped for sample in group]
    records, budget, hides = [], TOKEN_BUDGET, hides or Redactor()
    for place, (sample, reason) in enumerate(rows):
        record = _record(sample, step, reason)
        shown = {key: hides.text(value) if isinstance(value, str) else value for key, value in record.items()}
        told, record = shown["response"] != record["response"], shown
        budget -= sample.response_length
        if budget >= 0 and not told:
            record |= _tokens(sample, (trained or {}).get(place), text_of)
        records.append(record)
    as_json = any(isinstance(record["reward"], dict) for record in records)
    if as_json:
        for record in records:
            record["reward"] = _text(record["reward"])
    schema = _schema(pyarrow, as_json=as_json)
    path = samples_path(directory, split, step)
    directory.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".tmp")
    parquet.write_table(pyarrow.Table.from_pylist(records, schema=schema), aside, compression="zstd")
    aside.replace(path)
    return path


def _schema(pyarrow: Any, *, as_json: bool) -> Any:
    """The columns; rewards are text where any of them is a dict."""
    return pyarrow.schema(
        [
            ("step", pyarrow.int64()),
            ("group_index", pyarrow.int64()),
            ("index", pyarrow.int64()),
            ("rollout_id", pyarrow.int64()),
            ("prompt", pyarrow.string()),
            ("response", pyarrow.string()),
            ("label", pyarrow.string()),
            ("reward", pyarrow.string() if as_json else pyarrow.float64()),
            ("status", pyarrow.string()),
            ("kept", pyarrow.bool_()),
            ("drop_reason", pyarrow.string()),
            ("removed", pyarrow.bool_()),
            ("rm_type", pyarrow.string()),
            ("prompt_length", pyarrow.int64()),
            ("response_length", pyarrow.int64()),
            ("weight_versions", pyarrow.list_(pyarrow.int64())),
            ("metadata", pyarrow.string()),
            ("verdicts", pyarrow.list_(pyarrow.struct([(name, pyarrow.string()) for name in ("hook", "plugin", "verdict")]))),
            ("response_tokens", pyarrow.list_(pyarrow.int32())),
            ("token_texts", pyarrow.list_(pyarrow.string())),
            ("loss_mask", pyarrow.list_(pyarrow.int8())),
            ("log_probs", pyarrow.list_(pyarrow.float32())),
            ("train_log_probs", pyarrow.list_(pyarrow.float32())),
            ("advantages", pyarrow.list_(pyarrow.float32())),
        ]
    )


def remove_after(directory: Path, step: int, *, keep_evaluation: bool = False) -> None:
    """Delete the files of later steps, which a resumed run writes anew; see `JsonlWriter.truncate_after`."""
    for path in directory.glob("*.parquet"):
        number = path.stem.rpartition("_")[2]
        limit = step + 1 if keep_evaluation and path.name.startswith("eval_") else step
        if number.isdigit() and int(number) > limit:
            path.unlink()


def _record(sample: Sample, step: int, drop_reason: str | None) -> dict[str, Any]:
    reward = sample.reward
    return {
        "step": step,
        "group_index": sample.group_index,
        "index": sample.index,
        "rollout_id": sample.rollout_id,
        "prompt": _text(sample.prompt),
        "response": _text(sample.response),
        "label": _text(sample.label),
        "reward": reward if reward is None or isinstance(reward, dict) else float(reward),
        "status": sample.status.value,
        "kept": drop_reason is None,
        "drop_reason": drop_reason,
        "removed": sample.remove_sample,
        "rm_type": _text(sample.metadata.get("rm_type")),
        "prompt_length": max(0, len(sample.tokens) - sample.response_length),
        "response_length": sample.response_length,
        "weight_versions": sample.weight_versions,
        "metadata": _text(sample.metadata) if sample.metadata else None,
        "verdicts": getattr(sample, VERDICTS, []),
    }


def _tokens(sample: Sample, trained: TokenValues | None, text_of: TokenText | None) -> dict[str, Any]:
    """The response token by token: None for what is not known of it."""
    ids = sample.tokens[max(0, len(sample.tokens) - sample.response_length) :]
    return {
        "response_tokens": ids,
        "token_texts": None if text_of is None else [_text(text) for text in text_of(ids)],
        "loss_mask": sample.loss_mask,
        "log_probs": sample.rollout_log_probs,
        "train_log_probs": None if trained is None else trained.log_probs,
        "advantages": None if trained is None else trained.advantages,
    }


def _text(value: Any) -> str | None:
    """Strings as they are (lone surrogates replaced), other values as JSON."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text.encode("utf-8", errors="replace").decode("utf-8")
