"""The dict that training hooks see and may change in place, and the way back into rows.

Keys are upstream's. Per-row tensors run over the whole response: entries where the loss mask is 0 hold 0.0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vime.errors import ContractError
from vime.sample import Sample
from vime.track.samples import TokenValues
from vime.train.batch import TrainBatch
from vime.train.microbatch import Row

TENSOR_KEYS = {
    "advantages": "advantages_M",
    "log_probs": "old_log_probs_M",
    "ref_log_probs": "ref_log_probs_M",
    "values": "values_M",
    "returns": "returns_M",
}

_ONE = {"advantages": "an advantage", "returns": "a return"}


def to_rollout_data(batch: TrainBatch, rows: Sequence[Row]) -> dict[str, Any]:
    """N entries for each key: lists for what the rollout gave, tensors for what training made of it.

    `log_probs` are those of the policy before its first step on this rollout; the key is missing where they are not
    computed (one step, fresh samples), `ref_log_probs` where there is no reference model, and `values` where there is no
    critic; without one, `returns` are the advantages.
    """
    data: dict[str, Any] = {
        "tokens": [list(tokens) for tokens in batch.tokens],
        "total_lengths": [len(tokens) for tokens in batch.tokens],
        "response_lengths": list(batch.response_lengths),
        "loss_masks": [list(mask) for mask in batch.loss_masks],
        "rewards": list(batch.rewards),
        "raw_reward": list(batch.raw_rewards),
        "truncated": list(batch.truncated),
        "sample_indices": list(batch.sample_indices),
        "rollout_ids": list(batch.rollout_ids),
    }
    if batch.rollout_log_probs is not None:
        data["rollout_log_probs"] = [torch.tensor(row, dtype=torch.float32) for row in batch.rollout_log_probs]
    for key, attribute in TENSOR_KEYS.items():
        if rows and all(getattr(row, attribute) is not None for row in rows):
            data[key] = [torch.zeros(length) for length in batch.response_lengths]
            for row in rows:
                data[key][row.index][_offsets(batch, row)] = getattr(row, attribute).detach().cpu().float()
    if "advantages" in data and "returns" not in data:
        data["returns"] = [values.clone() for values in data["advantages"]]
    return data | batch.extra


def apply_rollout_data(hook: Any, data: dict[str, Any], batch: TrainBatch, rows: list[Row]) -> None:
    """Take advantages, the returns of a critic, and loss masks back after a hook has run. Raises ContractError.

    Masks may only lose tokens.
    """
    where = f"{hook.label}: {hook.hook}"
    masks = [[int(flag) for flag in mask] for mask in _entries(where, data, "loss_masks", batch)]
    _take(where, data, "advantages", batch, rows)
    if any(row.returns_M is not None for row in rows):
        _take(where, data, "returns", batch, rows)
    for index, (before, after) in enumerate(zip(batch.loss_masks, masks, strict=True)):
        if any(new and not old for old, new in zip(before, after, strict=True)):
            raise ContractError(
                f"{where} set the loss mask of a token that was masked, in sample {batch.sample_indices[index]}",
                hint="a mask may only be cleared here; set it where the sample is generated",
            )
    for row in list(rows):
        _narrow(row, [masks[row.index][offset] for offset in _offsets(batch, row)])
        if not row.positions:
            rows.remove(row)
    batch.loss_masks = masks


def _take(where: str, data: dict[str, Any], key: str, batch: TrainBatch, rows: list[Row]) -> None:
    """Set the numbers of each row to what is under `key`."""
    entries = _entries(where, data, key, batch)
    for row in rows:
        values = _numbers(where, key, entries[row.index], batch.sample_indices[row.index])
        picked = values[_offsets(batch, row)]
        if not bool(torch.isfinite(picked).all()):
            raise ContractError(
                f"{where} left {_ONE[key]} that is not finite on sample {batch.sample_indices[row.index]}",
                hint="add a small number to what is divided by",
            )
        setattr(row, TENSOR_KEYS[key], picked.to(row.advantages_M.device))


def token_values(batch: TrainBatch, samples: Sequence[Sample]) -> dict[int, TokenValues]:
    """What training knew of each trained row's tokens, by the row's place in the batch: for people, not for training.

    Empty where a plugin made other rows out of the samples.
    """
    if batch.response_lengths != [sample.response_length for sample in samples]:
        return {}
    return {row.index: TokenValues(_spread(batch, row, row.seen_log_probs_M), _spread(batch, row, row.advantages_M)) for row in batch.rows}


def _spread(batch: TrainBatch, row: Row, values_M: Tensor | None) -> list[float] | None:
    """M numbers at their places in the response, nan between them."""
    if values_M is None:
        return None
    spread = [math.nan] * batch.response_lengths[row.index]
    for offset, value in zip(_offsets(batch, row), values_M.tolist(), strict=True):
        spread[offset] = value
    return spread


def _entries(where: str, data: dict[str, Any], key: str, batch: TrainBatch) -> Sequence[Any]:
    values = data.get(key)
    if not isinstance(values, list | tuple) or len(values) != len(batch):
        got = len(values) if isinstance(values, list | tuple) else type(values).__name__
        raise ContractError(
            f"{where}: {key} has {got} entries, expected a list of {len(batch)}, one per sample",
            hint=f"leave a list in rollout_data[{key!r}]; it is changed in place",
        )
    for index, (value, length) in enumerate(zip(values, batch.response_lengths, strict=True)):
        got = len(value) if hasattr(value, "__len__") and getattr(value, "shape", None) != () else type(value).__name__
        if got != length:
            raise ContractError(
                f"{where}: {key} of sample {batch.sample_indices[index]} has {got} entries, expected {length}",
                hint=f"rollout_data[{key!r}] has one number for each response token of each sample",
            )
    return values


def _numbers(where: str, key: str, values: Any, index: int) -> Tensor:
    try:
        return torch.as_tensor(values, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ContractError(
            f"{where} left {key} on sample {index} that are no numbers: {error}", hint="one number for each response token"
        ) from error


def _offsets(batch: TrainBatch, row: Row) -> list[int]:
    start = len(row.tokens) - batch.response_lengths[row.index]
    return [position - start for position in row.positions]


def _narrow(row: Row, flags: list[int]) -> None:
    if all(flags):
        return
    keep = [place for place, flag in enumerate(flags) if flag]
    row.positions = [row.positions[place] for place in keep]
    for name in ("advantages_M", "rollout_log_probs_M", "old_log_probs_M", "ref_log_probs_M", "seen_log_probs_M", "values_M", "returns_M"):
        value: Tensor | None = getattr(row, name)
        if value is not None:
            setattr(row, name, value[keep])
