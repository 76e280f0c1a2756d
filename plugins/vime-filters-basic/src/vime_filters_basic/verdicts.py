"""What the group filters share: a group as its rollouts, each counted once."""

from __future__ import annotations

from typing import Any

from vime.api import Sample, Status, rollouts


def finished_rollouts(group: list[Sample]) -> list[list[Sample]]:
    """The rollouts of a group, in order, without their failed samples; a rollout that failed as a whole is left out."""
    alive = ([sample for sample in siblings if sample.status is not Status.FAILED] for siblings in rollouts(group))
    return [siblings for siblings in alive if siblings]


def rewards(args: Any, group: list[Sample]) -> list[float]:
    """One reward for each rollout of a group, in order; rollouts that failed or have no reward are left out.

    Siblings carry the same reward, that of their rollout. `args.reward_key` picks the value of dict rewards.
    """
    found: list[float] = []
    for siblings in finished_rollouts(group):
        scored = next((sample for sample in siblings if sample.reward is not None), None)
        if scored is not None:
            found.append(float(scored.get_reward_value(args)))
    return found
