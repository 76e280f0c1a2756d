"""What is minimised: from a micro-batch and its log-probs to a loss. `losses.py` has the formulas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vime.errors import ConfigError, ContractError
from vime.train import losses
from vime.train.corrections import correction
from vime.train.losses import weighted_sum
from vime.train.microbatch import MicroBatch


@dataclass
class LossResult:
    """The loss of a micro-batch and what is reported about it, all as shares of the optimizer step's sums."""

    loss: Tensor
    """Scalar, to be differentiated; the losses of a step's micro-batches add up to the step's."""
    sums: dict[str, Tensor] = field(default_factory=dict)
    """Detached scalars that add up to the reported number."""
    means: dict[str, Tensor] = field(default_factory=dict)
    """Detached weighted sums; divided by the step's sum of weights they are the reported mean."""


@dataclass
class LossInputs:
    """What the hook `policy_loss` gets: tensors over the K trained tokens of the micro-batch.

    `reduce` turns K numbers into this micro-batch's share of the scalar that `--loss-aggregation` asks for.
    """

    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    entropy: Tensor
    ref_log_probs: Tensor | None
    rollout_log_probs: Tensor | None
    rows: Tensor
    """The row of each token, numbered within the micro-batch."""
    micro: MicroBatch

    def reduce(self, values_K: Tensor) -> Tensor:
        """sum(weight x value)."""
        return weighted_sum(values_K, self.micro.weights_K)


class Objective:
    """Chooses the loss once, from the configuration and the plugins that replace a part of it."""

    def __init__(self, config: Any, plugins: Any = None) -> None:
        self.config = config
        claimed = plugins.claimed if plugins is not None else lambda hook: None
        self.policy_loss: Any = claimed("policy_loss")
        self.importance_weights: Any = claimed("importance_weights")
        self.reducer: Any = claimed("pg_loss_reducer")
        if config.loss_type == "custom_loss" and self.policy_loss is None:
            raise ConfigError(
                "--loss-type custom_loss, but nothing provides the loss",
                hint="add --custom-loss-function-path, or --plugin with a plugin that has the hook policy_loss",
            )

    def __call__(self, micro: MicroBatch, log_probs_K: Tensor, entropy_K: Tensor) -> LossResult:
        """The loss of `config.loss_type` for one micro-batch."""
        if self.config.loss_type == "sft_loss":
            loss = weighted_sum(-log_probs_K, micro.weights_K)
            return LossResult(loss, {"loss": loss.detach()}, {"entropy_loss": weighted_sum(entropy_K.detach(), micro.weights_K)})
        if self.config.loss_type == "custom_loss":
            return self._custom(micro, log_probs_K, entropy_K)
        return self._policy(micro, log_probs_K, entropy_K)

    def _policy(self, micro: MicroBatch, log_probs_K: Tensor, entropy_K: Tensor) -> LossResult:
        """pg_loss - entropy_coef x entropy + kl_loss_coef x KL(policy || reference)."""
        config = self.config
        old_K = old_log_probs(micro, log_probs_K)
        pg_loss_K, clipped_K = policy_gradient(config, micro, log_probs_K, old_K)
        tokens: dict[str, Tensor] = {"pg_clipfrac": clipped_K, "ppo_kl": old_K - log_probs_K, "entropy_loss": entropy_K}
        mask_K = torch.ones_like(old_K)
        if config.use_tis and micro.rollout_log_probs_K is not None:
            pg_loss_K, mask_K, metrics = self._correct(micro, pg_loss_K, old_K, micro.rollout_log_probs_K)
            tokens |= metrics
        pg_loss = self._reduce(micro, pg_loss_K, mask_K)
        loss = pg_loss
        if config.entropy_coef:
            loss = loss - config.entropy_coef * weighted_sum(entropy_K, micro.weights_K)
        if micro.ref_log_probs_K is not None:
            log_ratio_K = log_probs_K - old_K if config.use_unbiased_kl else None
            kl_K = losses.kl_divergence(log_probs_K, micro.ref_log_probs_K, config.kl_loss_type, log_ratio_K)
            tokens["kl_loss"] = kl_K
            if config.use_kl_loss:
                loss = loss + config.kl_loss_coef * weighted_sum(kl_K, micro.weights_K)
        means = {name: weighted_sum(values_K.detach(), micro.weights_K) for name, values_K in tokens.items()}
        return LossResult(loss, {"loss": loss.detach(), "pg_loss": pg_loss.detach()}, means)

    def _custom(self, micro: MicroBatch, log_probs_K: Tensor, entropy_K: Tensor) -> LossResult:
        hook = self.policy_loss
        inputs = LossInputs(
            log_probs=log_probs_K,
            old_log_probs=old_log_probs(micro, log_probs_K),
            advantages=micro.advantages_K,
            entropy=entropy_K,
            ref_log_probs=micro.ref_log_probs_K,
            rollout_log_probs=micro.rollout_log_probs_K,
            rows=micro.row_K,
            micro=micro,
        )
        result = hook.run(args=self.config, inputs=inputs)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            got = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
            raise ContractError(f"{hook.label}: policy_loss returned {got}; expected a loss and a dict", hint="return (loss, metrics)")
        loss, metrics = result
        _check_tensor(hook, "loss", loss, ())
        _check_gradient(hook, "loss", loss, log_probs_K)
        share = micro.weights_K.sum()
        # A rank without rows of its own runs one of weight 0: whatever a function makes of it does not belong to the step.
        loss = torch.where(share != 0, loss, 0.0 * loss)
        means = {name: _scalar(hook, name, value, loss.device) * share for name, value in metrics.items()}
        return LossResult(loss, {"loss": loss.detach()}, means)

    def _correct(self, micro: MicroBatch, pg_loss_K: Tensor, old_K: Tensor, rollout_K: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The loss corrected for engine log-probs that are not the trainer's, by a plugin or by TIS; 1 for each token that keeps a loss."""
        config, hook = self.config, self.importance_weights
        if hook is None:
            bounds = {"low": config.tis_clip_low, "high": config.tis_clip, "level": config.tis_level, "mode": config.tis_mode}
            weight_K, metrics = correction(old_K, rollout_K, micro.row_K, len(micro.rows), **bounds)
            return pg_loss_K * weight_K, (weight_K != 0).to(old_K.dtype), metrics
        result = hook.run(
            args=config,
            pg_loss=pg_loss_K,
            train_log_probs=micro.split(old_K),
            rollout_log_probs=micro.split(rollout_K),
            loss_masks=micro.split(torch.ones_like(old_K)),
            total_lengths=[len(row.tokens) for row in micro.rows],
            response_lengths=[len(row.positions) for row in micro.rows],
        )
        if not isinstance(result, tuple) or len(result) != 3 or not isinstance(result[2], dict):
            got = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
            raise ContractError(
                f"{hook.label}: importance_weights returned {got}; expected the loss, a list of masks and a dict",
                hint="return (pg_loss, loss_masks, metrics)",
            )
        corrected_K, masks, metrics = result
        if not isinstance(masks, list | tuple) or not all(isinstance(mask, Tensor) and mask.ndim == 1 for mask in masks):
            raise ContractError(
                f"{hook.label}: importance_weights returned a {type(masks).__name__} as loss_masks; expected a list of tensors",
                hint="return loss_masks as they came, or with entries set to 0",
            )
        mask_K = torch.cat(tuple(masks))
        for name, values in (("pg_loss", corrected_K), ("loss_masks", mask_K), *metrics.items()):
            _check_tensor(hook, name, values, pg_loss_K.shape)
        _check_gradient(hook, "pg_loss", corrected_K, pg_loss_K)
        return torch.where(mask_K != 0, corrected_K, torch.zeros_like(corrected_K)), mask_K, dict(metrics)

    def _reduce(self, micro: MicroBatch, pg_loss_K: Tensor, mask_K: Tensor) -> Tensor:
        """The policy loss as one number: by a plugin's reducer, a sum over rows, or by the weights of the aggregation."""
        hook = self.reducer
        if hook is None:
            return weighted_sum(pg_loss_K, micro.weights_K)
        counts = [len(row.positions) for row in micro.rows]
        reduce = hook.run(
            total_lengths=[len(row.tokens) for row in micro.rows],
            response_lengths=counts,
            loss_masks=micro.split(mask_K * (micro.weights_K != 0)),
            calculate_per_token_loss=self.config.calculate_per_token_loss,
        )
        if not callable(reduce):
            raise ContractError(
                f"{hook.label}: pg_loss_reducer returned {type(reduce).__name__}; expected a function",
                hint="return a function of the per-token losses",
            )
        try:
            loss: Any = reduce(pg_loss_K)
        except Exception as error:
            error.add_note(f"in the function that pg_loss_reducer of {hook.label} returned")
            raise
        _check_tensor(hook, "the reduced loss", loss, ())
        _check_gradient(hook, "the reduced loss", loss, pg_loss_K)
        return loss * micro.share


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


def _check_tensor(hook: Any, name: str, value: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(value, Tensor) or value.shape != torch.Size(shape):
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ContractError(
            f"{hook.label}: {hook.hook}: {name} has {got}, expected a tensor of shape {tuple(shape)}",
            hint="a scalar, such as inputs.reduce(values)" if not shape else "one number for each response token of the micro-batch",
        )


def _check_gradient(hook: Any, name: str, value: Tensor, source: Tensor) -> None:
    """What comes out depends on what went in, so that it can be differentiated."""
    if source.requires_grad and not value.requires_grad:
        raise ContractError(
            f"{hook.label}: {hook.hook}: {name} has no gradient, so there is nothing to train on",
            hint="compute it from the tensors that it is given, without detach(), item() or torch.no_grad()",
        )


def _scalar(hook: Any, name: str, value: Any, device: torch.device) -> Tensor:
    try:
        number = torch.as_tensor(value, dtype=torch.float32, device=device).detach()
    except (TypeError, ValueError, RuntimeError):
        number = None
    if number is None or number.ndim:
        got = f"shape {tuple(number.shape)}" if number is not None else type(value).__name__
        raise ContractError(f"{hook.label}: {hook.hook}: the metric {name!r} has {got}; expected a number", hint="values.mean()")
    return number
