"""Off-policy correction, as pure functions on tensors: the engine samples from a policy that is not quite the trainer's.

The engine computes with other kernels and number formats, and may hold older weights. With p_old the trainer's policy
before its first step on the rollout and mu the engine's, the loss of each token is multiplied by a bounded p_old / mu.

`_K` tensors hold one number for each of K trained tokens of a micro-batch; `row_K` says which row a token belongs to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vime.train.losses import LOG_RATIO_LIMIT, sequence_mean

LEVELS = ("token", "sequence", "geometric")
MODES = ("truncate", "mask")


def mismatch_ratio(log_probs_K: Tensor, rollout_log_probs_K: Tensor, row_K: Tensor, rows: int, level: str) -> Tensor:
    """p_old / mu, detached: of each token, or one for the whole of each row, at every one of its tokens.

    `token`: the token's own ratio (F. Yao et al., "Your efficient RL framework secretly brings you off-policy RL
    training", 2025); its variance is low and the gradient's bias grows with the length. `sequence`: the product over the
    trained tokens of the row, without bias (J. Liu et al., "When speed kills stability: demystifying RL collapse from the
    training-inference mismatch", 2025, Seq-TIS and Seq-MIS). `geometric`: the length-th root of that product, which does
    not drift with the length and is a criterion rather than an unbiased weight.
    """
    log_ratio_K = (log_probs_K - rollout_log_probs_K).detach()
    if level != "token":
        ones_K = torch.ones_like(log_ratio_K)
        log_ratio_K = sequence_mean(log_ratio_K, ones_K, row_K, rows)
        if level == "sequence":
            log_ratio_K = log_ratio_K * sequence_count(row_K, rows)
    return log_ratio_K.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def sequence_count(row_K: Tensor, rows: int) -> Tensor:
    """The number of trained tokens of each token's row."""
    return torch.bincount(row_K, minlength=rows)[row_K]


def truncated(ratio_K: Tensor, low: float, high: float) -> Tensor:
    """clip(ratio, low, high): truncated importance sampling (Yao et al. 2025, with low = 0: min(ratio, C))."""
    return ratio_K.clamp(low, high)


def masked(ratio_K: Tensor, low: float, high: float) -> Tensor:
    """The ratio where low <= ratio <= high, else 0, which takes the loss of these tokens away.

    Masked importance sampling: at the level of tokens that is IcePop (arXiv:2510.18855, section 2.3.2, M(k; alpha, beta)),
    of rows Seq-MIS. Denominators stay as they are: a masked token counts as one with loss 0. A ratio that is not a number
    stays one, so that the step is skipped and counted.
    """
    return torch.where((ratio_K < low) | (ratio_K > high), torch.zeros_like(ratio_K), ratio_K)


def mismatch_metrics(log_probs_K: Tensor, rollout_log_probs_K: Tensor) -> dict[str, Tensor]:
    """Per-token estimates of KL(mu || p_old) from samples of mu: k1 and k3 (J. Schulman, "Approximating KL Divergence", 2020)."""
    log_ratio_K = (log_probs_K - rollout_log_probs_K).detach()
    k3_K = log_ratio_K.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).expm1() - log_ratio_K
    return {"mismatch_kl": -log_ratio_K, "mismatch_k3_kl": k3_K}


def correction(
    log_probs_K: Tensor, rollout_log_probs_K: Tensor, row_K: Tensor, rows: int, *, low: float, high: float, level: str, mode: str
) -> tuple[Tensor, dict[str, Tensor]]:
    """The weight of each token's policy loss, detached, and K numbers for each metric.

    `tis` is the ratio as it is and `tis_abs` its distance from 1; `tis_weight` is what is multiplied with, and
    `tis_clipfrac` (truncate) or `tis_maskfrac` (mask) says where the bounds acted.
    """
    ratio_K = mismatch_ratio(log_probs_K, rollout_log_probs_K, row_K, rows, level)
    weight_K = truncated(ratio_K, low, high) if mode == "truncate" else masked(ratio_K, low, high)
    acted_K = (weight_K != ratio_K).to(ratio_K.dtype)
    metrics = {"tis": ratio_K, "tis_abs": (ratio_K - 1).abs(), "tis_weight": weight_K}
    metrics["tis_clipfrac" if mode == "truncate" else "tis_maskfrac"] = acted_K
    return weight_K, metrics | mismatch_metrics(log_probs_K, rollout_log_probs_K)
