"""One optimizer step of a DeepSpeed engine: accumulate the micro-batches of a rank, then apply or skip, on all ranks alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vime.errors import TrainerError
from vime.train.batch import TrainBatch
from vime.train.losses import step_share, token_weights
from vime.train.microbatch import MicroBatch, Row, Share, collate, packs_rows, plan_sequences
from vime.train.schedule import LrSchedule
from vime.train.tally import Tally

MicroLoss = Callable[[MicroBatch, Tally], Tensor]
"""The loss of a micro-batch, its share of the step's; it also adds what it knows to the tally."""


class Stepper:
    """Owns an engine's schedule and its counters. `model` is whose steps these are, in messages: "policy" or "critic"."""

    def __init__(self, engine: Any, schedule: LrSchedule, config: Any, device: torch.device, *, model: str = "policy") -> None:
        import deepspeed.comm as dist

        self.engine, self.schedule, self.config, self.device, self.model = engine, schedule, config, device, model
        self.packs_rows = packs_rows(config)
        self.ranks: int = dist.get_world_size()
        self.rank: int = dist.get_rank()
        self.share = Share(self.rank, self.ranks)
        self.applied_steps = 0
        self.bad_steps_in_a_row = 0

    def accumulate(self, rows: Sequence[Row], batch: TrainBatch, tally: Tally, micro_loss: MicroLoss) -> None:
        """Run every micro-batch of this rank forward and backward. `rows` are those of the step, on all ranks.

        A loss that is not finite on any rank leaves gradients of NaN, so that `apply` skips the step.
        """
        level = self.config.loss_aggregation
        masks, rollouts = [batch.loss_masks[row.index] for row in rows], [batch.rollout_ids[row.index] for row in rows]
        weights = token_weights(masks, rollouts, level, float(self.config.rollout_max_response_len))
        rows_each = None if self.config.use_dynamic_batch_size else self.config.micro_batch_size or 1
        plan = plan_sequences(rows, self.config, self.ranks, self.engine.module.pair_cost, rows_each=rows_each)[self.rank]
        for number, sequences in enumerate(plan):
            is_last = number == len(plan) - 1
            picked = [position for sequence in sequences for position in sequence] or [0]
            micro_weights = [weights[p] if sequences else 0.0 for p in picked]
            sizes = [len(sequence) for sequence in sequences] or None
            micro = collate([rows[p] for p in picked], micro_weights, self.device, packed=self.packs_rows, sizes=sizes)
            micro.share = step_share(masks, rollouts, level)
            self.engine.set_gradient_accumulation_boundary(is_last)
            loss = micro_loss(micro, tally)
            if is_last and not self._all_finite(tally.step_loss):
                loss = loss * math.nan  # DeepSpeed then drops this step's gradients itself, in every ZeRO stage
            # DeepSpeed averages gradients over ranks; the weights already make a sum of the parts.
            self.engine.backward(loss * self.ranks, scale_wrt_gas=False)

    def apply(self, tally: Tally) -> bool:
        """Step, or skip where the gradient is not finite. Returns whether the weights changed.

        Raises TrainerError after `max_bad_steps` skipped steps in a row.
        """
        rate = self.schedule.at(self.applied_steps)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate
        norm = self._plain_grad_norm()
        if norm is None or math.isfinite(norm):
            self.engine.step()
            norm = float(self.engine.get_global_grad_norm() or 0.0) if norm is None else norm
            applied = bool(self.engine.was_step_applied()) and math.isfinite(norm)
        else:
            self.engine.zero_grad()
            applied = False
        if applied:
            self.applied_steps += 1
            self.bad_steps_in_a_row = 0
            tally.finish_step(norm, rate)
            return True
        tally.skip()
        self.bad_steps_in_a_row += 1
        if self.bad_steps_in_a_row >= self.config.max_bad_steps:
            whose, flag = ("of the critic ", "--critic-lr") if self.model == "critic" else ("", "--lr")
            raise TrainerError(
                f"{self.bad_steps_in_a_row} optimizer steps {whose}in a row had a loss or gradient that is not finite "
                f"(gradient norm {norm})",
                hint=f"lower {flag}, set --clip-grad, or look at the rewards and log-probs of the last rollout; "
                "--max-bad-steps allows more",
            )
        return False

    def _all_finite(self, step_loss: Tensor) -> bool:
        """Whether the step's loss is finite on every rank."""
        bad = (~torch.isfinite(step_loss)).float().reshape(1)
        if self.ranks > 1:
            torch.distributed.all_reduce(bad, op=torch.distributed.ReduceOp.MAX)
        return not bool(bad.item())

    def _plain_grad_norm(self) -> float | None:
        """The gradient norm where parameters hold their own gradients (float32 without ZeRO); None where DeepSpeed does."""
        if self.engine.zero_optimization() or self.engine.bfloat16_enabled():
            return None
        grads = [parameter.grad for parameter in self.engine.module.parameters() if parameter.grad is not None]
        return float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0
