"""Where prompts come from: a cursor over the data file, and a buffer of groups that came back.

The position in the data, the counters and the buffer are one plain JSON value (`state_dict`), so that a resumed run
goes on with exactly the groups that an uninterrupted one would have seen.
"""

from __future__ import annotations

import copy
import json
import os
import random
from abc import abstractmethod
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from vime.data.dataset import Dataset, load_dataset
from vime.errors import CheckpointError, ConfigError, ContractError
from vime.rollout.buffer import take_first, take_with_filter
from vime.sample import Sample, note_verdict, rollouts

STATE_VERSION = 1


@runtime_checkable
class DataSource(Protocol):
    """What a run takes its prompts from. Derive from it, or write a class with these methods (`--data-source-path`)."""

    @abstractmethod
    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """At most `num_samples` groups of n_samples_per_prompt pending samples; fewer only when the data has ended."""
        ...

    @abstractmethod
    def add_samples(self, samples: list[list[Sample]]) -> None:
        """Take groups back, to be handed out again."""
        ...

    @abstractmethod
    def save(self, rollout_id: int) -> None:
        """Write the state after rollout `rollout_id`."""
        ...

    @abstractmethod
    def load(self, rollout_id: int | None = None) -> None:
        """Restore what `save` wrote."""
        ...

    @abstractmethod
    def __len__(self) -> int:
        """Number of prompts of one epoch."""
        ...


class RolloutDataSource(DataSource):
    """The prompts of `args.prompt_data`, epoch after epoch.

    Each epoch is in file order, or under `rollout_shuffle` permuted by (rollout_seed + epoch). With `num_epoch` and no
    `num_rollout` the source ends after so many epochs; otherwise it never does. Group and sample indices grow for ever.
    """

    def __init__(self, args: Any, *, tokenizer: Any = None) -> None:
        self.args = args
        self._tokenizer = tokenizer
        self.epoch_id = 0
        self.sample_offset = 0
        """Rows of the current epoch that were handed out."""
        self.sample_group_index = 0
        self.sample_index = 0
        self.rollout_id = 0
        """The rollout that is being made; the run sets it, the buffer filter gets it."""
        self.weight_version: int | None = None
        """The version of the weights that make it; the run sets it. `args.max_staleness` is counted from it."""
        self.metadata: dict[str, Any] = {}
        """For a data source of the user's own that derives from this one; saved with the state."""
        self.dataset: Dataset = self._load_dataset()
        self._order: tuple[int, array[int]] | None = None

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer; loaded at first use where the run passed none."""
        if self._tokenizer is None:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(self.args.hf_checkpoint)
        return self._tokenizer

    def _load_dataset(self) -> Dataset:
        args = self.args
        if not args.prompt_data:
            raise ConfigError("there is no training data", hint="name a file: --prompt-data FILE.jsonl")
        needs_tokenizer = args.apply_chat_template or args.rollout_max_prompt_len is not None
        return load_dataset(
            args.prompt_data,
            tokenizer=self.tokenizer if needs_tokenizer else None,
            input_key=args.input_key,
            label_key=args.label_key,
            metadata_key=args.metadata_key,
            tool_key=args.tool_key,
            apply_chat_template=args.apply_chat_template,
            apply_chat_template_kwargs=args.apply_chat_template_kwargs,
            max_prompt_len=args.rollout_max_prompt_len,
            skip_bad_rows=getattr(args, "skip_bad_rows", False),
        )

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def num_epoch(self) -> int | None:
        """Epochs after which the source ends, where the user set a number of them; None: it never ends."""
        args = self.args
        if getattr(args, "num_rollout", None) is not None or "num_epoch" not in getattr(args, "model_fields_set", {"num_epoch"}):
            return None
        return getattr(args, "num_epoch", None)

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        if num_samples < 0:
            raise ValueError(f"{num_samples} groups were asked for")
        groups = []
        while len(groups) < num_samples:
            row = self._next_row()
            if row is None:
                break
            groups.append(self._new_group(row))
        return groups

    def add_samples(self, samples: list[list[Sample]]) -> None:
        raise ContractError("RolloutDataSource has no buffer to put samples back into", hint="use RolloutDataSourceWithBuffer")

    def _next_row(self) -> int | None:
        if self.sample_offset >= len(self.dataset):
            self.epoch_id, self.sample_offset = self.epoch_id + 1, 0
        if self.num_epoch is not None and self.epoch_id >= self.num_epoch:
            return None
        row = self.sample_offset
        if self.args.rollout_shuffle:
            if self._order is None or self._order[0] != self.epoch_id:
                self._order = (self.epoch_id, permutation(len(self.dataset), self.args.rollout_seed + self.epoch_id))
            row = self._order[1][row]
        self.sample_offset += 1
        return row

    def _new_group(self, row: int) -> list[Sample]:
        """Samples of one prompt, which share no mutable part."""
        data = self.dataset[row]
        group = []
        for _ in range(self.args.n_samples_per_prompt):
            group.append(
                Sample(
                    group_index=self.sample_group_index,
                    index=self.sample_index,
                    prompt=copy.deepcopy(data.prompt),
                    label=copy.deepcopy(data.label),
                    metadata=copy.deepcopy(data.metadata),
                )
            )
            self.sample_index += 1
        self.sample_group_index += 1
        return group

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs to go on, as plain JSON data."""
        return {
            "version": STATE_VERSION,
            "epoch_id": self.epoch_id,
            "sample_offset": self.sample_offset,
            "sample_group_index": self.sample_group_index,
            "sample_index": self.sample_index,
            "dataset_size": len(self.dataset),
            "metadata": copy.deepcopy(self.metadata),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was called. Raises CheckpointError for a foreign state or other data."""
        if not isinstance(state, dict):
            raise CheckpointError(f"a data state is an object, and this is a {type(state).__name__}")
        if state.get("version") != STATE_VERSION:
            raise CheckpointError(f"a data state of version {state.get('version')!r} cannot be read; this vime writes {STATE_VERSION}")
        missing = [key for key in RolloutDataSource.state_dict(self) if key not in state]
        if missing:
            raise CheckpointError(f"the data state lacks {', '.join(map(repr, missing))}; it has {sorted(state)}")
        if state["dataset_size"] != len(self.dataset):
            raise CheckpointError(
                f"the position belongs to data of {state['dataset_size']} rows, and {self.dataset.source} has {len(self.dataset)}",
                hint="resume with the data that the run began with, or start a new run from its saved model: --hf-checkpoint DIR",
            )
        self.epoch_id = state["epoch_id"]
        self.sample_offset = state["sample_offset"]
        self.sample_group_index = state["sample_group_index"]
        self.sample_index = state["sample_index"]
        self.metadata = copy.deepcopy(state["metadata"])

    def save(self, rollout_id: int) -> None:
        """Write the state to `<args.save>/rollout/global_dataset_state_dict_<rollout_id>.json`, whole or not at all."""
        path = self._state_path(self.args.save, "--save", rollout_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".tmp")
        with aside.open("w", encoding="utf-8") as file:
            file.write(json.dumps(self.state_dict()))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)

    def load(self, rollout_id: int | None = None) -> None:
        """Read what `save` wrote below `args.load` (where none is given, `args.save`); the newest for None.

        Raises CheckpointError where there is no such state: a run never starts over in silence.
        """
        root = self.args.load if getattr(self.args, "load", None) not in (None, "auto") else self.args.save
        path = self._newest_state(root) if rollout_id is None else self._state_path(root, "--load", rollout_id)
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(
                f"there is no data state {path}", hint="name the folder that the run saved to, or start a new run without --load"
            ) from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"the data state {path} is damaged: {error}") from None
        self.load_state_dict(state)

    def _state_path(self, root: str | Path | None, flag: str, rollout_id: int) -> Path:
        if root is None:
            raise ConfigError("the data source has no folder for its state", hint=f"name it: {flag} DIR")
        return Path(root) / "rollout" / f"global_dataset_state_dict_{rollout_id}.json"

    def _newest_state(self, root: str | Path | None) -> Path:
        pattern = self._state_path(root, "--load", 0).with_name("global_dataset_state_dict_*.json")
        found = [path for path in pattern.parent.glob(pattern.name) if path.stem.rpartition("_")[2].isdigit()]
        return max(found, key=lambda path: int(path.stem.rpartition("_")[2]), default=pattern)

    def take_metrics(self) -> dict[str, float]:
        """Numbers since the last call, for the rollout's metrics (keys without namespace)."""
        return {"epoch": self.epoch_id + self.sample_offset / len(self.dataset)}


class RolloutDataSourceWithBuffer(RolloutDataSource):
    """A data source that also takes groups back, and hands those out before new prompts."""

    def __init__(self, args: Any, *, tokenizer: Any = None, buffer_filter: Callable[..., Any] | None = None) -> None:
        """`buffer_filter(args, rollout_id, buffer, num_samples)` chooses groups of the buffer; None takes the first ones."""
        super().__init__(args, tokenizer=tokenizer)
        self.buffer: list[list[Sample]] = []
        self.rollout_id: int | None = None
        """The rollout being filled, as the loop tells it; passed on to the buffer filter."""
        self.buffer_filter = buffer_filter
        """For a source of the user's own that derives from this one, the run sets the filter of the run."""
        self._discarded = 0
        self._stale = 0

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        if num_samples < 0:
            raise ValueError(f"{num_samples} groups were asked for")
        groups = self._from_buffer(num_samples)
        return groups + super().get_samples(num_samples - len(groups))

    def _from_buffer(self, num_samples: int) -> list[list[Sample]]:
        if self.buffer_filter is None:
            groups: list[list[Sample]] = []
            while self.buffer and len(groups) < num_samples:
                groups += self._fresh(take_first(self.buffer, num_samples - len(groups)))
            return groups
        self.buffer[:] = self._fresh(self.buffer)
        if not self.buffer or num_samples == 0:
            return []
        before = len(self.buffer)
        groups = take_with_filter(self.buffer_filter, self.args, self.rollout_id, self.buffer, num_samples)
        self._discarded += before - len(self.buffer) - len(groups)
        name = getattr(self.buffer_filter, "plugin", None) or getattr(self.buffer_filter, "__name__", "buffer_filter")
        for group in groups:
            note_verdict(group, "buffer_filter", name, "chosen")
        return groups

    def _fresh(self, groups: list[list[Sample]]) -> list[list[Sample]]:
        """Without those with a sample whose newest tokens are more than `max_staleness` weight versions old. Pending ones have no age."""
        limit = getattr(self.args, "max_staleness", None)
        if limit is None or self.weight_version is None:
            return groups
        oldest = self.weight_version - limit
        fresh = [group for group in groups if _version(group, oldest) >= oldest]
        self._stale += sum(map(len, groups)) - sum(map(len, fresh))
        return fresh

    def add_samples(self, samples: list[list[Sample]]) -> None:
        """Append groups to the buffer. Raises ContractError for what is not a whole group."""
        expected = self.args.n_samples_per_prompt
        for group in samples:
            if not isinstance(group, list) or not group or not all(isinstance(sample, Sample) for sample in group):
                raise ContractError(f"add_samples takes a list of groups (non-empty lists of Sample), and one group is {group!r:.120}")
            if len(rollouts(group)) != expected:
                raise ContractError(
                    f"group {group[0].group_index} has {len(rollouts(group))} rollouts; a group that goes back needs {expected}",
                    hint="give back whole groups, with --n-samples-per-prompt rollouts each",
                )
        self.buffer.extend(samples)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "buffer": [[plain_sample(sample) for sample in group] for group in self.buffer]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.buffer[:] = [[Sample.from_dict(sample) for sample in group] for group in state.get("buffer", [])]

    def take_metrics(self) -> dict[str, float]:
        """As the base; the groups that wait in the buffer, those that the buffer filter threw away, and the samples that were stale."""
        discarded, self._discarded = self._discarded, 0
        stale, self._stale = self._stale, 0
        counts = {"buffer_groups": len(self.buffer), "buffer_discarded": discarded, "samples_stale": stale}
        return super().take_metrics() | {key: float(count) for key, count in counts.items()}


def _version(group: list[Sample], default: int) -> int:
    """The version of the newest tokens of the sample that is furthest behind."""
    return min((max(sample.weight_versions) for sample in group if sample.weight_versions), default=default)


def permutation(n: int, seed: int) -> array[int]:
    """A shuffle of range(n) that is the same on every Python version.

    Fisher-Yates over `Random.random`, the only part of the random module whose sequence Python guarantees.
    """
    draw = random.Random(seed).random
    order = array("Q", range(n))
    for i in range(n - 1, 0, -1):
        j = int(draw() * (i + 1))
        order[i], order[j] = order[j], order[i]
    return order


def plain_sample(sample: Sample) -> dict[str, Any]:
    """The sample as JSON data, for a checkpoint. Raises ContractError, naming the field, for what a checkpoint cannot hold."""
    data = sample.to_dict()
    try:
        json.dumps(data)
    except (TypeError, ValueError):
        bad = next((key for key, value in data.items() if not _dumps(value)), "?")
        raise ContractError(
            f"sample {sample.index} in the buffer cannot be saved: its {bad} is not JSON data ({data.get(bad)!r:.80})",
            hint="a custom generate may put only numbers, strings, lists and dicts on a sample",
        ) from None
    return data


def _dumps(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
