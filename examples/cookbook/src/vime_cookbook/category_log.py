"""A logger without a service: rewards by category as metrics, and the best and the worst answers in a text file.

What is added to `rollout_extra_metrics` goes where all metrics go: metrics.jsonl, TensorBoard, the report. The
category is a key of the row's metadata. Returning None leaves the built-in log as it is; True would take its place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import vime.api
from vime.api import Sample, hookimpl


class CategoryLog:
    """Adds `rollout/category/NAME` and writes a few answers down."""

    class Settings(vime.api.Settings):
        key: str = "category"
        """Key of the metadata; samples without it count as "other"."""
        file: str | None = None
        """Text file for answers; without it none are written."""
        answers: int = 1
        """How many of the best and of the worst are written for each rollout."""

    def __init__(self, settings: CategoryLog.Settings) -> None:
        self.settings = settings

    @hookimpl
    def log_rollout_data(self, args: Any, rollout_id: int, samples: list[Sample], rollout_extra_metrics: dict[str, float]) -> None:
        scored = [sample for sample in samples if sample.reward is not None]
        by_category: dict[str, list[float]] = {}
        for sample in scored:
            by_category.setdefault(str(sample.metadata.get(self.settings.key, "other")), []).append(sample.get_reward_value(args))
        for name, rewards in by_category.items():
            rollout_extra_metrics[f"category/{name}"] = sum(rewards) / len(rewards)
        if self.settings.file is not None and scored:
            ordered = sorted(scored, key=lambda sample: sample.get_reward_value(args))
            worst, best = ordered[: self.settings.answers], ordered[-self.settings.answers :]
            lines = [f"rollout {rollout_id}  {sample.get_reward_value(args):g}  {sample.response!r}" for sample in [*worst, *best]]
            with Path(self.settings.file).open("a", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
