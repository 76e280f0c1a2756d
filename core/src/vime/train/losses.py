"""The mathematics of the losses, as pure functions on tensors.

All `_K` tensors hold one number for each of K response tokens of a micro-batch, rows one after another; `row_K` says
which row a token belongs to. Functions return per-token values; `weighted_sum` with `token_weights` makes the loss of
them, so that the loss of an optimizer step is a plain sum over micro-batches and ranks, whatever the split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

KL_TYPES = ("k1", "k2", "k3", "low_var_kl")
LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to this before exp, so that one outlier does not overflow float32."""


def weighted_sum(values: Tensor, weights: Tensor) -> Tensor:
    """sum(weights * values) over the entries whose weight is not zero.

    Values under a zero weight may be NaN or infinite: they reach neither the sum nor the gradient.
    """
    return (torch.where(weights != 0, values, torch.zeros_like(values)) * weights).sum()


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values under the mask; 0 where the mask is empty. Values outside it may be anything."""
    mask = mask.to(values.dtype)
    return weighted_sum(values, mask) / mask.sum().clamp_min(1.0)


def token_weights(loss_masks: Sequence[Sequence[int]], rollout_ids: Sequence[int], level: str, constant: float = 0.0) -> list[float]:
    """The weight of every trained token of each row in one optimizer step, over all its micro-batches and ranks.

    `sample`: 1 / (tokens of the rollout x rollouts), the mean over rollouts of the mean over their tokens (GRPO,
    arXiv:2402.03300, eq. 3). `token`: 1 / tokens (DAPO, arXiv:2503.14476, eq. 12). `constant`: 1 / (rollouts x
    `constant`), no length in any denominator (Dr. GRPO, arXiv:2503.20783, section 3.2). Rows of one rollout count as
    one rollout; rollouts without a trained token count as none.
    """
    row_tokens = [sum(mask) for mask in loss_masks]
    rollout_tokens: dict[int, int] = {}
    for tokens, rollout in zip(row_tokens, rollout_ids, strict=True):
        rollout_tokens[rollout] = rollout_tokens.get(rollout, 0) + tokens
    rollouts = sum(1 for tokens in rollout_tokens.values() if tokens)
    total = sum(row_tokens)
    if level == "token":
        return [1.0 / total if tokens else 0.0 for tokens in row_tokens]
    if level == "constant":
        return [1.0 / (rollouts * constant) if tokens else 0.0 for tokens in row_tokens]
    return [1.0 / (rollout_tokens[r] * rollouts) if tokens else 0.0 for tokens, r in zip(row_tokens, rollout_ids, strict=True)]


def step_share(loss_masks: Sequence[Sequence[int]], rollout_ids: Sequence[int], level: str) -> float:
    """1 / rollouts of an optimizer step that have a trained token, or 1 / trained tokens where `level` is token; 0 without any."""
    trained = [sum(mask) for mask in loss_masks]
    count = sum(trained) if level == "token" else len({rollout for rollout, tokens in zip(rollout_ids, trained, strict=True) if tokens})
    return 1.0 / count if count else 0.0


def kl_divergence(log_probs_K: Tensor, ref_log_probs_K: Tensor, kind: str, log_ratio_K: Tensor | None = None) -> Tensor:
    """Per-token estimates of KL(policy || reference) from samples of the policy (J. Schulman, "Approximating KL
    Divergence", 2020): with d = log p_ref - log p, k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1. `low_var_kl` is k3
    clamped to [-10, 10]. k3 in the loss is eq. 4 of arXiv:2402.03300.

    k1 and k3 are unbiased as values, k2 is not. In the loss the gradient counts, and there it is the other way round.
    Where tokens are fresh samples of the policy and g = grad log p, the gradient of the divergence is E[-d g]:

    - k1: g, whose mean is 0: no penalty at all, only noise;
    - k2: -d g: that of KL(policy || reference);
    - k3: (1 - exp(d)) g: that of KL(reference || policy), the two being equal to first order in d;
    - with `log_ratio_K` = log p - log p_old (with gradient) the estimate is multiplied by p / p_old, and k1 gives
      (1 - d) g and k3 gives -d g, both times p / p_old: the gradient of KL(policy || reference), also for tokens of
      p_old (DeepSeek-V3.2, arXiv:2512.02556, eq. 7). k2 is refused there: its product has the gradient of no divergence.
    """
    d = ref_log_probs_K - log_probs_K
    if kind == "k1":
        kl_K = -d
    elif kind == "k2":
        kl_K = d.square() / 2
    elif kind in ("k3", "low_var_kl"):
        kl_K = d.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).expm1() - d  # exp(d) - 1 would lose all digits of a small d
    else:
        raise ValueError(f"unknown KL type {kind!r}; known: {', '.join(KL_TYPES)}")
    if log_ratio_K is not None:
        if kind == "k2":
            raise ValueError("k2 times the ratio estimates no divergence; use k1, k3 or low_var_kl")
        kl_K = kl_K * log_ratio_K.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return kl_K.clamp(-10.0, 10.0) if kind == "low_var_kl" else kl_K


def ppo_clip_loss(
    log_ratio_K: Tensor, advantages_K: Tensor, eps_clip: float, eps_clip_high: float, eps_clip_c: float | None = None
) -> tuple[Tensor, Tensor]:
    """Per-token clipped surrogate loss, and where the clip decides.

    max(-A r, -A clip(r, 1 - eps_clip, 1 + eps_clip_high)): PPO (arXiv:1707.06347, eq. 7) with the asymmetric range of
    DAPO (arXiv:2503.14476, eq. 10). `eps_clip_c` > 1 bounds the loss of negative advantages by -A c: dual clip
    (arXiv:1912.09729, eq. 5).
    """
    ratio_K = log_ratio_K.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    plain_K = -advantages_K * ratio_K
    clipped_K = -advantages_K * ratio_K.clamp(1.0 - eps_clip, 1.0 + eps_clip_high)
    loss_K = torch.maximum(plain_K, clipped_K)
    is_clipped_K = clipped_K > plain_K
    if eps_clip_c is not None:
        bound_K = -advantages_K * eps_clip_c
        loss_K = torch.where(advantages_K < 0, torch.minimum(loss_K, bound_K), loss_K)
    return loss_K, is_clipped_K.to(loss_K.dtype)


def cispo_loss(
    log_probs_K: Tensor, log_ratio_K: Tensor, advantages_K: Tensor, eps_clip: float, eps_clip_high: float
) -> tuple[Tensor, Tensor]:
    """-sg(clip(r, 1 - eps_clip, 1 + eps_clip_high)) A log p: the importance weight is clipped and detached, and every
    token keeps its gradient. CISPO (arXiv:2506.13585, eq. 4 and 5).
    """
    ratio_K = log_ratio_K.detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    weight_K = ratio_K.clamp(1.0 - eps_clip, 1.0 + eps_clip_high)
    return -weight_K * advantages_K * log_probs_K, (weight_K != ratio_K).to(log_probs_K.dtype)


def sequence_mean(values_K: Tensor, mask_K: Tensor, row_K: Tensor, rows: int) -> Tensor:
    """The masked mean of each row, handed back to each of its tokens. `row_K` holds row numbers below `rows`."""
    mask_K = mask_K.to(values_K.dtype)
    clean_K = torch.where(mask_K != 0, values_K, torch.zeros_like(values_K)) * mask_K
    sums = torch.zeros(rows, dtype=values_K.dtype, device=values_K.device).index_add(0, row_K, clean_K)
    counts = torch.zeros(rows, dtype=values_K.dtype, device=values_K.device).index_add(0, row_K, mask_K)
    return (sums / counts.clamp_min(1.0))[row_K]


def gspo_log_ratio(log_ratio_K: Tensor, log_probs_K: Tensor, mask_K: Tensor, row_K: Tensor, rows: int) -> Tensor:
    """The length-normalised sequence log-ratio, the same for every token of a row: GSPO (arXiv:2507.18071, eq. 7).

    In GSPO-token form (eq. 14): the value is the sequence's, the gradient flows through the token's own log-prob; with
    one advantage per row and a mean over its tokens the gradient is that of the sequence form.
    """
    sequence_K = sequence_mean(log_ratio_K.detach(), mask_K, row_K, rows)
    return sequence_K + log_probs_K - log_probs_K.detach()


def is_finite(value: Tensor | float) -> bool:
    """Whether a scalar is finite."""
    return math.isfinite(float(value))
