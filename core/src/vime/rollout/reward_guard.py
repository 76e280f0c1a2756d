"""What a reward may be: checks of single values and of a batch, and the last `\\boxed{}` of a response."""

from __future__ import annotations

import inspect
import math
import numbers
from dataclasses import dataclass, field
from typing import Any

from vime.errors import ContractError
from vime.sample import TOTAL, Sample, rollouts

Reward = float | dict[str, Any]


class BadRewardError(ContractError):
    """A reward function returned something that is not a reward. Counted as "bad_value"."""


class RewardTimeoutError(ContractError):
    """A reward took longer than `--reward-timeout`. Counted as "timeout"."""


def where(sample: Sample) -> str:
    """The sample as an error names it."""
    return f"sample {sample.index}" if sample.group_index is None else f"sample {sample.index} (group {sample.group_index})"


def check_number(value: object, who: str, what: str, sample: Sample) -> float:
    """`value` as a float: a finite real number, a numpy scalar, or a bool as 0 or 1. Raises BadRewardError otherwise."""
    if type(value) is float and math.isfinite(value):
        return value
    if any(cls.__module__ == "numpy" and cls.__name__ == "generic" for cls in type(value).__mro__):
        value = value.item()  # type: ignore[attr-defined]
    if isinstance(value, numbers.Real):
        try:
            number = float(value)
        except OverflowError:  # a whole number beyond all floats
            number = math.inf
        if math.isfinite(number):
            return number
        raise BadRewardError(
            f"{who} returned {number} {what} for {where(sample)}; expected a finite number", hint="return 0.0 where nothing can be scored"
        )
    got, hint = f"{type(value).__name__} {value!r:.80}", "return a number or a dict of numbers"
    if value is None:
        got, hint = "None", "return 0.0 where nothing can be scored; look for a path through the function without a return"
    elif hasattr(value, "item") and hasattr(value, "shape"):
        got, hint = f"a {type(value).__name__} of shape {tuple(value.shape)}", "return a plain number: value.item()"  # type: ignore[attr-defined]
    raise BadRewardError(f"{who} returned {got} {what} for {where(sample)}; expected a finite number or a dict", hint=hint)


def check_reward(value: object, who: str, sample: Sample, keys: tuple[str, ...]) -> Reward:
    """One reward, normalised: a float, or a dict whose values under `keys` (the configured reward keys) are floats."""
    if not isinstance(value, dict):
        return check_number(value, who, "as the reward", sample)
    if not value:
        raise BadRewardError(
            f"{who} returned an empty dict for {where(sample)}", hint="return a number, or a dict with the value to train on"
        )
    return {key: check_number(part, who, f"under {key!r}", sample) if key in keys else part for key, part in value.items()}


def check_rewards(values: object, who: str, samples: list[Sample]) -> list[object]:
    """What a group function returned, as a list with one entry per sample. The entries are still to be checked."""
    group = f"group {samples[0].group_index} (samples {', '.join(str(sample.index) for sample in samples)})"
    if not isinstance(values, list | tuple):
        got = "None" if values is None else type(values).__name__
        hint = "values.tolist()" if hasattr(values, "tolist") else "return a list with one reward per sample, in their order"
        raise BadRewardError(f"{who} returned {got} for {group}; expected a list of {len(samples)} rewards", hint=hint)
    if len(values) != len(samples):
        raise BadRewardError(
            f"{who} returned a list of the wrong length for {group}: expected {len(samples)} rewards, got {len(values)}",
            hint="return one reward per sample, in their order",
        )
    return list(values)


def discard(value: object) -> None:
    """Close coroutines that nobody will await, of which Python would warn from whatever runs when they are collected."""
    for each in value if isinstance(value, list | tuple) else [value]:
        if inspect.iscoroutine(each):
            each.close()


@dataclass
class RewardShape:
    """Holds all rewards of a run to one shape per data set: all numbers, or all dicts with the same keys."""

    first: dict[str, tuple[tuple[str, ...] | None, str, str]] = field(default_factory=dict)
    """By data set: the keys (None for a number), whose they were, and the sample that had them first."""

    def check(self, scope: str, reward: Reward, who: str, sample: Sample) -> None:
        """Raises BadRewardError, naming both samples, where `reward` differs from the first of its data set.

        Where the two come from different rewards, neither is at fault, and a ContractError says so: rows that name
        rewards which do not go together are a matter of configuration.
        """
        keys = tuple(sorted(map(str, reward))) if isinstance(reward, dict) else None
        expected, first_who, witness = self.first.setdefault(scope, (keys, who, where(sample)))
        if keys != expected and who != first_who:
            raise ContractError(
                f"{who} returned {_shape(keys)} for {where(sample)}, and {first_who} {_shape(expected)} for {witness}",
                hint="rows of one data set need rewards of one kind: all numbers, or all dicts with the same keys",
            )
        if keys != expected:
            raise BadRewardError(
                f"{who} returned {_shape(keys)} for {where(sample)}, but {_shape(expected)} for {witness}",
                hint="return a number for every sample, or a dict with the same keys for every sample",
            )

    def zero(self, scope: str, keys: tuple[str, ...]) -> Reward:
        """The reward of a sample whose reward failed, under `--on-reward-error zero`: of the shape of the others, or with `keys`."""
        names = self.first[scope][0] if scope in self.first else tuple(key for key in keys if key != TOTAL)
        return dict.fromkeys(names, 0.0) if names else 0.0


def _shape(keys: tuple[str, ...] | None) -> str:
    return "a number" if keys is None else f"a dict with the keys {list(keys)}"


def check_key(reward: Reward, key: str | None, who: str, sample: Sample, flag: str) -> None:
    """Dict rewards need a reward key, or a `total`, and numbers must not have another. ContractError: a matter of configuration."""
    if isinstance(reward, dict) and key is None and TOTAL in reward:
        return
    if isinstance(reward, dict) and key is None:
        raise ContractError(
            f"{who} returned a dict with the keys {sorted(map(str, reward))} for {where(sample)}, and no reward key is set",
            hint=f"name the value to train on: {flag} {next(iter(reward))}",
        )
    if isinstance(reward, dict) and key not in reward:
        raise ContractError(
            f"{who} returned a dict without {key!r} for {where(sample)}; it has {sorted(map(str, reward))}",
            hint=f"give one of these keys to {flag}",
        )
    if not isinstance(reward, dict) and key not in (None, TOTAL):
        raise ContractError(
            f"{who} returned {reward!r} for {where(sample)}, but {flag} is {key!r}", hint=f"leave out {flag}, or return a dict"
        )


def check_siblings(samples: list[Sample]) -> None:
    """All samples of one rollout carry the same reward."""
    for siblings in rollouts(samples):
        rewards = [sibling.reward for sibling in siblings if sibling.reward is not None]
        if any(reward != rewards[0] for reward in rewards):
            raise ContractError(
                f"the samples of rollout {siblings[0].rollout_id} (group {siblings[0].group_index}) have different rewards: {rewards}",
                hint="set sample.reward on all of them in custom_generate: it is the reward of the whole rollout; "
                "a shape_reward has to add the same to each of them",
            )


def last_boxed(text: str) -> str:
    """The content of the last `\\boxed{...}` with balanced braces; an empty string where there is none."""
    marker = r"\boxed{"
    start = text.rfind(marker)
    while start != -1:
        depth, position = 1, start + len(marker)
        while position < len(text) and depth:
            if text[position] == "\\":
                position += 1
            elif text[position] in "{}":
                depth += 1 if text[position] == "{" else -1
            position += 1
        if depth == 0:
            return text[start + len(marker) : position - 1].strip()
        start = text.rfind(marker, 0, start)
    return ""
