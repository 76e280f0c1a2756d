"""The engine holds the trainer's weights after a sync, and a run whose engine does not is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vime.config.run_config import RunConfig
from vime.errors import EngineError

NUM_GPUS = 0

pytestmark = pytest.mark.e2e


@dataclass
class Pair:
    """A trainer and an engine on the same small model."""

    config: RunConfig
    trainer: Any
    engine: Any
    sync: Any

    def generate(self, count: int = 16) -> list[Any]:
        ids = self.engine.tokenizer.encode("12+3=")
        params = [{"temperature": 0.7, "max_new_tokens": 24, "seed": seed} for seed in range(count)]
        return asyncio.run(self.engine.generate_many([(ids, p) for p in params]))

    def named(self) -> dict[str, Any]:
        return {name: tensor.clone() for name, tensor in self.trainer.named_weights()}


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def pair(request: pytest.FixtureRequest, model_factory: Callable[[bool], Path]) -> Iterator[Pair]:
    from vime.engine.local import LocalEngine
    from vime.train.deepspeed_trainer import DeepSpeedTrainer
    from vime.train.weights import WeightSync

    model = str(model_factory(request.param))
    config = RunConfig(
        hf_checkpoint=model, rollout_batch_size=2, n_samples_per_prompt=8, rollout_temperature=0.7, num_rollout=1, train_dtype="float32"
    )
    trainer = DeepSpeedTrainer(config, model)
    engine = LocalEngine(config, model, dtype="float32", deterministic=False, concurrency=64)
    yield Pair(
        config,
        trainer,
        engine,
        WeightSync(config, trainer, engine, lambda version: engine.update_weights(trainer.named_weights(), version)),
    )
    engine.close()
    trainer.close()


def test_engine_scores_as_the_trainer_after_a_sync(pair: Pair) -> None:
    import torch

    with torch.no_grad():
        for parameter in pair.trainer.model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    with pytest.raises(EngineError, match="the engine does not hold the trainer's weights"):
        pair.sync.verify()
    pair.sync.sync()
    assert pair.sync.verify()["max"] < 1e-4


def test_generated_log_probs_are_the_trainers_at_the_same_temperature(pair: Pair) -> None:
    import torch

    pair.sync.sync()
    prompt = pair.engine.tokenizer.encode("12+3=")
    for generation in pair.generate():
        tokens = torch.tensor([prompt + generation.token_ids])
        with torch.no_grad():
            logits = pair.trainer.model(tokens).logits[0, len(prompt) - 1 : -1] / 0.7
        expected = logits.log_softmax(-1).gather(-1, tokens[0, len(prompt) :, None]).squeeze(-1)
        assert torch.allclose(torch.tensor(generation.log_probs), expected, atol=1e-4)


def test_changing_any_one_tensor_of_the_engine_is_noticed(pair: Pair) -> None:
    import torch

    pair.sync.sync()
    pair.sync.set_probe([pair.engine.tokenizer.encode("12+3=") + generation.token_ids for generation in pair.generate()])
    pair.sync.verify()
    unnoticed, messages = [], []
    for name in pair.named():
        weights = pair.named()
        torch.manual_seed(1)
        weights[name] += 0.5 * weights[name].std() * torch.randn_like(weights[name])
        pair.engine.update_weights(weights.items(), 99)
        try:
            pair.sync.verify()
            unnoticed.append(name)
        except EngineError as error:
            messages.append(str(error))
    pair.sync.sync()
    pair.sync.verify()
    assert unnoticed == []
    assert all("differ by" in message and "tolerance" in message for message in messages)


def test_two_waves_with_the_same_seeds_give_the_same_tokens(pair: Pair) -> None:
    assert [g.token_ids for g in pair.generate()] == [g.token_ids for g in pair.generate()]


def test_aborted_requests_return_what_they_have(pair: Pair) -> None:
    async def run() -> list[Any]:
        ids = pair.engine.tokenizer.encode("1+")
        params = {"temperature": 1.0, "max_new_tokens": 200, "min_new_tokens": 200}
        tasks = [asyncio.ensure_future(pair.engine.generate(ids, {**params, "seed": s}, session_id=str(s % 2))) for s in range(4)]
        await asyncio.sleep(0.05)
        await pair.engine.abort("0")
        return list(await asyncio.gather(*tasks))

    results = asyncio.run(run())
    for number, generation in enumerate(results):
        assert len(generation.token_ids) == len(generation.log_probs)
        assert generation.finish_reason == ("abort" if number % 2 == 0 else "length")
    assert all(len(g.token_ids) < 200 for g in results[::2])


def test_a_caller_that_gives_up_leaves_nothing_behind(pair: Pair) -> None:
    async def give_up() -> None:
        params = {"temperature": 1.0, "max_new_tokens": 240, "min_new_tokens": 240}
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pair.engine.generate(pair.engine.tokenizer.encode("1+"), params), timeout=0.05)

    asyncio.run(give_up())
    pair.sync.sync()
    assert pair.sync.verify()["max"] < 1e-4
    assert not pair.engine.llm_engine.has_unfinished_requests()


def test_a_bad_request_fails_alone(pair: Pair) -> None:
    ids = pair.engine.tokenizer.encode("1+")

    async def run() -> list[Any]:
        bad = pair.engine.generate(ids, {"max_new_tokens": 4, "temperature": -1.0})
        return list(await asyncio.gather(bad, pair.engine.generate(ids, {"max_new_tokens": 4, "seed": 1}), return_exceptions=True))

    bad, good = asyncio.run(run())
    assert isinstance(bad, Exception) and not isinstance(good, Exception)
    with pytest.raises(EngineError, match="no prompt tokens"):
        asyncio.run(pair.engine.generate([], {"max_new_tokens": 4}))


def test_a_sequence_that_fills_the_context_can_be_probed(pair: Pair) -> None:
    pair.sync.set_probe([[5] * 256])
    pair.sync.verify()


def test_a_prompt_beyond_the_model_is_an_error_with_the_numbers(pair: Pair) -> None:
    with pytest.raises(EngineError, match=r"300 tokens leaves no room in the model's 256"):
        asyncio.run(pair.engine.generate([5] * 300, {"max_new_tokens": 4}))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
