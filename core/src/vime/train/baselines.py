"""Default reward shaping: raw rewards to centred ones, group by group. Plain numbers, no tensors.

A *group* is the rollouts of one prompt. Rows that share a rollout are siblings, carry the same reward and count once.
Groups come from `group_index`, never from assuming equal sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

STD_EPSILON = 1e-6
"""Added to the standard deviation before the division."""

GroupBaseline = Callable[[Sequence[float]], list[float]]
"""The rewards of the R rollouts of a group -> the R shaped rewards."""


def subtract_mean(rewards_R: Sequence[float]) -> list[float]:
    """r_i - mean(r). Dr. GRPO (arXiv:2503.20783, section 3.2) and REINFORCE++ w/ Baseline (arXiv:2501.03262).

    A group of equal rewards is 0 exactly, whatever rounding the mean would suffer.
    """
    if max(rewards_R) == min(rewards_R):
        return [0.0] * len(rewards_R)
    mean = math.fsum(rewards_R) / len(rewards_R)
    return [reward - mean for reward in rewards_R]


def standardise(rewards_R: Sequence[float]) -> list[float]:
    """(r_i - mean(r)) / (std(r) + 1e-6), std unbiased. GRPO (arXiv:2402.03300, section 4.1.2).

    A group of one has no spread: 0. A group of equal rewards is 0 exactly.
    """
    if max(rewards_R) == min(rewards_R):
        return [0.0] * len(rewards_R)
    centred = subtract_mean(rewards_R)
    std = math.sqrt(math.fsum(value * value for value in centred) / (len(centred) - 1))
    return [value / (std + STD_EPSILON) for value in centred]


def leave_one_out(rewards_R: Sequence[float]) -> list[float]:
    """r_i - mean of the others. RLOO (arXiv:2402.14740, section 3.3). A group of one has no others: 0; one of equal rewards is 0."""
    if max(rewards_R) == min(rewards_R):
        return [0.0] * len(rewards_R)
    total, others = math.fsum(rewards_R), len(rewards_R) - 1
    return [reward - (total - reward) / others for reward in rewards_R]


def keep(rewards_R: Sequence[float]) -> list[float]:
    """The rewards as they are: REINFORCE++ and PPO centre advantages over the batch or with a critic instead."""
    return list(rewards_R)


def group_baseline(estimator: str, *, std_normalization: bool = True) -> GroupBaseline:
    """The baseline that belongs to an advantage estimator. Raises KeyError for an estimator that has none."""
    normalised = standardise if std_normalization else subtract_mean
    return {
        "grpo": normalised,
        "gspo": normalised,
        "cispo": normalised,
        "dr_grpo": subtract_mean,
        "reinforce_plus_plus_baseline": subtract_mean,
        "rloo": leave_one_out,
        "reinforce_plus_plus": keep,
        "ppo": keep,
    }[estimator]


def shape_rewards(
    rewards_N: Sequence[float | None],
    group_ids_N: Sequence[int],
    rollout_ids_N: Sequence[int],
    baseline: GroupBaseline,
) -> list[float]:
    """Apply `baseline` within each group, over rollouts. A row without a reward (None) is in no mean or std and gets 0."""
    reward_of_rollout: dict[int, float] = {}
    rollouts_of_group: dict[int, list[int]] = {}
    for reward, group, rollout in zip(rewards_N, group_ids_N, rollout_ids_N, strict=True):
        if reward is not None and rollout not in reward_of_rollout:
            reward_of_rollout[rollout] = reward
            rollouts_of_group.setdefault(group, []).append(rollout)
    shaped: dict[int, float] = {}
    for members in rollouts_of_group.values():
        shaped.update(zip(members, baseline([reward_of_rollout[rollout] for rollout in members]), strict=True))
    return [0.0 if reward is None else shaped[rollout] for reward, rollout in zip(rewards_N, rollout_ids_N, strict=True)]
