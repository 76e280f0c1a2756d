"""Per-token advantages from shaped rewards, as pure functions on the M trained tokens of a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vime.train.losses import kl_divergence
from vime.train.microbatch import Row
from vime.train.values import generalised_advantages, token_rewards

WHITEN_EPSILON = 1e-8


def discounted_returns(reward: float, kl_M: Tensor, kl_coef: float, gamma: float) -> Tensor:
    """REINFORCE++ (arXiv:2501.03262, eq. 4 to 6): the token reward is -kl_coef KL_t, plus the reward at the last
    token; the return of token t is the discounted sum from t on.
    """
    rewards_M = token_rewards(reward, kl_M, kl_coef)
    returns = torch.zeros_like(rewards_M)
    running = 0.0
    for t in range(len(rewards_M) - 1, -1, -1):
        running = float(rewards_M[t]) + gamma * running
        returns[t] = running
    return returns.to(kl_M.dtype)


def broadcast_with_kl(reward: float, kl_M: Tensor, kl_coef: float) -> Tensor:
    """The shaped reward on every token, less kl_coef KL_t of that token (REINFORCE++ baseline, arXiv:2501.03262)."""
    return reward - kl_coef * kl_M


def token_advantages(estimator: str, reward: float, kl_M: Tensor, *, kl_coef: float, gamma: float) -> Tensor:
    """The advantages of one row's trained tokens. `kl_M` is KL(policy || reference) per token, zeros without a reference."""
    if estimator == "reinforce_plus_plus":
        return discounted_returns(reward, kl_M, kl_coef, gamma)
    return broadcast_with_kl(reward, kl_M, kl_coef)


def whiten(advantages: Sequence[Tensor]) -> list[Tensor]:
    """(A - mean) / sqrt(var + 1e-8) over all trained tokens of the batch, var unbiased; a single token becomes 0."""
    flat = torch.cat(list(advantages)).double()
    centred = flat - flat.mean()
    variance = centred.square().sum() / max(1, len(flat) - 1)
    whitened = (centred / (variance + WHITEN_EPSILON).sqrt()).float()
    return list(whitened.split([len(part) for part in advantages]))


def fill_advantages(config: Any, rows: Sequence[Row]) -> None:
    """Turn each row's shaped reward, which `advantages_M` holds to begin with, into its advantages, in place.

    Rows that a critic has valued get its generalised advantages, and the returns that it learns, which are never whitened.
    """
    for row in rows:
        reward, kl_M = float(row.advantages_M[0]), torch.zeros_like(row.advantages_M)
        if config.kl_coef and row.old_log_probs_M is not None and row.ref_log_probs_M is not None:
            kl_M = kl_divergence(row.old_log_probs_M, row.ref_log_probs_M, config.kl_loss_type)
        if row.values_M is not None:
            rewards_M = token_rewards(reward, kl_M, config.kl_coef)
            row.advantages_M, row.returns_M = generalised_advantages(rewards_M, row.values_M, config.gamma, config.lambd)
        else:
            row.advantages_M = token_advantages(config.advantage_estimator, reward, kl_M, kl_coef=config.kl_coef, gamma=config.gamma)
    if config.normalize_advantages and rows:
        for row, advantages in zip(rows, whiten([row.advantages_M for row in rows]), strict=True):
            row.advantages_M = advantages
