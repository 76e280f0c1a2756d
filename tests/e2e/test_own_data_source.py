"""A data source of the user's own in a run that is stopped and goes on: with a state of its own, and with upstream's methods only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vime.train.checkpoint import read_manifest

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SOURCE = '''
import json
from pathlib import Path

from transformers import AutoTokenizer

from vime.api import Sample


class Upstream:
    """Counts through its prompts; the position goes into a file of its own."""

    def __init__(self, args):
        self.args, self.position = args, 0
        self.tokenizer = AutoTokenizer.from_pretrained(args.hf_checkpoint)  # the sft plugin asks the source for it
        self.rows = [json.loads(line) for line in Path(args.prompt_data).read_text().splitlines()]

    def get_samples(self, num_samples):
        groups = []
        for _ in range(num_samples):
            row = self.rows[self.position % len(self.rows)]
            groups.append([Sample(group_index=self.position, index=self.position, prompt=row["prompt"], label=row["answer"])])
            self.position += 1
        with open("taken.txt", "a") as file:
            file.write("".join(f"{group[0].index} " for group in groups))
        return groups

    def add_samples(self, samples):
        raise AssertionError("nothing comes back in this run")

    def save(self, rollout_id):
        Path(f"position_{rollout_id}.txt").write_text(str(self.position))

    def load(self, rollout_id=None):
        self.position = int(Path(f"position_{rollout_id}.txt").read_text())

    def __len__(self):
        return len(self.rows)


class WithState(Upstream):
    """The same; the position is in the checkpoint."""

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]

    def save(self, rollout_id):
        raise AssertionError("the state is in the checkpoint")

    load = save
'''


@pytest.mark.parametrize("name", ["Upstream", "WithState"])
def test_a_source_of_ones_own_goes_on_where_the_run_stopped(
    model_factory: Callable[[bool], Path], sums: Path, vime: Any, tmp_path: Path, name: str
) -> None:
    (tmp_path / "own.py").write_text(SOURCE)
    flags = [
        *("train", "--plugin", "sft", "--loss-type", "sft_loss", "--model", str(model_factory(False)), "--prompt-data", str(sums)),
        *("--data-source-path", f"./own.py:{name}", "--rollout-batch-size", "4", "--n-samples-per-prompt", "1"),
        *("--run-dir", "run", "--save-interval", "1"),
    ]
    first = vime(*flags, "--num-rollout", "2", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    second = vime(*flags, "--num-rollout", "4", "--load", "auto", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert (tmp_path / "taken.txt").read_text().split() == [str(index) for index in range(16)]
    manifest = read_manifest(tmp_path / "run" / "checkpoints" / "step_4")
    assert manifest["data_source"] == (None if name == "Upstream" else {"position": 16})


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
