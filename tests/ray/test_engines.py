"""vLLM engines as Ray actors: they answer as the engine of the local runtime, and hold the weights that they are given, in one copy."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager
from vime.quickstart import quickstart_defaults
from vime.runtime.placement import Needs
from vime.runtime.ray.placement import RayPlacement

NUM_GPUS = 0

pytestmark = [pytest.mark.ray, pytest.mark.e2e, pytest.mark.timeout(900)]


@dataclass
class Engines:
    """Two engines in actors as one pool, and one in this process, on the quickstart model."""

    pool: Any
    local: Any
    weights: dict[str, Any]
    said: list[str]

    def requests(self, count: int) -> list[tuple[list[int], Any]]:
        encode = self.local.tokenizer.encode
        return [
            (encode(f"{n % 10}+{n // 10 % 10}="), {"temperature": 1.0, "max_new_tokens": 24, "min_new_tokens": 8, "seed": n})
            for n in range(count)
        ]

    def sync(self, weights: dict[str, Any], version: int) -> None:
        self.pool.update_weights(weights.items(), version)
        self.local.update_weights(weights.items(), version)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    from transformers import AutoModelForCausalLM

    from vime.engine.local import LocalEngine

    defaults = quickstart_defaults()
    config = RunConfig(**{name: value for name, value in defaults.items() if not name.startswith("eval")}, runtime="ray", engines=2)
    said: list[str] = []
    model = defaults["hf_checkpoint"]
    placement = RayPlacement(None)
    told: Any = {
        "warn": said.append,
        "say": lambda _: None,
        "logs": tmp_path_factory.mktemp("logs"),
        "deterministic": True,
        "concurrency": 128,
    }
    placement.open(Needs(config=config, model_path=model, plugins=PluginManager(), trainer=False, engine=True, **told))
    local = LocalEngine(config, model, dtype="float32", deterministic=True, concurrency=128)
    pool = placement.start_engine()
    weights = dict(AutoModelForCausalLM.from_pretrained(model, dtype="float32").named_parameters())
    yield Engines(pool, local, {name: tensor.detach() for name, tensor in weights.items()}, said)
    pool.close()
    placement.close()
    local.close()


def scores(engines: Engines) -> tuple[list[Any], Any]:
    sequences = [[3 + (n * step) % 20 for n in range(24)] for step in (1, 3, 7)]
    return list(engines.pool.score_each(sequences).values()), engines.local.score(sequences)


def worst(found: Any, expected: Any) -> float:
    return max(abs(a - b) for ours, theirs in zip(found, expected, strict=True) for a, b in zip(ours, theirs, strict=True))


def test_the_same_seeds_give_the_same_answers_as_in_this_process(engines: Engines) -> None:
    wave = engines.requests(96)
    found, expected = asyncio.run(engines.pool.generate_many(wave)), asyncio.run(engines.local.generate_many(wave))
    assert [answer.token_ids for answer in found] == [answer.token_ids for answer in expected]
    assert [answer.text for answer in found] == [answer.text for answer in expected]
    assert worst([answer.log_probs for answer in found], [answer.log_probs for answer in expected]) < 1e-5
    stats = engines.pool.stats()
    assert stats["generated_tokens"] == sum(len(answer.token_ids) for answer in expected)
    assert stats["prompt_tokens"] == sum(len(ids) for ids, _ in wave)
    assert stats["busy_seconds"] > 0


def test_every_engine_holds_the_new_weights(engines: Engines) -> None:
    import torch

    changed = {name: tensor + 0.02 * torch.randn_like(tensor) for name, tensor in engines.weights.items()}
    before = scores(engines)[1]
    engines.sync(changed, 7)
    each, expected = scores(engines)
    assert engines.pool.weight_version == 7 and len(each) == 2
    assert all(worst(found, expected) < 1e-5 for found in each)
    assert worst(before, expected) > 1e-2


def test_a_change_of_any_one_tensor_reaches_every_engine(engines: Engines) -> None:
    import torch

    engines.pool.update_weights(engines.weights.items(), 1)
    before, unnoticed = scores(engines)[0], []
    for name, tensor in engines.weights.items():
        torch.manual_seed(1)
        engines.pool.update_weights((engines.weights | {name: tensor + 0.5 * tensor.std() * torch.randn_like(tensor)}).items(), 2)
        if not all(worst(now, then) > 1e-3 for now, then in zip(scores(engines)[0], before, strict=True)):
            unnoticed.append(name)
    engines.pool.update_weights(engines.weights.items(), 3)
    assert all(worst(now, then) < 1e-5 for now, then in zip(scores(engines)[0], before, strict=True))
    assert unnoticed == []


def test_one_copy_of_the_weights_is_held_for_both_engines_and_let_go_by_the_next_sync(engines: Engines) -> None:
    size = sum(tensor.numel() * tensor.element_size() for tensor in engines.weights.values())
    for version in range(1, 21):
        engines.pool.update_weights(engines.weights.items(), version)
    deadline = time.monotonic() + 120.0
    while (held := stored())[0] * 2**20 > 2 * size and time.monotonic() < deadline:
        time.sleep(0.2)  # Ray lets go of objects in batches, once a second
    assert 0.9 * size <= held[0] * 2**20 < 2 * size and held[1] < 8, (size, held)  # Ray rounds to MiB


def stored() -> tuple[float, int]:
    """MiB and number of objects in the object store of this node."""
    import ray
    from ray._private.internal_api import memory_summary

    summary = memory_summary(ray.get_runtime_context().gcs_address, stats_only=True)  # there may be others on this machine
    found = re.search(r"Plasma memory usage ([\d.]+) MiB, (\d+) objects", summary)
    assert found is not None, summary
    return float(found[1]), int(found[2])


def test_engines_that_slept_answer_as_before(engines: Engines) -> None:
    wave = engines.requests(16)
    before, scored = asyncio.run(engines.pool.generate_many(wave)), scores(engines)[0]
    engines.pool.sleep()
    assert worst(scores(engines)[0][1], scored[1]) < 1e-5
    engines.pool.sleep()
    assert [answer.token_ids for answer in asyncio.run(engines.pool.generate_many(wave))] == [answer.token_ids for answer in before]
    engines.pool.sleep()
    engines.sync(engines.weights, 30)
    each, expected = scores(engines)
    assert all(worst(found, expected) < 1e-5 for found in each)


def test_aborted_requests_return_what_they_have(engines: Engines) -> None:
    async def run() -> list[Any]:
        params = {"temperature": 1.0, "max_new_tokens": 100, "min_new_tokens": 100}
        ids = engines.local.tokenizer.encode("1+")
        tasks = [asyncio.ensure_future(engines.pool.generate(ids, {**params, "seed": n}, session_id=str(n % 2))) for n in range(400)]
        await asyncio.sleep(0.1)
        await engines.pool.abort("0")
        assert all(task.done() for task in tasks[::2]) and not all(task.done() for task in tasks[1::2])
        await engines.pool.abort_all()
        return await asyncio.gather(*tasks)

    answers = asyncio.run(run())
    assert sum(answer.finish_reason == "abort" for answer in answers) > 100
    assert any(answer.token_ids for answer in answers)
    assert all(len(answer.token_ids) == len(answer.log_probs) for answer in answers)
    assert engines.said == []


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
