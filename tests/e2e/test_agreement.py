"""Engine and trainer agree on what was sampled: after each sync, in every ZeRO stage and number format, with and without adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vime.config.run_config import RunConfig
from vime.sample import Sample, Status

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore:.*reduce_scatter_tensor:FutureWarning")]

LIMITS = {"float32": 1e-4, "bfloat16": 2e-2}
TEMPERATURE = 0.8


@dataclass
class Served:
    """An engine with the model that it was started on."""

    engine: Any
    model: str
    dtype: str

    def config(self, **values: Any) -> RunConfig:
        sizes = {"rollout_batch_size": 4, "n_samples_per_prompt": 4, "rollout_max_response_len": 24, "num_rollout": 1}
        return RunConfig(hf_checkpoint=self.model, train_dtype=self.dtype, rollout_temperature=TEMPERATURE, **sizes, **values)

    def roll_out(self, version: int) -> list[list[Sample]]:
        """Four groups of four, generated now, said to be of this version of the weights."""
        prompts = [self.engine.tokenizer.encode(text) for text in ("1+2=", "12+3=", "31-4=", "What is 7*8? ")]
        params = [{"temperature": TEMPERATURE, "max_new_tokens": 24, "seed": number} for number in range(4)]
        generations = asyncio.run(self.engine.generate_many([(prompt, p) for prompt in prompts for p in params]))
        groups: list[list[Sample]] = []
        for number, generation in enumerate(generations):
            sample = Sample(group_index=number // 4, index=number, tokens=list(prompts[number // 4]))
            sample.append_response_tokens(
                tokens=generation.token_ids, log_probs=generation.log_probs, meta_info={"weight_version": version}
            )
            sample.reward, sample.status = float(number % 2), Status.COMPLETED
            groups = [*groups, [sample]] if number % 4 == 0 else [*groups[:-1], [*groups[-1], sample]]
        return groups


@pytest.fixture(scope="module", params=[(dtype, tied) for dtype in LIMITS for tied in (True, False)], ids=str)
def served(request: pytest.FixtureRequest, model_factory: Callable[[bool], Path]) -> Iterator[Served]:
    from vime.engine.local import LocalEngine
    from vime.train.deepspeed_config import start_process_group

    dtype, tied = request.param
    model = str(model_factory(tied))
    import torch

    start_process_group(torch.device("cpu"))  # the trainers' group has to be there before the engine
    served = Served(None, model, dtype)
    served.engine = LocalEngine(served.config(), model, dtype=dtype, deterministic=False, concurrency=16)
    yield served
    served.engine.close()


@pytest.mark.parametrize("rank", [0, 4], ids=["full", "lora"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_log_probs_agree_on_the_first_step_after_each_sync(served: Served, stage: int, rank: int) -> None:
    from vime.train.batch import build_train_batch
    from vime.train.deepspeed_trainer import DeepSpeedTrainer
    from vime.train.weights import WeightSync

    config = served.config(zero_stage=stage, lora_rank=rank, lr=3e-2 if rank else 3e-3)
    trainer = DeepSpeedTrainer(config, served.model)
    try:
        sync = WeightSync(config, trainer, served.engine, lambda version: served.engine.update_weights(trainer.named_weights(), version))
        differences: list[float] = []
        for _ in range(3):
            sync.sync()
            metrics = trainer.train(build_train_batch(config, None, served.roll_out(trainer.weight_version)))
            differences.append(metrics["train_rollout_logprob_abs_diff"])
            assert metrics["optimizer_steps"] == 1
        stale = trainer.train(build_train_batch(config, None, served.roll_out(trainer.weight_version)))
    finally:
        trainer.close()
    assert max(differences) < LIMITS[served.dtype]
    assert stale["train_rollout_logprob_abs_diff"] > 5 * LIMITS[served.dtype]  # the weights of one step before are told apart


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
