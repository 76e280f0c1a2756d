"""Rollouts in files: what --save-debug-rollout-data writes and --load-debug-rollout-data trains on, here or elsewhere.

One parquet file a rollout, one row a sample. A row holds the whole Sample: what a table can hold in columns of its own
name, everything else as JSON text, so that pandas reads it and nothing is lost on the way back.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime.config.rules import ROLLOUT_PLACEHOLDER
from vime.errors import DataError, MissingExtraError
from vime.rollout.guards import check_train_output, normalise_train_output
from vime.rollout.metrics import batch_metrics
from vime.rollout.runner import Rollout
from vime.sample import Sample

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig

_JSON = {"prompt", "label", "reward", "metadata", "train_metadata", "multimodal_inputs"}
"""Fields whose values have no one type: JSON text, null for None."""
_EXTRA = "extra_attributes"
"""The column of attributes that are no fields of Sample."""


class SavedRollouts:
    """Gives the rollouts of files in the place of a RolloutRunner: nothing is generated, rewarded or filtered."""

    def __init__(self, config: RunConfig) -> None:
        assert config.load_debug_rollout_data is not None
        self.config, self.template = config, config.load_debug_rollout_data

    async def train(self, rollout_id: int, progress: object = None) -> Rollout:
        """The training rollout that was saved under this number, checked as one that was just made."""
        who = str(rollout_path(self.template, rollout_id))
        output = normalise_train_output(who, load_rollout(self.template, rollout_id))
        check_train_output(self.config, who, output, fewer_allowed=self.config.on_exhausted == "underfill")
        return Rollout(output.samples, [], batch_metrics(self.config, output.samples, []))


def rollout_path(template: str, rollout_id: int) -> Path:
    """The file of one rollout."""
    return Path(template.replace(ROLLOUT_PLACEHOLDER, str(rollout_id))).expanduser()


def count_rollouts(template: str) -> int:
    """How many rollouts are there, counted from 0."""
    count = 0
    while rollout_path(template, count).is_file():
        count += 1
    return count


def check_saved_rollouts(config: RunConfig) -> None:
    """Raise DataError where the files that a run is to train on are not there."""
    template = config.load_debug_rollout_data
    if template is None:
        return
    count = count_rollouts(template)
    if count < (1 if config.num_rollout is None else config.num_rollout):
        raise DataError(
            f"--load-debug-rollout-data {template}: there is no {rollout_path(template, count)}",
            hint=f"rollouts are counted from 0; train on fewer: --num-rollout {count}"
            if count
            else f"rollouts are counted from 0; write them with --save-debug-rollout-data {template}",
        )


def save_rollout(template: str, rollout_id: int, groups: list[list[Sample]]) -> Path:
    """Write the groups of one rollout, aside and renamed. Needs pyarrow."""
    import pyarrow
    import pyarrow.parquet as parquet

    path = rollout_path(template, rollout_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [_record(sample, number) for number, group in enumerate(groups) for sample in group]
    aside = path.with_suffix(".tmp")
    parquet.write_table(pyarrow.Table.from_pylist(records, schema=_schema(pyarrow)), aside, compression="zstd")
    aside.replace(path)
    return path


def load_rollout(template: str, rollout_id: int) -> list[list[Sample]]:
    """The groups of one rollout, as they were. Raises DataError for a file that `save_rollout` did not write."""
    path = rollout_path(template, rollout_id)
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtraError(f"{path} is a parquet file, and pyarrow is not installed", hint="pip install pyarrow") from None
    if not path.is_file():
        raise DataError(f"there is no {path} for rollout {rollout_id}", hint=f"train on fewer rollouts: --num-rollout {rollout_id}")
    try:
        records = parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet: {error}") from None
    groups: dict[int, list[Sample]] = {}
    for row, record in enumerate(records):
        try:
            number, sample = _sample(record)
        except (KeyError, ValueError, TypeError) as error:
            raise DataError(
                f"{path}, row {row}: it is not a sample of vime ({type(error).__name__}: {error})",
                hint="load files that --save-debug-rollout-data has written",
            ) from error
        groups.setdefault(number, []).append(sample)
    if not groups:
        raise DataError(f"{path} holds no samples")
    return [groups[number] for number in sorted(groups)]


def _schema(pyarrow: Any) -> Any:
    ids, numbers, text = pyarrow.list_(pyarrow.int64()), pyarrow.list_(pyarrow.float64()), pyarrow.string()
    types = {
        "group_index": pyarrow.int64(),
        "index": pyarrow.int64(),
        "rollout_id": pyarrow.int64(),
        "tokens": ids,
        "response_length": pyarrow.int64(),
        "loss_mask": ids,
        "rollout_log_probs": numbers,
        "weight_versions": ids,
        "remove_sample": pyarrow.bool_(),
        "teacher_log_probs": numbers,
        "non_generation_time": pyarrow.float64(),
    }
    fields = [(field.name, types.get(field.name, text)) for field in dataclasses.fields(Sample)]
    return pyarrow.schema([("group", pyarrow.int64()), *fields, (_EXTRA, text)])


def _record(sample: Sample, group: int) -> dict[str, Any]:
    values = sample.to_dict()
    names = {field.name for field in dataclasses.fields(Sample)}
    record = {name: _to_json(values[name], name) if name in _JSON else values[name] for name in names}
    extra = {name: value for name, value in values.items() if name not in names}
    return {"group": group, **record, _EXTRA: _to_json(extra, _EXTRA) if extra else None}


def _sample(record: dict[str, Any]) -> tuple[int, Sample]:
    number = record.pop("group")
    extra = record.pop(_EXTRA)
    values = {name: json.loads(value) if name in _JSON and value is not None else value for name, value in record.items()}
    return number, Sample.from_dict(values | (json.loads(extra) if extra else {}))


def _to_json(value: Any, name: str) -> str | None:
    if value is None:
        return None
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"the {name} of a sample cannot be saved: {error}", hint="keep plain JSON data in samples") from error
