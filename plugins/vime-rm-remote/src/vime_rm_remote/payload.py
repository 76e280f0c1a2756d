"""What is sent for a sample, and what an answer has to look like. Nothing here knows about HTTP."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NoReturn, cast

from vime.api import Sample

Reward = float | dict[str, float]


def sample_fields(sample: Sample) -> dict[str, Any]:
    """What the service is told of a sample: its prompt, response, label and metadata, and nothing else."""
    return {"prompt": sample.prompt, "response": sample.response, "label": sample.label, "metadata": sample.metadata}


def encode(samples: Sequence[Sample], *, group: bool) -> bytes:
    """The body of a request: a JSON object for one sample, a list of them for a group.

    Raises TypeError or ValueError, naming the sample and the field, for what JSON cannot hold.
    """
    fields = [sample_fields(sample) for sample in samples]
    try:
        return json.dumps(fields if group else fields[0], allow_nan=False, default=_as_plain).encode()
    except (TypeError, ValueError, RecursionError):
        for sample, parts in zip(samples, fields, strict=True):
            _name_culprit(sample, parts)
        raise


def decode(body: bytes, count: int | None) -> Reward | list[Reward]:
    """The reward that a body holds, or for a group of `count` samples the list of its rewards.

    Raises ValueError, saying what was expected and what came, for anything but finite numbers and dicts of them.
    """
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise ValueError("expected JSON") from None
    if count is None:
        return _reward(value, "")
    if not isinstance(value, list):
        raise ValueError(f"expected a list of {count} rewards, one for each sample of the group, got {_kind(value)}")
    answers = cast("list[Any]", value)
    if len(answers) != count:
        raise ValueError(f"expected a list of {count} rewards, one for each sample of the group, got {len(answers)}")
    return [_reward(one, f" at place {place}") for place, one in enumerate(answers)]


def _reward(value: Any, where: str) -> Reward:
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value)
        if not entries:
            raise ValueError(f"expected a number or an object of numbers{where}, got an empty object")
        return {key: _number(one, f"{where} under {key!r}") for key, one in entries.items()}
    return _number(value, where)


def _number(value: Any, where: str) -> float:
    if not isinstance(value, int | float):
        raise ValueError(f"expected a number{'' if where else ' or an object of numbers'}{where}, got {_kind(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number{where}")
    return number


def _kind(value: Any) -> str:
    names = {str: "a string", list: "a list", dict: "an object", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"expected a finite number, got {name}")


def _as_plain(value: Any) -> Any:
    """Arrays and numbers of numpy as lists and numbers. Raises TypeError for anything else."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be sent as JSON")


def _name_culprit(sample: Sample, fields: dict[str, Any]) -> None:
    """Raise for the first field of a sample that JSON cannot hold; of the metadata, for the entry."""
    entries = {f"metadata[{key!r}]": value for key, value in fields["metadata"].items()}
    for name, value in {**entries, **fields}.items():
        try:
            json.dumps(value, allow_nan=False, default=_as_plain)
        except (TypeError, ValueError, RecursionError) as error:
            raise type(error)(f"sample {sample.index}: its {name} cannot be sent to the reward service: {error}") from error
