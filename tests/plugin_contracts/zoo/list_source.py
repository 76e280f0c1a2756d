"""A sound data source over a list in memory, which wrong ones derive from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vime.api import Sample


class ListSource:
    """A sound data source over a list in memory."""

    def __init__(self, args: Any) -> None:
        self.args = args
        self.rows = [(f"{i}+1=", str(i + 1)) for i in range(6)]
        self.next_group = 0
        self.returned: list[list[Sample]] = []

    def __len__(self) -> int:
        return len(self.rows)

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        groups, self.returned = self.returned[:num_samples], self.returned[num_samples:]
        while len(groups) < num_samples:
            groups.append(self.group(self.next_group))
            self.next_group += 1
        return groups

    def group(self, number: int) -> list[Sample]:
        prompt, label = self.rows[number % len(self.rows)]
        size = self.args.n_samples_per_prompt
        return [Sample(group_index=number, index=number * size + i, prompt=prompt, label=label) for i in range(size)]

    def add_samples(self, samples: list[list[Sample]]) -> None:
        self.returned += samples

    def save(self, rollout_id: int) -> None:
        file = Path(self.args.save) / f"source_{rollout_id}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        returned = [[sample.to_dict() for sample in group] for group in self.returned]
        file.write_text(json.dumps({"next_group": self.next_group, "returned": returned}))

    def load(self, rollout_id: int | None = None) -> None:
        state = json.loads((Path(self.args.save) / f"source_{rollout_id}.json").read_text())
        self.next_group = state["next_group"]
        self.returned = [[Sample.from_dict(sample) for sample in group] for group in state["returned"]]
