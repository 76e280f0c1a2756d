"""What is wrong with a run, as its metrics tell: rules over the lines of metrics.jsonl, for console, watch and report.

A rule says nothing until it is sure: one odd rollout is no alert. Thresholds were chosen so that runs which learn stay
silent (the quickstart, whose entropy falls to a fifth while its reward rises).
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

IN_A_ROW = 3
"""Rollouts that must agree before a rule about single rollouts speaks."""
MIN_GROUPS = 12
"""Groups that must have one reward throughout: of two groups a rollout, that happens by chance."""
WINDOW = 5
"""Rollouts that a mean is taken over, and that make up the start that a trend is compared with."""
REWARD_ERROR_SHARE = 0.05
FILTERED_SHARE = 0.7
TRUNCATED_SHARE = 0.5
ENTROPY_SHARE = 0.05
"""Of the start's entropy; below it a policy hardly explores."""
ENTROPY_FLOOR = 0.02
"""Nats; a policy that starts below has nothing to lose."""
DIFFERENCE_GROWTH = 3.0
DIFFERENCE_FLOOR = 0.02
"""Nats per token: below it the ratio of trainer and engine is off by 2% at most, as bfloat16 alone may cause."""


@dataclass
class Alert:
    """One finding: from the rollout where it was sure to the last one that it held in."""

    kind: str
    step: int
    last_step: int
    metric: str
    value: float
    threshold: float
    what: str
    """One sentence with the numbers, for the moment when it was found."""
    look_at: str

    @property
    def text(self) -> str:
        """The line of the console. Rollouts count from 0 in metrics.jsonl, and steps from 1 on the console."""
        return f"step {self.step + 1}: {self.what} ({self.metric} {self.value:.3g}, threshold {self.threshold:g}); {self.look_at}"


@dataclass
class _Finding:
    """What a rule says of one rollout. `holds` None: this line says nothing about it."""

    holds: bool | None = None
    metric: str = ""
    value: float = 0.0
    threshold: float = 0.0
    what: str = ""
    look_at: str = ""


class AlertWatch:
    """Fed with metrics in their order; returns an alert once when it is found, and keeps them all."""

    def __init__(self) -> None:
        self.alerts: list[Alert] = []
        self._rules = [_EqualRewards(), _RewardErrors(), _Entropy(), _Difference(), _Filtered(), _Truncated(), _Skipped()]
        self._active: dict[str, Alert] = {}

    def feed(self, step: int, metrics: Mapping[str, float]) -> list[Alert]:
        """The alerts that begin with this line (or these lines of one step)."""
        new: list[Alert] = []
        for rule in self._rules:
            finding = rule.look(metrics)
            if finding.holds is None:
                continue
            active = self._active.get(rule.kind)
            if not finding.holds:
                self._active.pop(rule.kind, None)
            elif active is not None:
                active.last_step = step
            else:
                alert = Alert(rule.kind, step, step, finding.metric, finding.value, finding.threshold, finding.what, finding.look_at)
                self._active[rule.kind] = alert
                self.alerts.append(alert)
                new.append(alert)
        return new


def find_alerts(lines: Iterable[Mapping[str, Any]]) -> list[Alert]:
    """All alerts of the lines of a metrics.jsonl, in the order in which they were found."""
    watch = AlertWatch()
    for line in lines:
        watch.feed(line["step"], line)
    return watch.alerts


@dataclass
class _Rule:
    kind = ""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def look(self, metrics: Mapping[str, float]) -> _Finding:
        raise NotImplementedError

    def in_a_row(self) -> bool:
        """Whether the last IN_A_ROW entries are all true."""
        return len(self.recent) >= IN_A_ROW and all(list(self.recent)[-IN_A_ROW:])


class _EqualRewards(_Rule):
    kind = "equal_rewards"

    def look(self, metrics: Mapping[str, float]) -> _Finding:
        if "rollout/groups_kept" not in metrics or "rollout/raw_reward" not in metrics:
            return _Finding()
        counts = dict(_below(metrics, "rollout/zero_std/count_"))
        flat, groups = sum(counts.values()), metrics["rollout/groups_kept"] + metrics.get("rollout/groups_dropped", 0)
        self.recent.append(groups if flat >= groups else 0)
        enough = sum(list(self.recent)[-IN_A_ROW:]) >= MIN_GROUPS
        where = max(counts, key=lambda reward: counts[reward], default="")
        return _Finding(
            self.in_a_row() and enough,
            "rollout/zero_std/count_*",
            flat,
            groups,
            f"in {IN_A_ROW} rollouts in a row every group had one reward throughout (mostly {where}), so nothing is learned",
            "read samples of such groups: is the reward right, are the prompts too hard or solved already?",
        )


class _RewardErrors(_Rule):
    kind = "reward_errors"

    def look(self, metrics: Mapping[str, float]) -> _Finding:
        generated = metrics.get("rollout/samples_generated")
        if not generated:
            return _Finding()
        errors = dict(_below(metrics, "rollout/reward_errors/"))
        self.recent.append(sum(errors.values()) / generated)
        share = statistics.fmean(self.recent)
        worst = max(errors, key=lambda name: errors[name], default="")
        return _Finding(
            len(self.recent) >= IN_A_ROW and share > REWARD_ERROR_SHARE,
            "rollout/reward_errors/* per sample",
            share,
            REWARD_ERROR_SHARE,
            f"{share:.0%} of the rewards fail" + (f", most of them as {worst}" if worst else ""),
            "filter the report's samples by status failed, and call the reward on one of them by hand",
        )


class _Entropy(_Rule):
    kind = "entropy_collapse"

    def __init__(self) -> None:
        super().__init__()
        self._start: list[float] = []

    def look(self, metrics: Mapping[str, float]) -> _Finding:
        entropy = metrics.get("train/entropy_loss")
        if entropy is None:
            return _Finding()
        if len(self._start) < WINDOW:
            self._start.append(entropy)
            return _Finding()
        start = statistics.fmean(self._start)
        threshold = ENTROPY_SHARE * start
        self.recent.append(start >= ENTROPY_FLOOR and entropy < threshold)
        return _Finding(
            self.in_a_row(),
            "train/entropy_loss",
            entropy,
            threshold,
            f"entropy fell to {entropy / start:.1%} of its start ({start:.3g} nats): the policy hardly explores" if start else "",
            "compare evaluation at temperature 1 with greedy; try a lower --lr, --entropy-coef, or --eps-clip-high above --eps-clip",
        )


class _Difference(_Rule):
    kind = "logprob_difference"

    def __init__(self) -> None:
        super().__init__()
        self._start: list[float] = []

    def look(self, metrics: Mapping[str, float]) -> _Finding:
        key = "train/train_rollout_logprob_abs_diff"
        if key not in metrics:
            return _Finding()
        self.recent.append(metrics[key])
        if len(self._start) < WINDOW:
            self._start.append(metrics[key])
        value = statistics.median(self.recent)
        # A start that is bad already does not grow; it is judged by the floor's multiple.
        threshold = max(DIFFERENCE_FLOOR, min(DIFFERENCE_GROWTH * statistics.median(self._start), 5 * DIFFERENCE_FLOOR))
        return _Finding(
            len(self.recent) == WINDOW and value > threshold,
            key,
            value,
            threshold,
            "trainer and engine disagree about the log-probs of the sampled tokens, and the ratio is biased by as much",
            "compare --engine-dtype and --train-dtype, lower --check-weights-every, or correct with --use-tis",
        )


class _Filtered(_Rule):
    kind = "most_filtered"

    def look(self, metrics: Mapping[str, float]) -> _Finding:
        if "rollout/groups_dropped" not in metrics:
            return _Finding()
        dropped = metrics["rollout/groups_dropped"]
        judged = dropped + metrics.get("rollout/groups_kept", 0)
        self.recent.append(dropped / judged if judged else 0.0)
        share = statistics.fmean(self.recent)
        reasons = dict(_below(metrics, "rollout/dynamic_filter/drop_"))
        most = max(reasons, key=lambda name: reasons[name], default="")
        return _Finding(
            len(self.recent) >= IN_A_ROW and share > FILTERED_SHARE,
            "rollout/groups_dropped share",
            share,
            FILTERED_SHARE,
            f"{share:.0%} of the groups are filtered out" + (f", most of them as {most}" if most else ""),
            "generation is spent on them: choose prompts of fitting difficulty, or look at the filter",
        )


class _Truncated(_Rule):
    kind = "truncation"

    def look(self, metrics: Mapping[str, float]) -> _Finding:
        ratio = metrics.get("rollout/truncated_ratio")
        if ratio is None:
            return _Finding()
        self.recent.append(ratio > TRUNCATED_SHARE)
        return _Finding(
            self.in_a_row(),
            "rollout/truncated_ratio",
            ratio,
            TRUNCATED_SHARE,
            f"{ratio:.0%} of the responses are cut off",
            "raise --rollout-max-response-len, or read the ends of such responses: do they repeat themselves?",
        )


class _Skipped(_Rule):
    kind = "skipped_steps"

    def look(self, metrics: Mapping[str, float]) -> _Finding:
        skipped = metrics.get("train/skipped_steps")
        if skipped is None:
            return _Finding()
        self.recent.append(skipped)
        in_a_row = 0
        for value in reversed(self.recent):
            if not value:
                break
            in_a_row += 1
        return _Finding(
            in_a_row >= 2,
            "train/skipped_steps",
            skipped,
            0,
            "optimizer steps were skipped in 2 rollouts in a row: loss or gradient is not finite, or no token is trained",
            "look at train/grad_norm and train/loss before it, at samples that were removed, and at --lr",
        )


def _below(metrics: Mapping[str, float], prefix: str) -> Iterator[tuple[str, float]]:
    return ((key.removeprefix(prefix), value) for key, value in metrics.items() if key.startswith(prefix))
