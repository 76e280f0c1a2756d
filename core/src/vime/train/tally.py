"""Sums over micro-batches that become the metrics of a rollout's training."""

from __future__ import annotations

import torch
from torch import Tensor

from vime.train.losses import weighted_sum
from vime.train.microbatch import MicroBatch

SUMMED = ("loss", "pg_loss")
"""Terms reported as the weighted sums that they are; the others are divided by the sum of the weights."""


class Tally:
    """Collects detached sums, step by step; steps that were skipped leave no trace in the means."""

    def __init__(self) -> None:
        self._steps: list[dict[str, float]] = []
        self._sums: dict[str, Tensor] = {}
        self._weight: Tensor | float = 0.0
        self.step_loss: Tensor | None = None
        self.measures_difference = True
        """Whether `add` compares with the rollout's log-probs: right as long as the weights are those of the rollout."""
        self._diff: Tensor | float = 0.0
        self._diff_tokens = 0
        self._tokens = 0
        self._used = 0
        self._padded = 0

    @torch.no_grad()
    def add(self, terms: dict[str, Tensor], loss: Tensor, micro: MicroBatch, log_probs_K: Tensor) -> None:
        """Count one micro-batch."""
        for name, values_K in terms.items():
            total = loss.detach() if name == "loss" else weighted_sum(values_K.detach(), micro.weights_K)
            self._sums[name] = self._sums[name] + total if name in self._sums else total
        self.step_loss = self._sums["loss"]
        self._weight = self._weight + micro.weights_K.sum()
        if self.measures_difference and micro.rollout_log_probs_K is not None:
            for row, ours, weight in zip(micro.rows, micro.split(log_probs_K), micro.split(micro.weights_K), strict=True):
                self.add_difference(ours, row.rollout_log_probs_M, row.is_current and bool(weight[0] != 0))
        self._tokens += len(micro.targets_K)
        self._used += sum(row.input_length for row in micro.rows)
        self._padded += micro.input_ids_B_T.numel()

    @torch.no_grad()
    def add_difference(self, log_probs_M: Tensor, rollout_log_probs_M: Tensor | None, is_counted: bool) -> None:
        """Compare one row of the current weights with what the engine said."""
        if is_counted and rollout_log_probs_M is not None:
            self._diff = self._diff + (log_probs_M - rollout_log_probs_M).abs().sum()
            self._diff_tokens += len(log_probs_M)

    @property
    def has_difference(self) -> bool:
        """Whether any token was compared."""
        return self._diff_tokens > 0

    def mean_abs_diff(self) -> float:
        """Mean |train - rollout log-prob| over tokens of the current weights; 0 where there are none."""
        return float(self._diff) / self._diff_tokens if self._diff_tokens else 0.0

    def finish_step(self, grad_norm: float, lr: float) -> None:
        """The step was applied: its means count."""
        weight = float(self._weight)
        means = {name: float(total) / (1.0 if name in SUMMED else weight) for name, total in self._sums.items()}
        self._steps.append(means | {"grad_norm": grad_norm, "lr": lr})
        self.skip()

    def skip(self) -> None:
        """Start the next step; forget the sums of this one."""
        self._sums, self._weight, self.step_loss = {}, 0.0, None

    def metrics(self) -> dict[str, float]:
        """Means over the applied steps; `lr` is that of the last one. Loss 0 where no step was applied."""
        names = {name: None for step in self._steps for name in step}
        result = {name: sum(step[name] for step in self._steps) / len(self._steps) for name in names}
        if self._steps:
            result["lr"] = self._steps[-1]["lr"]
        if self._diff_tokens:
            result["train_rollout_logprob_abs_diff"] = self.mean_abs_diff()
        result["tokens"] = float(self._tokens)
        result["padding_fraction"] = 1.0 - self._used / self._padded if self._padded else 0.0
        return {"loss": 0.0} | result
