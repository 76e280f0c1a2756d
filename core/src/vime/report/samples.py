"""Which samples a report shows, and how small it makes them: whole groups, spread over the run, within a budget of bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

MAX_ROLLOUTS = 40
"""Sample files of training that are opened; those of evaluations are three for each data set."""
MAX_TEXT = 6000
"""Characters of a prompt or response; the middle of longer ones is left out."""
MAX_METADATA = 400
MAX_TOKENS = 1024
"""Tokens of a sample that are shown one by one."""
GROUP_DETAIL = 48_000
"""Bytes for the tokens of one group, so that long responses leave room for other groups."""


@dataclass(frozen=True)
class SampleFile:
    """samples/<split>_<step>.parquet."""

    path: Path
    split: str
    step: int


@dataclass
class ShownSamples:
    """The groups that are embedded, and of how much they are a choice."""

    groups: list[dict[str, Any]] = field(default_factory=list)
    shown: int = 0
    total: int = 0
    rollouts_shown: int = 0
    rollouts_total: int = 0
    unreadable: list[str] = field(default_factory=list)
    """Names of files that are no parquet."""
    note: str | None = None
    """Why there are none."""


def shown_samples(folder: Path, budget: int, reward_key: str | None = None) -> ShownSamples:
    """Choose among the sample files of a run folder. `budget` is in bytes of JSON."""
    files = sample_files(folder / "samples")
    if not files:
        return ShownSamples(note="This run wrote no samples (--sample-every 0).")
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        return ShownSamples(note="Samples are not shown: reading them needs pyarrow (pip install pyarrow; then write the report again).")
    from pyarrow import ArrowException

    result = ShownSamples()
    for file in list(files):
        try:
            result.total += parquet.read_metadata(file.path).num_rows
        except (OSError, ArrowException):
            result.unreadable.append(file.path.name)
            files.remove(file)
    picked = spread_files(files)
    queues = [groups_by_interest(parquet.ParquetFile(file.path).read().to_pylist(), file, reward_key) for file in picked]
    left = budget
    while any(queues):
        for queue in queues:
            if not queue:
                continue
            group = compact_group(queue.pop(0), reward_key)
            size = len(json.dumps(group)) + 2
            if size > left:
                queue.clear()
                continue
            left -= size
            result.groups.append(group)
    result.groups.sort(key=lambda group: (group["split"] != "train", group["split"], group["step"], group["id"]))
    result.shown = sum(len(group["samples"]) for group in result.groups)
    result.rollouts_shown = len({group["step"] for group in result.groups if group["split"] == "train"})
    result.rollouts_total = sum(file.split == "train" for file in files)
    return result


def sample_files(directory: Path) -> list[SampleFile]:
    """All sample files, by split and step."""
    files: list[SampleFile] = []
    for path in directory.glob("*.parquet"):
        split, _, step = path.stem.rpartition("_")
        if split and step.isdigit():
            files.append(SampleFile(path, unquote(split), int(step)))
    return sorted(files, key=lambda file: (file.split, file.step))


def spread_files(files: Sequence[SampleFile]) -> list[SampleFile]:
    """First, last, and evenly between, of each split."""
    picked: list[SampleFile] = []
    for split in sorted({file.split for file in files}, key=lambda split: (split != "train", split)):
        mine = [file for file in files if file.split == split]
        count = min(len(mine), MAX_ROLLOUTS if split == "train" else 3)
        places = {round(number * (len(mine) - 1) / max(count - 1, 1)) for number in range(count)}
        picked += [mine[place] for place in sorted(places)]
    return picked


def groups_by_interest(rows: list[dict[str, Any]], file: SampleFile, reward_key: str | None) -> list[list[dict[str, Any]]]:
    """The groups of a file: one of each drop reason and each status first, then those with the widest rewards."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for place, row in enumerate(rows):
        # An evaluation has several answers to one prompt as groups of their own.
        key = row["prompt"] if file.split != "train" else row["group_index"] if row["group_index"] is not None else -place - 1
        groups.setdefault((key, row["drop_reason"]), []).append(row | {"split": file.split})
    spread = {key: _spread([reward_number(row["reward"], reward_key) for row in group]) for key, group in groups.items()}
    ordered = sorted(groups, key=lambda key: -spread[key])
    seen: set[Any] = set()
    first: list[Any] = []
    for key in ordered:
        kinds = {(row["status"], row["drop_reason"], row["removed"]) for row in groups[key]}
        if not kinds <= seen:
            first.append(key)
            seen |= kinds
    return [groups[key] for key in [*first, *(key for key in ordered if key not in first)]]


def compact_group(rows: list[dict[str, Any]], reward_key: str | None) -> dict[str, Any]:
    """A group as the page wants it: the prompt once, and no key that says nothing."""
    first = rows[0]
    detail = GROUP_DETAIL
    samples: list[dict[str, Any]] = []
    for row in rows:
        sample = compact_sample(row, reward_key)
        tokens = token_detail(row)
        size = len(json.dumps(tokens)) if tokens else 0
        if tokens and size <= detail:
            detail -= size
            sample["tokens"] = tokens
        samples.append(sample)
    return {
        "split": first["split"],
        "step": first["step"],
        "id": first["group_index"] if first["group_index"] is not None else first["index"],
        "prompt": clipped(first["prompt"] or "", MAX_TEXT),
        "label": clipped(first["label"] or "", MAX_TEXT),
        "samples": samples,
    }


def compact_sample(row: dict[str, Any], reward_key: str | None) -> dict[str, Any]:
    """One row without what stands with its group."""
    verdict = row["drop_reason"] or ("removed" if row["removed"] else "trained" if row["split"] == "train" else "evaluated")
    if row["status"] == "failed":
        verdict = "failed"
    sample = {
        "index": row["index"],
        "text": clipped(row["response"] or "", MAX_TEXT),
        "reward": reward_number(row["reward"], reward_key),
        "status": row["status"],
        "verdict": verdict,
        "length": row["response_length"],
    }
    if isinstance(row["reward"], str):
        sample["rewards"] = clipped(row["reward"], MAX_METADATA)
    if row["metadata"] and row["metadata"] != "{}":
        sample["metadata"] = clipped(row["metadata"], MAX_METADATA)
    if row.get("verdicts"):
        said = [f"{each['plugin']} ({each['hook']}): {each['verdict']}" for each in row["verdicts"]]
        sample["hooks"] = clipped("; ".join(said), MAX_METADATA)
    if len(set(row["weight_versions"] or ())) > 1:
        sample["versions"] = row["weight_versions"]
    return sample


def token_detail(row: dict[str, Any]) -> dict[str, Any] | None:
    """Texts, log-probs of the engine, their difference to the trainer's, and advantages; None where there are no texts.

    Files of older runs lack these columns. `advantage` is one number where all trained tokens have the same.
    """
    texts = row.get("token_texts")
    if not texts:
        return None
    count = min(len(texts), MAX_TOKENS)
    detail: dict[str, Any] = {"texts": texts[:count]}
    if count < len(texts):
        detail["left_out"] = len(texts) - count
    ours, theirs, advantages, mask = (row.get(key) for key in ("train_log_probs", "log_probs", "advantages", "loss_mask"))
    if theirs:
        detail["log_probs"] = [_short(value) for value in theirs[:count]]
    if ours and theirs:
        detail["differences"] = [_short(a - b) for a, b in zip(ours[:count], theirs[:count], strict=True)]
    if advantages:
        shown = [_short(value) for value in advantages[:count]]
        different = {value for value in shown if value is not None}
        if len(different) == 1:
            (detail["advantage"],) = different
        elif different:
            detail["advantages"] = shown
    if mask and not all(mask[:count]):
        detail["mask"] = mask[:count]
    return detail


def reward_number(reward: Any, reward_key: str | None) -> float | None:
    """The number that a reward is, also where the file holds dicts as text."""
    if isinstance(reward, str):
        try:
            reward = json.loads(reward)
        except ValueError:
            return None
        if isinstance(reward, dict):
            reward = reward.get(reward_key)
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        return None
    return _short(reward)


def clipped(text: str, limit: int) -> str:
    """The text, or its two ends with a word about what is left out between."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail]}\n[… {len(text) - limit:,} characters left out …]\n{text[-tail:]}"


def _spread(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return max(known) - min(known) if known else 0.0


def _short(value: float | None) -> float | None:
    """Three significant digits; nan, where the loss mask is 0, becomes None."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else float(f"{value:.3g}")
