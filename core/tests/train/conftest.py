"""Factories for the training tests: a tiny model, groups of samples, configurations, trainers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from vime.config.run_config import RunConfig
from vime.sample import Sample, Status

VOCAB = 32


@pytest.fixture(scope="session")
def make_model(tmp_path_factory):
    """Write a tiny random Qwen3 and return its folder."""

    def make(*, tied: bool = True, seed: int = 0) -> str:
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM

        from vime.train.quiet import quiet_transformers

        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=128,
            tie_word_embeddings=tied,
            initializer_range=0.2,
            bos_token_id=1,
            eos_token_id=2,
        )
        folder = tmp_path_factory.mktemp("model")
        with quiet_transformers():
            Qwen3ForCausalLM(config).save_pretrained(folder)
        return str(folder)

    return make


@pytest.fixture(scope="session")
def model_path(make_model) -> str:
    return make_model()


@pytest.fixture
def make_config():
    def make(**values) -> RunConfig:
        defaults = {"rollout_batch_size": 3, "n_samples_per_prompt": 4, "lr": 1e-3, "weight_decay": 0.0, "train_dtype": "float32"}
        return RunConfig(**(defaults | values))

    return make


@pytest.fixture
def make_groups():
    """Groups of samples with random tokens and 0/1 rewards, at least one of each in a group."""

    def make(groups: int = 3, size: int = 4, *, seed: int = 0, version: int | None = 0) -> list[list[Sample]]:
        rng = random.Random(seed)
        return [[_sample(rng, group, group * size + i, version, float(i % 2)) for i in range(size)] for group in range(groups)]

    return make


def _sample(rng: random.Random, group: int, index: int, version: int | None, reward: float) -> Sample:
    sample = Sample(group_index=group, index=index, tokens=[rng.randrange(VOCAB) for _ in range(rng.randrange(2, 6))])
    length = rng.randrange(2, 9)
    tokens = [rng.randrange(VOCAB) for _ in range(length)]
    sample.append_response_tokens(tokens=tokens, log_probs=[-3.0] * length, meta_info={"weight_version": version})
    sample.reward, sample.status = reward, Status.COMPLETED
    return sample


@pytest.fixture
def make_trainer(model_path):
    """Build trainers and release them at the end of the test."""
    from vime.train.deepspeed_trainer import DeepSpeedTrainer

    made: list[DeepSpeedTrainer] = []

    def make(config, path: str | Path | None = None, **options) -> DeepSpeedTrainer:
        trainer = DeepSpeedTrainer(config, str(path or model_path), **options)
        made.append(trainer)
        return trainer

    yield make
    for trainer in made:
        trainer.close()
