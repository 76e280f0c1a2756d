"""From the groups of a rollout to the rows of a training batch. Lists only: tensors begin at the micro-batch.

Legend: N rows (samples), T tokens of a row (prompt then response), R response tokens of a row.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from vime.errors import ContractError, TrainerError
from vime.rollout.unchanged import watched
from vime.sample import Sample, Status, note_verdict, rollouts
from vime.train.baselines import group_baseline, shape_rewards


@dataclass
class TrainBatch:
    """N rows, in the order of the groups.

    `rewards` are shaped (they become advantages), `raw_rewards` are what the reward function gave. A row that is not
    trained (removed, failed, without a reward) keeps its place with a mask of zeros: it has no term in the loss and no
    place in a denominator. Rows of one rollout (siblings) share a `rollout_ids` entry and count as one.
    """

    tokens: list[list[int]]
    """N x T."""
    response_lengths: list[int]
    loss_masks: list[list[int]]
    """N x R, 0 or 1."""
    rewards: list[float]
    raw_rewards: list[float]
    truncated: list[int]
    sample_indices: list[int]
    rollout_ids: list[int]
    rollout_log_probs: list[list[float]] | None = None
    """N x R, the engine's log-probs of the sampled tokens; None where the rollout has none (SFT)."""
    weight_versions: list[list[int]] = field(default_factory=list)
    """The weight versions that generated each row; empty where unknown, which counts as current."""
    rollout_id: int = 0
    extra: dict[str, list[Any]] = field(default_factory=dict)
    """Further per-row lists of a `convert_samples_to_train_data` plugin, each of length N."""
    rows: list[Any] = field(default_factory=list)
    """The microbatch.Row of each trained row, once the trainer has made them: what the sample files tell of training."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def trained_rows(self) -> list[int]:
        """Indices of the rows that have at least one token in the loss."""
        return [row for row, mask in enumerate(self.loss_masks) if any(mask)]


TRAIN_DATA_KEYS = ("tokens", "response_lengths", "rewards", "raw_reward", "truncated", "sample_indices", "loss_masks")
"""What `convert_samples_to_train_data` must return, each a list with one entry per row."""


def build_train_batch(config: Any, plugins: Any, groups: list[list[Sample]], *, rollout_id: int = 0) -> TrainBatch:
    """Shape the rewards and lay the samples out as rows.

    Hooks: `post_process_rewards(args, samples) -> (raw_rewards, rewards)` and
    `convert_samples_to_train_data(args, samples) -> dict`, each replacing the built-in one. Raises ContractError, with
    the plugin's name, for a result of the wrong length or with numbers that are not finite.
    """
    try:
        return _build(config, plugins, groups, rollout_id)
    except Exception as error:
        error.add_note(f"in the training batch of rollout {rollout_id}")
        raise


def _build(config: Any, plugins: Any, groups: list[list[Sample]], rollout_id: int) -> TrainBatch:
    samples = [sample for group in groups for sample in group]
    if not samples:
        raise TrainerError(
            "the rollout returned no samples, so there is nothing to train on", hint="look at the filters and the data source"
        )
    group_ids, rollout_ids = _identify(groups)
    raw_rewards, rewards = _post_process_rewards(config, plugins, samples, group_ids, rollout_ids)
    hook = plugins.claimed("convert_samples_to_train_data") if plugins is not None else None
    if hook is None:
        batch = _rows(config, samples, raw_rewards, rewards, rollout_ids)
    else:
        with watched(config, hook, samples):
            data = hook.run(args=config, samples=samples)
        batch = _rows_of_plugin(hook, data, rollout_ids)
    batch.rollout_id = rollout_id
    _check_rows(batch, hook)
    return batch


def _identify(groups: list[list[Sample]]) -> tuple[list[int], list[int]]:
    """Per row: the number of its group (by `group_index`, else by position) and of its rollout."""
    group_ids: list[int] = []
    rollout_ids: list[int] = []
    known: dict[tuple[str, int], int] = {}
    next_rollout = 0
    for position, group in enumerate(groups):
        number_of = {id(sample): number for number, members in enumerate(rollouts(group)) for sample in members}
        for sample in group:
            key = ("position", position) if sample.group_index is None else ("index", sample.group_index)
            group_ids.append(known.setdefault(key, len(known)))
            rollout_ids.append(next_rollout + number_of[id(sample)])
        next_rollout += len(set(number_of.values()))
    return group_ids, rollout_ids


def _post_process_rewards(
    config: Any, plugins: Any, samples: list[Sample], group_ids: list[int], rollout_ids: list[int]
) -> tuple[list[float], list[float]]:
    hook = plugins.claimed("post_process_rewards") if plugins is not None else None
    if hook is not None:
        with watched(config, hook, samples):
            result = hook.run(args=config, samples=samples)
        raw, shaped = check_post_processed(hook.label, result, samples)
        for sample, value in zip(samples, shaped, strict=True):
            note_verdict([sample], hook.hook, hook.plugin, f"{value:.6g}")
        return raw, shaped
    values = [_reward(config, sample) for sample in samples]
    raw = [0.0 if value is None else value for value in values]
    if config.loss_type == "sft_loss" or not config.rewards_normalization:
        return raw, list(raw)
    for row, sample in enumerate(samples):
        if sample.status is Status.FAILED or (config.exclude_removed_from_baseline and sample.remove_sample):
            values[row] = None
    baseline = group_baseline(config.advantage_estimator, std_normalization=not config.disable_grpo_std_normalization)
    return raw, shape_rewards(values, group_ids, rollout_ids, baseline)


def _reward(config: Any, sample: Sample) -> float | None:
    if sample.reward is None:
        return None
    value = sample.get_reward_value(config)
    if value is None:
        return None
    if not math.isfinite(value):
        raise ContractError(f"sample {sample.index}: the reward is {value!r}", hint="return a finite number, or see --on-reward-error")
    return float(value)


def check_post_processed(who: str, result: Any, samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """What post_process_rewards returned, as (raw_rewards, rewards): two lists with a finite float for each sample."""
    where = f"{who}: post_process_rewards"
    hint = "return (raw_rewards, rewards), each with one number per sample"
    if not isinstance(result, tuple | list):
        raise ContractError(f"{where} returned {type(result).__name__}; expected a pair", hint=hint)
    if len(result) != 2:
        raise ContractError(f"{where} returned {len(result)} values; expected a pair", hint=hint)
    names = [f"sample {sample.index} (group {sample.group_index})" for sample in samples]
    raw, rewards = (_checked_numbers(where, name, part, names) for name, part in zip(("raw_rewards", "rewards"), result, strict=True))
    return raw, rewards


def _checked_numbers(where: str, name: str, values: Any, names: Sequence[str]) -> list[float]:
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ContractError(f"{where}: {name} is a {type(values).__name__}", hint="return a list of numbers")
    if len(values) != len(names):
        raise ContractError(
            f"{where}: {name} has {len(values)} entries, expected {len(names)} (one per sample)", hint="keep the order of the samples"
        )
    if all(type(value) is float and math.isfinite(value) for value in values):
        return list(values)
    for position, (value, about) in enumerate(zip(values, names, strict=True)):
        if not isinstance(value, Real) or not math.isfinite(value):
            hint = "every entry must be a finite number" + (": value.item()" if hasattr(value, "item") else "")
            raise ContractError(f"{where}: {name}[{position}] is {value!r:.80}, for {about}", hint=hint)
    return [float(value) for value in values]


def _rows(config: Any, samples: list[Sample], raw: list[float], rewards: list[float], rollout_ids: list[int]) -> TrainBatch:
    needs_reward = config.loss_type != "sft_loss"
    with_log_probs = [sample.rollout_log_probs is not None for sample in samples]
    return TrainBatch(
        tokens=[list(sample.tokens) for sample in samples],
        response_lengths=[sample.response_length for sample in samples],
        loss_masks=[_mask(sample, needs_reward) for sample in samples],
        rewards=rewards,
        raw_rewards=raw,
        truncated=[int(sample.status is Status.TRUNCATED) for sample in samples],
        sample_indices=[-1 if sample.index is None else sample.index for sample in samples],
        rollout_ids=rollout_ids,
        rollout_log_probs=[list(sample.rollout_log_probs or []) for sample in samples] if all(with_log_probs) else None,
        weight_versions=[list(sample.weight_versions) for sample in samples],
    )


def _mask(sample: Sample, needs_reward: bool) -> list[int]:
    if sample.remove_sample or sample.status is Status.FAILED or (needs_reward and sample.reward is None):
        return [0] * sample.response_length
    return [1] * sample.response_length if sample.loss_mask is None else list(sample.loss_mask)


def _rows_of_plugin(hook: Any, data: Any, rollout_ids: list[int]) -> TrainBatch:
    where = f"{hook.label}: convert_samples_to_train_data"
    if not isinstance(data, Mapping):
        raise ContractError(
            f"{where} returned {type(data).__name__}; expected a dict", hint=f"return a dict with the keys {', '.join(TRAIN_DATA_KEYS)}"
        )
    missing = [key for key in TRAIN_DATA_KEYS if data.get(key) is None]
    if missing:
        raise ContractError(
            f"{where} left out {', '.join(missing)}", hint=f"the keys must be {', '.join(TRAIN_DATA_KEYS)}; it returned {sorted(data)}"
        )
    count = len(data["tokens"]) if hasattr(data["tokens"], "__len__") else -1
    for key, value in data.items():
        if value is not None and (not hasattr(value, "__len__") or len(value) != count):
            got = f"{len(value)} entries" if hasattr(value, "__len__") else type(value).__name__
            expected = "a list" if count < 0 else f"{count} (one per row, as tokens has)"
            raise ContractError(f"{where}: {key} has {got}, expected {expected}", hint="give every key one entry for each row")
    known = {*TRAIN_DATA_KEYS, "rollout_ids", "rollout_log_probs", "weight_versions"}
    default_ids = rollout_ids if len(rollout_ids) == count else list(range(count))
    names = [f"row {row}" for row in range(count)]

    def integers(key: str, default: list[int] | None = None) -> list[int]:
        if default is not None and data.get(key) is None:
            return default
        values = list(data[key])
        if all(type(value) is int for value in values):
            return values
        return [_integer(where, f"{key}[{row}]", value) for row, value in enumerate(values)]

    def lists(key: str) -> list[list[Any]]:
        rows = list(data[key])
        if all(type(row) is list for row in rows):
            return [row[:] for row in rows]
        return [_listed(where, f"{key}[{number}]", row) for number, row in enumerate(rows)]

    return TrainBatch(
        tokens=lists("tokens"),
        response_lengths=integers("response_lengths"),
        loss_masks=lists("loss_masks"),
        rewards=_checked_numbers(where, "rewards", data["rewards"], names),
        raw_rewards=_checked_numbers(where, "raw_reward", data["raw_reward"], names),
        truncated=integers("truncated"),
        sample_indices=integers("sample_indices"),
        rollout_ids=integers("rollout_ids", default_ids),
        rollout_log_probs=None if data.get("rollout_log_probs") is None else lists("rollout_log_probs"),
        weight_versions=[[]] * count if data.get("weight_versions") is None else lists("weight_versions"),
        extra={key: list(value) for key, value in data.items() if key not in known and value is not None},
    )


def _integer(where: str, name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ContractError(f"{where}: {name} is {value!r:.80}; expected an int", hint="int(value)") from None


def _listed(where: str, name: str, values: Any) -> list[Any]:
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, list | tuple):
        raise ContractError(f"{where}: {name} is a {type(values).__name__}; expected a list", hint="one list of numbers for each row")
    return list(values)


def _check_rows(batch: TrainBatch, hook: Any = None) -> None:
    """Lengths within each row, once, where an error can still name the sample, and the plugin that laid out the rows."""

    def refuse(row: int, message: str) -> None:
        message = f"sample {batch.sample_indices[row]}: {message}"
        if hook is None:
            raise TrainerError(message)
        hint = "tokens are the prompt and then the response; masks and log-probs are over the response"
        raise ContractError(f"{hook.label}: {hook.hook}: {message}", hint=hint)

    for row, tokens in enumerate(batch.tokens):
        length, mask = batch.response_lengths[row], batch.loss_masks[row]
        if not 0 <= length <= len(tokens) or (length == len(tokens) and length and any(mask)):
            refuse(row, f"a response of {length} tokens in a row of {len(tokens)}; at least one prompt token must come first")
        if len(mask) != length:
            refuse(row, f"loss_mask has {len(mask)} entries for a response of {length} tokens")
        if batch.rollout_log_probs is not None and len(batch.rollout_log_probs[row]) != length:
            refuse(row, f"{len(batch.rollout_log_probs[row])} rollout log-probs for a response of {length} tokens")
