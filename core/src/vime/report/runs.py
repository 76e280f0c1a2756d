"""What a report says of a run apart from its samples: who it is, its curves, its alerts. From config.yaml and metrics.jsonl."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.errors import ConfigError
from vime.track.alerts import find_alerts
from vime.track.jsonl import read_metrics

MAX_POINTS = 1000
"""Points of a curve; longer ones are shown as means of as many rollouts as it takes."""

SHOWN_SETTINGS = {
    "advantage_estimator": "estimator",
    "loss_type": "loss",
    "lr": "learning rate",
    "rollout_batch_size": "prompts per rollout",
    "n_samples_per_prompt": "samples per prompt",
    "rollout_temperature": "temperature",
    "rollout_max_response_len": "longest response, tokens",
    "num_rollout": "rollouts planned",
    "rollout_seed": "seed",
}
"""The settings that stand in the report. A choice, not all: a page is passed on more easily than a run folder."""


@dataclass(frozen=True)
class Curves:
    """All metrics of a run over its rollouts. `each` is how many rollouts a point stands for (their mean)."""

    steps: list[int]
    series: dict[str, list[float | None]]
    each: int = 1


def run_folders(paths: Sequence[Path]) -> dict[str, Path]:
    """Run folders by the names that the report calls them by: the shortest ends of their paths that differ. Raises ConfigError."""
    folders = [find_run(path) for path in paths]
    if len(set(folders)) != len(folders):
        twice = next(path for path in paths if folders.count(find_run(path)) > 1)
        raise ConfigError(f"{twice} is named twice", hint="name each run once")
    for depth in range(1, max(len(folder.parts) for folder in folders) + 1):
        names = ["/".join(part for part in folder.parts[-depth:] if part != "/") for folder in folders]
        if len(set(names)) == len(names):
            return dict(zip(names, folders, strict=True))
    raise AssertionError("different folders have different paths")


def find_run(path: Path) -> Path:
    """A run folder by its path, or by its name below runs/. Raises ConfigError where there are no metrics."""
    for folder in (path, Path("runs") / path):
        if (folder / "metrics.jsonl").is_file():
            return folder.resolve()
    if path.is_dir():
        raise ConfigError(f"{path} has no metrics.jsonl", hint="give the folder of a run that has made its first step: runs/<date>-<name>")
    known = sorted(folder.name for folder in Path("runs").glob("*/") if (folder / "metrics.jsonl").is_file())
    hint = f"runs here: {', '.join(known[-5:])}" if known else "give the folder that vime train named as its run folder"
    raise ConfigError(f"there is no run {path}", hint=hint)


def describe_run(name: str, folder: Path) -> dict[str, Any]:
    """All of a run's part of the page but its samples, as plain data."""
    lines = list(read_metrics(folder / "metrics.jsonl"))
    curves = collect_curves(lines)
    times = [line["time"] for line in lines if isinstance(line.get("time"), int | float)]
    return {
        "name": name,
        "about": _about(folder),
        "rollouts": len({line["step"] for line in lines if any(key.startswith("rollout/") for key in line)}),
        "seconds": times[-1] - times[0] if times else 0.0,
        "ended": times[-1] if times else None,
        "curves": vars(curves),
        "totals": totals(lines),
        "alerts": [vars(alert) for alert in find_alerts(lines)],
    }


def collect_curves(lines: Iterable[Mapping[str, Any]], max_points: int = MAX_POINTS) -> Curves:
    """Every metric over the steps: None where a step has no value, and rounded to what a screen can show."""
    by_step: dict[int, dict[str, float]] = {}
    for line in lines:
        metrics = by_step.setdefault(line["step"], {})
        metrics.update({key: float(value) for key, value in line.items() if key not in ("step", "time") and _is_number(value)})
    steps = sorted(by_step)
    each = -(-len(steps) // max_points) if steps else 1
    parts = [steps[start : start + each] for start in range(0, len(steps), each)]
    series: dict[str, list[float | None]] = {}
    for key in sorted({key for metrics in by_step.values() for key in metrics}):
        series[key] = [_mean([by_step[step][key] for step in part if key in by_step[step]]) for part in parts]
    return Curves([part[0] for part in parts], series, each)


def totals(lines: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Sums over the run of what is counted by rollout: where samples and groups ended, and milliseconds in hooks."""
    sums: dict[str, float] = {}
    counted = ("rollout/samples_", "rollout/groups_", "rollout/removed_samples", "rollout/dynamic_filter/", "rollout/reward_errors/")
    for line in lines:
        for key, value in line.items():
            if key.startswith((*counted, "rollout/retries", "hooks/", "perf/")) and _is_number(value) and not key.endswith("_fraction"):
                sums[key] = sums.get(key, 0.0) + value
    return {key: _rounded(value) for key, value in sorted(sums.items())}


def _about(folder: Path) -> dict[str, str]:
    """Model, data, plugins and chosen settings. Nothing of the environment, and of paths the last two parts only."""
    import yaml

    try:
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        lock = json.loads((folder / "plugins.lock.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        config, lock = {}, {}
    config, lock = (value if isinstance(value, dict) else {} for value in (config, lock))
    if not config:
        return {}
    plugins = [f"{p.get('name')} {p.get('version') or ''}".strip() for p in lock.get("plugins", ()) if isinstance(p, dict)]
    hooks = sorted(key for key, value in config.items() if key.endswith("_path") and key != "path" and value)
    about = {
        "model": "the quickstart model" if config.get("quickstart") else _end_of_path(config.get("hf_checkpoint")),
        "data": "arithmetic problems of the quickstart" if config.get("quickstart") else _end_of_path(config.get("prompt_data")),
        "plugins": ", ".join([*plugins, *(key.removesuffix("_path").replace("_", " ") + " by path" for key in hooks)]) or "none",
        **{label: str(config[key]) for key, label in SHOWN_SETTINGS.items() if config.get(key) is not None},
    }
    return {label: text for label, text in about.items() if text}


def _end_of_path(value: Any) -> str:
    return "/".join(Path(str(value)).parts[-2:]) if value else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _mean(values: Sequence[float]) -> float | None:
    return _rounded(sum(values) / len(values)) if values else None


def _rounded(value: float) -> float:
    """Five significant digits, and whole numbers as such."""
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.5g}")
