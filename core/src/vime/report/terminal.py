"""What `vime watch` shows: a few lines of text about a run, out of its metrics alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vime.track.alerts import AlertWatch
from vime.track.lines import LOSS, evaluation_details, evaluation_names, format_number, format_seconds, sparkline

Line = list[tuple[str, str]]
"""(style, text) parts."""

SPARK = 40
LABEL = 9
PHASES = (("rollout", "rollout"), ("train", "train"), ("sync", "sync"))
ENDS = (("filtered", "samples_filtered"), ("failed", "samples_failed"), ("aborted", "samples_aborted"), ("removed", "removed_samples"))


class RunView:
    """The state of one run, fed with the lines of its metrics.jsonl in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._start_over()

    def _start_over(self) -> None:
        self.metrics: dict[str, float] = {}
        """The latest value of every metric, those of counts that come and go only from the last rollout."""
        self.rollouts = 0
        self.rewards: list[float] = []
        self.scores: dict[str, list[float]] = {}
        self.dropped: dict[str, float] = {}
        self.first_time: float | None = None
        self.last_time: float | None = None
        self.alerts = AlertWatch()

    def feed(self, lines: Iterable[Mapping[str, Any]], *, from_start: bool) -> None:
        """Take new lines; `from_start` forgets all earlier ones."""
        if from_start:
            self._start_over()
        for line in lines:
            metrics = {key: float(value) for key, value in line.items() if "/" in key and isinstance(value, int | float)}
            time = line.get("time")
            if isinstance(time, int | float):
                self.first_time = time if self.first_time is None else self.first_time
                self.last_time = time
            if any(key.startswith("rollout/") for key in metrics):
                self.rollouts = line["step"] + 1
                self._add_rollout(metrics)
            by_loss = [key[len("eval/") : -len(LOSS)] for key in metrics if key.startswith("eval/") and key.endswith(LOSS)]
            for name in evaluation_names(metrics, by_loss):
                self.scores.setdefault(name, []).append(metrics[f"eval/{name}"])
            self.metrics |= metrics
            self.alerts.feed(line["step"], metrics)

    def _add_rollout(self, metrics: Mapping[str, float]) -> None:
        if "rollout/raw_reward" in metrics:
            self.rewards.append(metrics["rollout/raw_reward"])
        for key, value in metrics.items():
            if key.startswith("rollout/dynamic_filter/drop_"):
                reason = key.removeprefix("rollout/dynamic_filter/drop_")
                self.dropped[reason] = self.dropped.get(reason, 0) + value
        self.metrics = {key: value for key, value in self.metrics.items() if not key.startswith("rollout/")}

    def lines(self, now: float, *, unicode: bool = True) -> list[Line]:
        """The view at the time `now` (seconds since 1970)."""
        if self.last_time is None or self.first_time is None:
            return [[("bold", self.name), ("dim", "  no metrics yet")]]
        quiet = max(0.0, now - self.last_time)
        head: Line = [("bold", self.name), ("dim", "  step "), ("bold", str(self.rollouts))]
        head += [("dim", f"  {format_seconds(self.last_time - self.first_time)} of metrics, last line {format_seconds(quiet)} ago")]
        parts = [self._reward(unicode), *self._evaluations(unicode), self._policy(unicode), self._times(), self._ends()]
        return [head, *(line for line in parts if line), *self._alerts()]

    def _reward(self, unicode: bool) -> Line:
        if not self.rewards:
            return []
        line: Line = [_label("reward"), ("bold", format_number(self.rewards[-1], "score"))]
        if unicode:
            line.append(("cyan", f"  {sparkline(_thinned(self.rewards, SPARK), min(SPARK, len(self.rewards)))}"))
        first, best = format_number(self.rewards[0], "score"), format_number(max(self.rewards), "score")
        return [*line, ("dim", f"  first {first}, best {best}")]

    def _evaluations(self, unicode: bool) -> list[Line]:
        arrow = "→" if unicode else "->"
        width = max(map(len, self.scores), default=0)
        lines: list[Line] = []
        for name, scores in self.scores.items():
            line: Line = [_label("eval" if not lines else ""), ("", name.ljust(width)), ("bold", f"  {scores[-1]:.3f}")]
            if len(scores) > 1:
                change = scores[-1] - scores[0]
                gain = -change if name.endswith(LOSS) else change
                style = "green" if gain > 0 else "red" if gain < 0 else "dim"
                line[-1:] = [("dim", f"  {scores[0]:.3f} {arrow} "), ("bold", f"{scores[-1]:.3f}"), (style, f"  {change:+.3f}")]
            details = evaluation_details(name, self.metrics)
            lines.append([*line, ("dim", "".join(f"  {detail}" for detail in details))])
        return lines

    def _policy(self, unicode: bool) -> Line:
        shown = (
            ("len", "rollout/response_len/mean", "length"),
            ("entropy", "train/entropy_loss", "general"),
            ("loss", "train/loss", "signed"),
            ("grad", "train/grad_norm", "general"),
            ("Δlogp" if unicode else "dlogp", "train/train_rollout_logprob_abs_diff", "general"),
        )
        cells = [(name, format_number(self.metrics[key], form)) for name, key, form in shown if key in self.metrics]
        if "rollout/truncated_ratio" in self.metrics:
            cells.insert(1, ("cut off", f"{self.metrics['rollout/truncated_ratio']:.0%}"))
        return [_label("policy"), *_cells(cells)] if cells else []

    def _times(self) -> Line:
        whole = self.metrics.get("perf/step_time")
        if not whole:
            return []
        cells: list[tuple[str, str]] = []
        for name, key in PHASES:
            seconds = self.metrics.get(f"perf/{key}_time")
            if seconds is not None:
                cells.append((name, f"{format_seconds(seconds)} {seconds / whole:.0%}"))
        return [_label("time"), *_cells([("step", format_seconds(whole)), *cells])]

    def _ends(self) -> Line:
        cells = [(name, f"{self.metrics[key]:g}") for name, key in ((n, f"rollout/{k}") for n, k in ENDS) if self.metrics.get(key)]
        dropped = sorted(self.dropped.items(), key=lambda pair: (-pair[1], pair[0]))
        line: Line = [_label("drops"), *_cells(cells)]
        line.append(("dim", " in the last rollout" if cells else "no sample lost in the last rollout"))
        if dropped:
            line.append(("dim", f"; groups of the run: {', '.join(f'{reason} {count:g}' for reason, count in dropped)}"))
        return line

    def _alerts(self) -> list[Line]:
        if not self.alerts.alerts:
            return [[_label("alerts"), ("green", "none")]]
        return [[_label("alerts" if not number else ""), ("yellow", alert.text)] for number, alert in enumerate(self.alerts.alerts)]


def _label(text: str) -> tuple[str, str]:
    return ("dim", text.ljust(LABEL))


def _cells(cells: list[tuple[str, str]]) -> Line:
    line: Line = []
    for number, (name, value) in enumerate(cells):
        line += [("dim", f"{'  ' if number else ''}{name} "), ("", value)]
    return line


def _thinned(values: list[float], width: int) -> list[float]:
    """At most `width` values: means of neighbours."""
    each = -(-len(values) // width)
    return [sum(part) / len(part) for part in (values[start : start + each] for start in range(0, len(values), each))]
