"""Advantages by rank: in each group the best answer gets 1, the worst -1, ties the mean of their places.

Standardised rewards, as in GRPO, depend on how far rewards are apart; ranks only on their order. That helps where the
scale means little: grades of a judge, sums of parts, times. `post_process_rewards` gets all samples of a rollout at
once and goes by `group_index`, since groups may differ in size.
"""

from __future__ import annotations

from typing import Any

from vime.api import Sample, hookimpl, rollouts


class RankAdvantage:
    """Replaces the baseline of --advantage-estimator by ranks within the group."""

    @hookimpl
    def post_process_rewards(self, args: Any, samples: list[Sample]) -> tuple[list[float], list[float]]:
        """(raw rewards, ranks), one for each sample, in order. A failed sample has 0 in both; siblings share their rank."""
        groups: dict[int | None, list[Sample]] = {}
        for sample in samples:
            groups.setdefault(sample.group_index, []).append(sample)
        values: dict[int, tuple[float, float]] = {}
        for group in groups.values():
            scored = [siblings for siblings in rollouts(group) if siblings[0].reward is not None]
            raw = [float(siblings[0].get_reward_value(args)) for siblings in scored]
            for siblings, reward, rank in zip(scored, raw, ranks(raw), strict=True):
                values.update((id(sample), (reward, rank)) for sample in siblings)
        pairs = [values.get(id(sample), (0.0, 0.0)) for sample in samples]
        return [reward for reward, _ in pairs], [rank for _, rank in pairs]


def ranks(rewards: list[float]) -> list[float]:
    """Places from -1 (lowest) to 1 (highest), whose sum is 0; a single reward, or equal ones, get 0."""
    last = len(rewards) - 1
    if last < 1:
        return [0.0] * len(rewards)
    places = [sum(other < one for other in rewards) - sum(other > one for other in rewards) for one in rewards]
    return [place / last for place in places]
