"""Factories for the training tests: a tiny model, groups of samples, configurations, trainers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vime.config.run_config import RunConfig
from vime.sample import Sample, Status

if TYPE_CHECKING:
    from torch import Tensor

    from vime.train.batch import TrainBatch
    from vime.train.microbatch import MicroBatch, Row

VOCAB = 32


@pytest.fixture(scope="session")
def make_model(tmp_path_factory):
    """Write a tiny random Qwen3 and return its folder. `changes` are to its config."""

    def make(*, tied: bool = True, seed: int = 0, **changes: int) -> str:
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM

        from vime.train.quiet import quiet_transformers

        torch.manual_seed(seed)
        values = {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "max_position_embeddings": 128,
            "tie_word_embeddings": tied,
            "initializer_range": 0.2,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        config = Qwen3Config(**(values | changes))
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


@pytest.fixture(scope="session")
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


@dataclass
class LossCase:
    """A batch for the loss alone, in float64: its trained rows, and logits instead of a model.

    `logits` has for each of `rows` an (M, V) tensor with gradient, and `targets` the M tokens that were sampled.
    """

    batch: TrainBatch
    rows: list[Row]
    logits: list[Tensor]
    targets: list[list[int]]

    def weights(self, aggregation: str, longest: float = 1024.0) -> list[float]:
        """The loss weight of each row's tokens, as the trainer computes them for a step with all rows."""
        from vime.train.losses import token_weights

        indices = [row.index for row in self.rows]
        masks, rollouts = [self.batch.loss_masks[i] for i in indices], [self.batch.rollout_ids[i] for i in indices]
        return token_weights(masks, rollouts, aggregation, longest)

    def micro(self, picked: Sequence[int], weights: Sequence[float]) -> tuple[MicroBatch, Tensor, Tensor]:
        """A micro-batch of these rows, with the log-probs and entropies that a model would give for it."""
        import torch

        from vime.train.microbatch import collate

        rows = [self.rows[position] for position in picked]
        micro = collate(rows, [weights[position] for position in picked], torch.device("cpu"))
        exact = torch.tensor([weights[position] for position in picked for _ in self.targets[position]], dtype=torch.float64)
        micro = replace(micro, weights_K=exact)
        log_probs_K_V = torch.log_softmax(torch.cat([self.logits[position] for position in picked]), -1)
        targets_K = torch.tensor([token for position in picked for token in self.targets[position]])
        entropy_K = -(log_probs_K_V.exp() * log_probs_K_V).sum(-1)
        return micro, log_probs_K_V.gather(-1, targets_K[:, None]).squeeze(-1), entropy_K


@pytest.fixture
def make_loss_case():
    """Eight rows of six rollouts, three of them siblings, one sibling and one rollout removed; masked tokens hold NaN."""

    def make(seed: int = 0, *, vocab: int = 5) -> LossCase:
        import torch

        from vime.train.batch import TrainBatch
        from vime.train.microbatch import trained_rows

        rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        rollouts = [0, 0, 1, 2, 2, 2, 3, 4]
        lengths = [rng.randrange(1, 7) for _ in rollouts]
        masks = [[rng.randrange(2) for _ in range(length - 1)] + [1] for length in lengths]
        for removed in (4, 7):
            masks[removed] = [0] * lengths[removed]
        batch = TrainBatch(
            tokens=[[rng.randrange(vocab) for _ in range(length + rng.randrange(1, 4))] for length in lengths],
            response_lengths=lengths,
            loss_masks=masks,
            rewards=[rng.uniform(-2, 2) for _ in rollouts],
            raw_rewards=[0.0] * len(rollouts),
            truncated=[0] * len(rollouts),
            sample_indices=list(range(len(rollouts))),
            rollout_ids=rollouts,
            rollout_log_probs=[[float("nan")] * length for length in lengths],
        )
        rows = trained_rows(batch, 0, torch.device("cpu"))
        logits, targets = [], []
        for row in rows:
            count = len(row.positions)
            targets.append([row.tokens[position] for position in row.positions])
            logits.append(torch.randn(count, vocab, generator=generator, dtype=torch.float64).requires_grad_())
            fresh = torch.log_softmax(logits[-1].detach(), -1)[range(count), targets[-1]]

            def near(centre: Tensor, spread: float) -> Tensor:
                return centre + spread * (2 * torch.rand(len(centre), generator=generator, dtype=torch.float64) - 1)

            row.advantages_M = row.advantages_M.double()
            row.old_log_probs_M, row.ref_log_probs_M = near(fresh, 0.6), near(fresh, 1.5)
            row.rollout_log_probs_M = near(row.old_log_probs_M, 1.0)
        return LossCase(batch, rows, logits, targets)

    return make
