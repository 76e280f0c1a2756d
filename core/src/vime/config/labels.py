"""Whether a run whose rewards may need the right answers says where they are. Reads no more than the first row of a file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig

USUAL = ("label", "answer", "solution", "target", "ground_truth")
"""Keys that data sets have the right answer under."""
_LONGEST_ROW = 1 << 20
_SLICE = re.compile(r"@\[.*\]$")


def label_doubts(config: RunConfig, *, look: bool) -> list[str]:
    """A warning for each data set without a label key, where rewards come from a plugin or a path function.

    With `look` the first row of the file is read, to name the key that is probably meant.
    """
    doubts: list[str] = []
    if config.loss_type == "sft_loss":
        return doubts
    reads_prompts = config.num_rollout != 0 and config.data_source_path is None and not config.debug_train_only
    if reads_prompts and config.prompt_data is not None and config.label_key is None and (config.plugin or config.custom_rm_path):
        doubts.append(_doubt("", config.prompt_data, look))
    unlabelled = (data for data in config.eval_datasets if data.label_key is None and (config.plugin or data.custom_rm_path))
    return [*doubts, *(_doubt(f"evaluation dataset {data.name!r}: ", data.path, look) for data in unlabelled)]


def _doubt(where: str, path: str, look: bool) -> str:
    found = next((key for key in USUAL if key in _first_keys(path)), None) if look else None
    more = f"; the data has {found!r}: --label-key {found}" if found else ""
    return f"{where}no --label-key: sample.label is None for every row{more}"


def _first_keys(path: str) -> list[str]:
    """The keys of the first row of a .jsonl or .csv file; none where it cannot be told. What is wrong with a file is not said here."""
    file = Path(_SLICE.sub("", path)).expanduser()
    try:
        with file.open(encoding="utf-8-sig") as lines:
            line = lines.readline(_LONGEST_ROW)
        match file.suffix.lower():
            case ".jsonl":
                row: Any = json.loads(line)
                return list(cast("dict[str, Any]", row)) if isinstance(row, dict) else []
            case ".csv":
                return [name.strip().strip('"') for name in line.split(",")]
            case _:
                return []
    except (OSError, ValueError, RecursionError):
        return []
