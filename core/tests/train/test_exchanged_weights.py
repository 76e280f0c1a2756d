"""vime eval --checkpoints notices an engine that does not hold the weights which it was given."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from vime.errors import EngineError
from vime.runtime.models import verify_weights
from vime.testing.fakes import FakeTokenizer
from vime.train.policy_model import PolicyModel

NUM_GPUS = 0

PROBE = [([5, 9, 3, 8, 20, 4], 3), ([7, 30, 12, 2], 2), ([1] * 200, 100)]


class ModelEngine:
    """Scores with the weights of a folder."""

    tokenizer = FakeTokenizer(32)
    max_model_len = 128

    def __init__(self, path: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(path)
        self.scored: list[list[int]] = []

    @torch.no_grad()
    def score(self, sequences: Any) -> list[list[float]]:
        self.scored += sequences
        policy = PolicyModel(self.model, 1.0)
        scores = [policy(torch.tensor([ids[:-1]]), torch.arange(len(ids) - 1), torch.tensor(ids[1:]))[0] for ids in sequences]
        return [row.tolist() for row in scores]


def test_an_engine_with_the_weights_passes(make_model: Any, make_config: Any) -> None:
    path = make_model(seed=1)
    engine: Any = ModelEngine(path)
    verify_weights(make_config(), engine, Path(path), PROBE, [])
    assert engine.scored == [PROBE[0][0], PROBE[1][0]]  # the third is longer than the engine takes
    verify_weights(make_config(), engine, Path(path), [], ["123", "4"])
    assert engine.scored[2:] == [FakeTokenizer(32).encode("123")]


@pytest.mark.parametrize("probe", [PROBE, []])
def test_one_stale_tensor_is_an_error(make_model: Any, make_config: Any, tmp_path: Path, probe: Any) -> None:
    path = shutil.copytree(make_model(seed=1), tmp_path / "model")
    engine: Any = ModelEngine(str(path))
    with torch.no_grad():
        engine.model.model.layers[1].mlp.down_proj.weight.mul_(1.5)
    with pytest.raises(EngineError, match=r"does not hold the weights of .*model after they were exchanged: log-probs of \d tokens differ"):
        verify_weights(make_config(), engine, path, probe, ["1234"])


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
