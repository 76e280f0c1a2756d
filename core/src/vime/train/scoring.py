"""Log-probs without a training step: of rows, and of the trained tokens of samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vime.errors import TrainerError
from vime.sample import Sample
from vime.train.microbatch import MicroBatch, Row, Share, scoring_batches

ALONE = Share()


@torch.no_grad()
def token_scores(
    forward: Callable[[MicroBatch], Tensor],
    rows: Sequence[Row],
    config: Any,
    device: torch.device,
    share: Share = ALONE,
    pair_cost: float | None = None,
) -> list[Tensor]:
    """What `forward` makes of each row's trained tokens, M numbers a row in the order of `rows`, by micro-batches of `max_tokens_per_gpu`.

    The ranks of `share` call this with the same rows. Each does its part of them and gets the numbers of all.
    """
    if not rows:
        return []
    counts = [len(row.positions) for row in rows]
    scores = torch.zeros(sum(counts), dtype=torch.float32, device=device)
    places = scores.split(counts)
    for positions, micro in scoring_batches(rows, config, device, share, pair_cost):
        scores_K = forward(micro)
        if positions:
            for position, scores_M in zip(positions, micro.split(scores_K), strict=True):
                places[position].copy_(scores_M)
    if share.ranks > 1:
        torch.distributed.all_reduce(scores)  # a number from one rank, and zeros from the others
    return [scores_M.clone() for scores_M in places]


def row_log_probs(
    model: Any,
    config: Any,
    rows: Sequence[Row],
    device: torch.device,
    temperature: float | None = None,
    share: Share = ALONE,
) -> list[Tensor]:
    """The log-probs of each row's trained tokens, as `token_scores` gives them.

    `model` is a PolicyModel, or a DeepSpeed engine around one.
    """

    def log_probs(micro: MicroBatch) -> Tensor:
        return model(micro.input_ids_B_T, micro.select_K, micro.targets_K, temperature=temperature, **micro.layout)[0]

    return token_scores(log_probs, rows, config, device, share, model.pair_cost)


def sample_log_probs(
    model: Any,
    config: Any,
    samples: Sequence[Sample],
    vocab_size: int,
    device: torch.device,
    share: Share = ALONE,
) -> list[list[float]]:
    """The log-probs at temperature 1 of each sample's trained tokens (mask 1), none for a removed one.

    Raises TrainerError, naming the sample, for a token that the model does not have.
    """
    rows: list[Row] = []
    for number, sample in enumerate(samples):
        if sample.tokens and not (min(sample.tokens) >= 0 and max(sample.tokens) < vocab_size):
            foreign = next(token for token in sample.tokens if not 0 <= token < vocab_size)
            raise TrainerError(
                f"sample {sample.index} holds token {foreign}, and the model has {vocab_size} tokens",
                hint="evaluate on samples that were tokenised for this model",
            )
        start = len(sample.tokens) - sample.response_length
        mask = sample.loss_mask if sample.loss_mask is not None else [1] * sample.response_length
        # The first token of a sequence has no prediction.
        positions = [start + offset for offset, flag in enumerate(mask) if flag and start + offset > 0]
        if positions and not sample.remove_sample:
            rows.append(Row(sample.tokens, positions, number, True, torch.zeros(len(positions), device=device)))
    scored = dict(zip([row.index for row in rows], row_log_probs(model, config, rows, device, 1.0, share), strict=True))
    return [scored[number].tolist() if number in scored else [] for number in range(len(samples))]


class ModelScorer:
    """A model that only scores: what a supervised evaluation without training needs. Holds no gradients and no optimizer."""

    def __init__(self, config: Any, model_path: str) -> None:
        from vime.train.deepspeed_config import resolve_train_dtype
        from vime.train.model_loading import check_model_folder, count_parameters, load_model
        from vime.train.policy_model import PolicyModel

        check_model_folder(model_path)
        self.config = config
        self.device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        dtype = resolve_train_dtype(config.train_dtype, count_parameters(model_path), self.device)
        model: Any = load_model(model_path, dtype, config.attn_implementation, self.device)
        self.vocab_size: int = model.config.vocab_size
        self.policy = PolicyModel(model, 1.0, config.logprob_chunk_size).eval().requires_grad_(False)

    def sample_log_probs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """As the function of this name."""
        return sample_log_probs(self.policy, self.config, samples, self.vocab_size, self.device)
