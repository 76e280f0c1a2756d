"""Sums over micro-batches that become the metrics of a rollout's training."""

from __future__ import annotations

import torch
from torch import Tensor

from vime.train.microbatch import MicroBatch
from vime.train.objective import LossResult


class Tally:
    """Collects detached sums, step by step; steps that were skipped leave no trace in the means.

    `ranks` processes each count their own micro-batches. Reading a mean adds them up, so all of them must read together.
    """

    def __init__(self, ranks: int, device: torch.device) -> None:
        self._ranks = ranks
        self._device = device
        self._steps: list[dict[str, float]] = []
        self._sums: dict[str, Tensor] = {}
        self._means: dict[str, Tensor] = {}
        self._weight: Tensor | float = 0.0
        self.measures_difference = True
        """Whether `add` compares with the rollout's log-probs: right as long as the weights are those of the rollout."""
        self._diff: Tensor | float = 0.0
        self._diff_tokens = 0
        self._tokens = 0
        self._used = 0
        self._padded = 0

    @torch.no_grad()
    def add(self, result: LossResult, micro: MicroBatch, log_probs_K: Tensor) -> None:
        """Count one micro-batch. Rows of weight 0 are there to keep ranks in step and count as padding."""
        counts_K = micro.weights_K != 0
        counted = int(counts_K.sum())
        for totals, values in ((self._sums, result.sums), (self._means, result.means)):
            for name, value in values.items():
                totals[name] = totals[name] + value if name in totals else value
        self._weight = self._weight + micro.weights_K.sum()
        if self.measures_difference and micro.rollout_log_probs_K is not None:
            for row, ours in zip(micro.rows, micro.split(log_probs_K), strict=True):
                row.seen_log_probs_M = ours
            compared_K = counts_K & micro.is_current_K
            self._diff = self._diff + torch.where(compared_K, (log_probs_K - micro.rollout_log_probs_K).abs(), 0.0).sum()
            self._diff_tokens += int(compared_K.sum())
        self._tokens += counted
        self._used += micro.tokens if counted else 0
        self._padded += micro.input_ids_B_T.numel()

    @property
    def step_loss(self) -> Tensor:
        """This rank's loss of the step so far."""
        return self._sums["loss"]

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
        difference, tokens = self._over_ranks(float(self._diff), self._diff_tokens)
        return difference / tokens if tokens else 0.0

    def _over_ranks(self, *numbers: float) -> list[float]:
        """The sums of these numbers over all ranks."""
        if self._ranks == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self._device)
        torch.distributed.all_reduce(total)
        return total.tolist()

    def finish_step(self, grad_norm: float, lr: float) -> None:
        """The step was applied: its means count."""
        names = sorted(self._means)
        sums = self._over_ranks(*(float(self._sums[name]) for name in sorted(self._sums)))
        weight, *totals = self._over_ranks(float(self._weight), *(float(self._means[name]) for name in names))
        means = {name: total / weight for name, total in zip(names, totals, strict=True)}
        self._steps.append(means | dict(zip(sorted(self._sums), sums, strict=True)) | {"grad_norm": grad_norm, "lr": lr})
        self.skip()

    def skip(self) -> None:
        """Start the next step; forget the sums of this one."""
        self._sums, self._means, self._weight = {}, {}, 0.0

    def metrics(self) -> dict[str, float]:
        """Means over the applied steps; `lr` is that of the last one. Loss 0 where no step was applied."""
        names = {name: None for step in self._steps for name in step}
        result = {name: sum(step[name] for step in self._steps) / len(self._steps) for name in names}
        if self._steps:
            result["lr"] = self._steps[-1]["lr"]
        compared, tokens, used, padded = self._over_ranks(self._diff_tokens, self._tokens, self._used, self._padded)
        if compared:
            result["train_rollout_logprob_abs_diff"] = self.mean_abs_diff()
        result["tokens"] = float(tokens)
        result["padding_fraction"] = 1.0 - used / padded if padded else 0.0
        return {"loss": 0.0} | result
