"""The texts of the console: one line per training step, evaluation lines, counts of dropped groups. No terminal here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

BARS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 12
LOSS = "/loss"
"""How the score of a data set ends where the lower one is the better one."""


@dataclass(frozen=True)
class Cell:
    """One labelled value of a step line. `rank` says how soon it gives way on a narrow terminal (the highest first)."""

    label: str
    value: str
    rank: int
    style: str = ""

    @property
    def width(self) -> int:
        return len(self.label) + 1 + len(self.value)


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """The last `width` values as bars between the lowest and the highest of all values; always `width` wide."""
    if not values:
        return " " * width
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    bars = "".join(BARS[round((value - low) * scale)] for value in values[-width:])
    return bars.ljust(width)


def step_cells(metrics: Mapping[str, float]) -> list[Cell]:
    """The values of a training step that are there, in reading order, each as wide on every line."""
    cells: list[Cell] = []

    def add(label: str, key: str, form: str, rank: int, width: int, style: str = "") -> None:
        if key in metrics:
            cells.append(Cell(label, format_number(metrics[key], form).rjust(width), rank, style))

    add("len", "rollout/response_len/mean", "length", 2, 6)
    add("loss", "train/loss", "signed", 1, 9)
    add("value", "train/value_loss", "general", 8, 7)
    add("grad", "train/grad_norm", "general", 3, 7)
    add("Δlogp", "train/train_rollout_logprob_abs_diff", "general", 4, 7)
    add("rollout", "perf/rollout_time", "time", 5, 6, "dim")
    add("train", "perf/train_time", "time", 6, 6, "dim")
    add("sync", "perf/sync_time", "time", 7, 6, "dim")
    return cells


def all_metrics(metrics: Mapping[str, float]) -> list[str]:
    """Every metric of a step, a line for each namespace: `train    loss -0.0123  grad_norm 0.453`."""
    lines: list[str] = []
    for namespace in dict.fromkeys(key.partition("/")[0] for key in metrics):
        own = {key.partition("/")[2]: value for key, value in metrics.items() if key.startswith(f"{namespace}/")}
        lines.append(f"{namespace:<8} " + "  ".join(f"{name} {value:.4g}" for name, value in sorted(own.items())))
    return lines


def format_number(value: float, form: str) -> str:
    """Numbers for a column: "score" 0.500, "length" 43.2, "signed" -0.0123, "general" 2.1e-07 or 0.453, "time" 1.2s or 3m04s."""
    match form:
        case "score":
            return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}" if abs(value) < 10_000 else f"{value:.1e}"
        case "length":
            return f"{value:.1f}" if value < 10_000 else f"{value / 1000:.1f}k"
        case "signed":
            return f"{value:+.4f}" if abs(value) < 100 else f"{value:+.2e}"
        case "time":
            return format_seconds(value)
        case _:
            return f"{value:.3f}" if value == 0 or 0.01 <= abs(value) < 1000 else f"{value:.1e}"


def format_seconds(seconds: float) -> str:
    """0.03s, 1.2s, 48s, 3m04s, 2h05m."""
    if seconds < 9.995:
        return f"{seconds:.2f}s" if seconds < 0.995 else f"{seconds:.1f}s"
    if seconds < 59.5:
        return f"{seconds:.0f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def format_dropped(dropped: Mapping[str, int]) -> str:
    """`dropped 5 (zero_std_1.0 3, truncated 2)`, the largest reason first; "" for none."""
    reasons = sorted(((count, reason) for reason, count in dropped.items() if count), key=lambda pair: (-pair[0], pair[1]))
    if not reasons:
        return ""
    return f"dropped {sum(count for count, _ in reasons)} ({', '.join(f'{reason} {count}' for count, reason in reasons)})"


def evaluation_names(metrics: Mapping[str, float], known: Iterable[str]) -> list[str]:
    """The scores in metrics like `eval/<name>`, `eval/<name>-pass@2`, `eval/<name>/response_len/mean`: `<name>`, or `<name>/loss`."""
    names = [score for name in known for score in (name, f"{name}{LOSS}") if f"eval/{score}" in metrics]
    for key in metrics:
        name = key.removeprefix("eval/")
        plain = key.startswith("eval/") and "/" not in name and not re.search(r"-(truncated_ratio|pass@\d+)$", name)
        if plain and name not in names:
            names.append(name)
    return names


def evaluation_details(name: str, metrics: Mapping[str, float]) -> list[str]:
    """What stands after a data set's score: its highest pass@k or its perplexity, and how much was cut off."""
    loss_of = name.removesuffix(LOSS)
    perplexity = metrics.get(f"eval/{loss_of}/perplexity") if loss_of != name else None
    name = name if perplexity is None else loss_of
    prefix = f"eval/{name}-pass@"
    tries = sorted(int(key.removeprefix(prefix)) for key in metrics if key.startswith(prefix) and key.removeprefix(prefix).isdigit())
    details = [f"pass@{tries[-1]} {metrics[f'{prefix}{tries[-1]}']:.2f}"] if tries and tries[-1] > 1 else []
    if perplexity is not None:
        details.append(f"perplexity {format_number(perplexity, 'score')}")
    truncated = metrics.get(f"eval/{name}-truncated_ratio", 0.0)
    if truncated > 0:
        details.append(f"cut off {truncated:.0%}")
    return details
