"""Reward post-processing with one mistake each, and sound ones."""

from __future__ import annotations

from typing import Any

from vime.api import hookimpl
from zoo.base import Wrong

HOOK = "post_process_rewards"


def rewards_of(args: Any, samples: Any) -> list[float]:
    return [0.0 if sample.reward is None else sample.get_reward_value(args) for sample in samples]


# Sound


def mean_only(args, samples):
    groups: dict[Any, list[float]] = {}
    for sample in samples:
        if sample.reward is not None:
            groups.setdefault(sample.group_index, []).append(sample.get_reward_value(args))
    raw = rewards_of(args, samples)
    means = {index: sum(values) / len(values) for index, values in groups.items()}
    return raw, [0.0 if sample.reward is None else reward - means[sample.group_index] for sample, reward in zip(samples, raw, strict=True)]


def whole_batch(args, samples):
    """One mean and one spread for all."""
    raw = rewards_of(args, samples)
    mean = sum(raw) / len(raw)
    spread = max(raw) - min(raw)
    return raw, [(reward - mean) / (spread + 1e-6) for reward in raw]


class Ranked:
    """Ranks within a group instead of rewards."""

    @hookimpl
    def post_process_rewards(self, args, samples):
        raw = rewards_of(args, samples)
        shaped = []
        for sample, reward in zip(samples, raw, strict=True):
            group = [other for peer, other in zip(samples, raw, strict=True) if peer.group_index == sample.group_index]
            shaped.append(sum(reward > other for other in group) - sum(reward < other for other in group))
        return raw, shaped


SOUND = (mean_only, whole_batch, Ranked)


# Wrong


def one_list(args, samples):
    return mean_only(args, samples)[1]


def one_for_each_group(args, samples):
    raw, shaped = mean_only(args, samples)
    return raw, shaped[:: args.n_samples_per_prompt]


def swapped(args, samples):
    raw, shaped = mean_only(args, samples)
    return shaped, raw


def no_epsilon(args, samples):
    raw, shaped = mean_only(args, samples)
    result = []
    for sample, value in zip(samples, shaped, strict=True):
        group = [other for peer, other in zip(samples, shaped, strict=True) if peer.group_index == sample.group_index]
        result.append(value / (sum(other**2 for other in group) / len(group)) ** 0.5)
    return raw, result


def equal_parts(args, samples):
    raw, size = rewards_of(args, samples), args.n_samples_per_prompt
    shaped: list[float] = []
    for start in range(0, len(raw), size):
        part = raw[start : start + size]
        shaped += [reward - sum(part) / len(part) for reward in part]
    return raw, shaped


def nan_for_failed(args, samples):
    raw = rewards_of(args, samples)
    return raw, [
        float("nan") if sample.reward is None else shaped for sample, shaped in zip(samples, mean_only(args, samples)[1], strict=True)
    ]


def any_value_of_a_dict(args, samples):
    raw = [sum(sample.reward.values()) if isinstance(sample.reward, dict) else sample.reward or 0.0 for sample in samples]
    return raw, [reward - sum(raw) / len(raw) for reward in raw]


def writes_back(args, samples):
    raw, shaped = mean_only(args, samples)
    for sample, value in zip(samples, shaped, strict=True):
        sample.reward = value
    return raw, shaped


def refused(name: str, target: Any, check: str, message: str) -> Wrong:
    """The run refuses it with the same message."""
    label = f"plugin {target.__name__!r}" if isinstance(target, type) else f"path function {target.__module__}:{target.__name__}"
    whole = f"{label}: {message}"
    return Wrong(name, target, check, whole, core=whole, hook=None if isinstance(target, type) else HOOK)


def quiet(name: str, target: Any, check: str, message: str, core: str | None = None, also: tuple[str, ...] = ()) -> Wrong:
    """The run goes on with it, or says something else."""
    return Wrong(name, target, check, message, core=core, hook=None if isinstance(target, type) else HOOK, also=also)


WRONG = (
    refused("one list instead of two", one_list, "post-process-result", "post_process_rewards returned 12 values; expected a pair"),
    refused(
        "a number for each group",
        one_for_each_group,
        "post-process-result",
        "post_process_rewards: rewards has 3 entries, expected 12 (one per sample)",
    ),
    quiet("shaped rewards first", swapped, "post-process-raw", "raw_rewards has -0.0625 for sample 0, whose reward is 0.5"),
    quiet(
        "a division by a spread of zero",
        no_epsilon,
        "post-process-equal-rewards",
        f"raised ZeroDivisionError: float division by zero (post_process.py:{no_epsilon.__code__.co_firstlineno + 5})",
        also=("post-process-groups",),
    ),
    quiet(
        "groups told by their place in the list",
        equal_parts,
        "post-process-groups",
        "with groups of 3, 1, 4, 2, 2 samples, sample 0 of group 0 gets 0, and -0.125 when the groups come in the opposite order",
    ),
    quiet(
        "NaN for a failed sample",
        nan_for_failed,
        "post-process-failed",
        "path function zoo.post_process:nan_for_failed: post_process_rewards: rewards[1] is nan, for sample 1 (group 0)",
    ),
    quiet(
        "the values of a dict added up",
        any_value_of_a_dict,
        "post-process-dict-rewards",
        "it gives other numbers for {'accuracy': r} with --reward-key accuracy than for r",
    ),
    quiet(
        "rewards written into the samples",
        writes_back,
        "post-process-pure",
        "path function zoo.post_process:writes_back: post_process_rewards changed what it was shown: "
        "sample 0 (group 0): reward 0.5 -> -0.0625 (and 11 more changes)",
    ),
)
