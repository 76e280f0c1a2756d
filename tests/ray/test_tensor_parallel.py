"""An engine whose model is split between two processes: both shards take the weights, and neither outlives the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager
from vime.quickstart import MODEL
from vime.runtime.placement import Needs
from vime.runtime.ray.placement import RayPlacement

NUM_GPUS = 0

pytestmark = [pytest.mark.ray, pytest.mark.e2e, pytest.mark.timeout(900)]


def needs(model: str, logs: Path, said: list[str]) -> Needs:
    config = RunConfig(
        hf_checkpoint=model,
        runtime="ray",
        engine_tp=2,
        num_rollout=1,
        rollout_batch_size=2,
        n_samples_per_prompt=2,
        rollout_max_response_len=32,
    )
    told: Any = {"warn": said.append, "say": lambda _: None, "logs": logs, "deterministic": True, "concurrency": 16}
    return Needs(config=config, model_path=model, plugins=PluginManager(), trainer=False, engine=True, **told)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any, Any, list[str]]]:
    """The pool, its placement, the model that it loaded, and what was said."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 256}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **shape, **heads)).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    said: list[str] = []
    placement = RayPlacement(None)
    placement.open(needs(str(folder), folder / "logs", said))
    pool = placement.start_engine()
    yield pool, placement, model, said
    pool.close()
    placement.close()


def worst(pool: Any, model: Any) -> float:
    """The largest difference between the log-probs of the engine and those of the model."""
    import torch

    sequences = [[3 + (n * step) % 20 for n in range(24)] for step in (1, 3, 7)]
    differences = []
    for ids, found in zip(sequences, pool.score(sequences), strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        differences += [
            abs(expected[position, token].item() - score) for position, (token, score) in enumerate(zip(ids[1:], found, strict=True))
        ]
    return max(differences)


def test_both_shards_take_the_weights(split: Any) -> None:
    import torch

    pool, _, model, _ = split
    assert worst(pool, model) < 1e-4
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    assert worst(pool, model) > 1e-2
    pool.update_weights([(name, parameter.detach()) for name, parameter in model.named_parameters()], 1)
    assert worst(pool, model) < 1e-4
    answer = asyncio.run(pool.generate(pool.tokenizer.encode("1+1="), {"max_new_tokens": 16, "temperature": 1.0, "seed": 3}))
    assert answer.token_ids and answer.weight_version == 1


def test_the_processes_of_a_killed_engine_do_not_survive_it(split: Any) -> None:
    pool, _, _, said = split
    engine = psutil.Process(pool._members[0].handle.description.pid)
    shards = [child for child in engine.children(recursive=True) if "Worker_TP" in " ".join(child.cmdline())]
    assert len(shards) == 2
    engine.kill()
    _, left = psutil.wait_procs(shards, timeout=120.0)
    assert left == []
    deadline = time.monotonic() + 300.0
    while len(said) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert "has died" in said[0] and "is there, with version 1 of the weights" in said[1]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
