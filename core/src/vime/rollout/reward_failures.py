"""Rewards that failed: how many, whose, in which way, and the first of each, of which the user is told."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from vime.errors import VimeError
from vime.isolation import IsolatedTimeout
from vime.rollout.reward_guard import BadRewardError, RewardTimeoutError, where
from vime.rollout.reward_worker import WorkerError
from vime.sample import note_verdict

if TYPE_CHECKING:
    from vime.sample import Sample

REASON = "_reward_failure"
"""Attribute of a sample whose reward failed: by whom, and in which way."""


class RewardFailures:
    """Counts failures by plugin and kind, and keeps a line on the first of each for whoever has a console."""

    def __init__(self, policy: str) -> None:
        self._outcome = {"drop": "are generated again, and dropped when that fails too", "zero": "get 0"}.get(policy, "end the run")
        self._counts: dict[bool, Counter[tuple[str, str]]] = {False: Counter(), True: Counter()}
        """Of training and of evaluations."""
        self._known: set[tuple[str, str]] = set()
        self._notices: list[str] = []

    def add(self, plugin: str, error: Exception, sample: Sample, *, evaluation: bool) -> None:
        """Count a failure, and remember of whom it is in the sample."""
        kind = _kind(error)
        self._counts[evaluation][plugin, kind] += 1
        note_verdict([sample], "custom_rm", plugin, f"failed: {kind}")
        setattr(sample, REASON, f"the reward {plugin!r} failed ({kind})")
        if (plugin, kind) in self._known:
            return
        self._known.add((plugin, kind))
        message = error.message if isinstance(error, VimeError) else str(error)
        outcome = "count as wrong" if evaluation else self._outcome
        self._notices.append(
            f"the reward {plugin!r} failed ({kind}) for {where(sample)}: {' '.join(message.split())[:300]}; "
            f"such samples {outcome}, and are counted in {'eval' if evaluation else 'rollout'}/reward_errors/{plugin}/{kind}"
        )

    def take_counts(self, *, evaluation: bool = False) -> dict[str, float]:
        """`reward_errors/<plugin>/<kind>` of training, or of evaluations, since the last call."""
        counts, self._counts[evaluation] = self._counts[evaluation], Counter()
        return {f"reward_errors/{plugin}/{kind}": float(count) for (plugin, kind), count in sorted(counts.items())}

    def take_notices(self) -> list[str]:
        """A line for each plugin and kind that has failed for the first time since the last call."""
        notices, self._notices = self._notices, []
        return notices


def _kind(error: Exception) -> str:
    kinds = {RewardTimeoutError: "timeout", IsolatedTimeout: "timeout", BadRewardError: "bad_value"}
    return error.kind if isinstance(error, WorkerError) else kinds.get(type(error), type(error).__name__)
