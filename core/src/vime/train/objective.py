"""What is minimised: from a micro-batch and its log-probs to per-token terms. `losses.py` has the formulas."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vime.train import losses
from vime.train.microbatch import MicroBatch

Terms = dict[str, Tensor]
"""Per-token values by metric name; `loss` is the one to differentiate."""


def loss_terms(config: Any, micro: MicroBatch, log_probs_K: Tensor, entropy_K: Tensor) -> Terms:
    """The terms of `config.loss_type`."""
    if config.loss_type == "sft_loss":
        return {"loss": -log_probs_K, "entropy_loss": entropy_K.detach()}
    return policy_terms(config, micro, log_probs_K, entropy_K)


def policy_terms(config: Any, micro: MicroBatch, log_probs_K: Tensor, entropy_K: Tensor) -> Terms:
    """pg_loss - entropy_coef x entropy + kl_loss_coef x KL(policy || reference), with the parts as metrics."""
    old_K = old_log_probs(micro, log_probs_K)
    pg_loss_K, clipped_K = policy_gradient(config, micro, log_probs_K, old_K)
    terms: Terms = {"pg_clipfrac": clipped_K, "ppo_kl": (old_K - log_probs_K).detach(), "entropy_loss": entropy_K.detach()}
    if config.use_tis and micro.rollout_log_probs_K is not None:
        weight_K, tis_clipped_K = losses.truncated_importance_weights(
            old_K,
            micro.rollout_log_probs_K,
            torch.ones_like(log_probs_K),
            micro.row_K,
            len(micro.rows),
            low=config.tis_clip_low,
            high=config.tis_clip,
            level=config.tis_level,
        )
        pg_loss_K = pg_loss_K * weight_K
        terms |= {"tis_weight": weight_K, "tis_clipfrac": tis_clipped_K}
    loss_K = pg_loss_K
    if config.entropy_coef:
        loss_K = loss_K - config.entropy_coef * entropy_K
    if micro.ref_log_probs_K is not None:
        kl_K = losses.kl_divergence(log_probs_K, micro.ref_log_probs_K, config.kl_loss_type)
        terms["kl_loss"] = kl_K.detach()
        if config.use_kl_loss:
            loss_K = loss_K + config.kl_loss_coef * kl_K
    return terms | {"loss": loss_K, "pg_loss": pg_loss_K.detach()}


def old_log_probs(micro: MicroBatch, log_probs_K: Tensor) -> Tensor:
    """Where the ratio starts from: the recorded log-probs, else this forward pass's own, detached (ratio 1)."""
    if micro.old_log_probs_K is None:
        return log_probs_K.detach()
    if micro.has_old_K is None:
        return micro.old_log_probs_K
    return torch.where(micro.has_old_K, micro.old_log_probs_K, log_probs_K.detach())


def policy_gradient(config: Any, micro: MicroBatch, log_probs_K: Tensor, old_K: Tensor) -> tuple[Tensor, Tensor]:
    """The per-token policy loss of the estimator, and where its clip acted."""
    log_ratio_K = log_probs_K - old_K
    if config.advantage_estimator == "cispo":
        return losses.cispo_loss(log_probs_K, log_ratio_K, micro.advantages_K, config.eps_clip, config.eps_clip_high)
    if config.advantage_estimator == "gspo":
        log_ratio_K = losses.gspo_log_ratio(log_ratio_K, log_probs_K, torch.ones_like(log_probs_K), micro.row_K, len(micro.rows))
    return losses.ppo_clip_loss(log_ratio_K, micro.advantages_K, config.eps_clip, config.eps_clip_high, config.eps_clip_c)
