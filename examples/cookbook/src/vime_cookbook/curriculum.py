"""A curriculum: prompts get harder as the policy gets better.

A data source makes sums of growing length instead of reading a file, and `process_all_samples` tells it how the last
rollout went. The two hooks are one class, so they share an object. With `state_dict` and `load_state_dict` the level
is part of every checkpoint, and a resumed run goes on at the same prompt.
"""

from __future__ import annotations

import random
from typing import Any

import vime.api
from vime.api import Sample, hookimpl


class Sums:
    """The data source: endless sums of `level + 1` numbers, drawn from a seed and a count."""

    def __init__(self, group_size: int, seed: int, start: int) -> None:
        self.group_size, self.seed = group_size, seed
        self.made, self.level = 0, start
        self.returned: list[list[Sample]] = []

    def __len__(self) -> int:
        return 2**31

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """What came back first, then new groups."""
        again, self.returned = self.returned[:num_samples], self.returned[num_samples:]
        return again + [self._group() for _ in range(num_samples - len(again))]

    def _group(self) -> list[Sample]:
        drawn = random.Random(f"{self.seed}/{self.made}")
        numbers = [drawn.randint(1, 9) for _ in range(self.level + 1)]
        question, first, number = "+".join(map(str, numbers)) + "=", self.made * self.group_size, self.made
        self.made += 1
        return [
            Sample(group_index=number, index=first + place, prompt=question, label=str(sum(numbers)), metadata={"level": self.level})
            for place in range(self.group_size)
        ]

    def add_samples(self, groups: list[list[Sample]]) -> None:
        self.returned += groups

    def save(self, rollout_id: int) -> None:
        """Nothing: the state is in the checkpoint."""

    def load(self, rollout_id: int) -> None:
        """Nothing: the state is in the checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        returned = [[sample.to_dict() for sample in group] for group in self.returned]
        return {"made": self.made, "level": self.level, "returned": returned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.made, self.level = state["made"], state["level"]
        self.returned = [[Sample.from_dict(sample) for sample in group] for group in state["returned"]]


class Curriculum:
    """A data source, and the hook that moves its level."""

    class Settings(vime.api.Settings):
        start: int = 1
        """Level of the first prompts: a sum of start + 1 numbers."""
        highest: int = 8
        """Level beyond which it does not get harder."""
        up: float = 0.8
        """Mean reward on the current level from which the next one begins."""
        down: float = 0.2
        """Mean reward below which the level before comes back."""

    def __init__(self, settings: Curriculum.Settings) -> None:
        self.settings = settings

    @hookimpl
    def make_data_source(self, args: Any) -> Sums:
        return Sums(args.n_samples_per_prompt, args.rollout_seed, self.settings.start)

    @hookimpl
    def process_all_samples(self, args: Any, all_samples: list[list[Sample]], data_source: Any) -> None:
        """Moves the level by at most one. Dropped groups count too: solved ones are what a filter drops."""
        level = getattr(data_source, "level", None)
        flat = [sample for group in all_samples for sample in group if sample.reward is not None]
        rewards = [sample.get_reward_value(args) for sample in flat if sample.metadata.get("level") == level]
        if level is None or not rewards:
            return
        mean = sum(rewards) / len(rewards)
        step = (mean >= self.settings.up) - (mean < self.settings.down)
        data_source.level = min(self.settings.highest, max(self.settings.start, level + step))
