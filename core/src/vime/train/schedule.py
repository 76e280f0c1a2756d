"""The learning rate of an optimizer step, as a function of the step alone: nothing to save, nothing to resume."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from vime.errors import ConfigError

STYLES = ("constant", "linear", "cosine")


@dataclass(frozen=True)
class LrSchedule:
    """Linear warm-up from 0 over `warmup` steps, then `style` down to `min_lr` at step `total`.

    Step 0 is the first applied step; with warm-up its rate is lr / warmup. Skipped steps do not count.
    """

    lr: float
    style: str = "constant"
    warmup: int = 0
    total: int | None = None
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise ConfigError(f"lr_decay_style {self.style!r} is unknown", hint=f"choose one of {', '.join(STYLES)}")
        if self.style != "constant" and self.total is None:
            raise ConfigError(f"lr_decay_style {self.style} needs the number of steps", hint="set --num-rollout or --lr-decay-iters")

    def at(self, step: int) -> float:
        """The rate of applied step number `step`."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        if self.style == "constant" or self.total is None:
            return self.lr
        progress = min(1.0, (step - self.warmup) / max(1, self.total - self.warmup))
        shape = 1.0 - progress if self.style == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.min_lr + (self.lr - self.min_lr) * shape


def policy_schedule(config: Any) -> LrSchedule:
    """The rate of the policy: over all of its steps, which rollouts that train the critic only do not have."""
    without_policy = config.num_critic_only_steps if config.advantage_estimator == "ppo" else 0
    rollouts = max(0, (config.num_rollout or 0) - without_policy)
    total = config.lr_decay_iters or rollouts * config.num_steps_per_rollout or None
    if total is None and config.num_rollout:
        total = 1  # no rollout trains the policy
    return LrSchedule(config.lr, config.lr_decay_style, config.lr_warmup_iters, total, config.min_lr)


def critic_schedule(config: Any) -> LrSchedule:
    """The rate of the critic: `critic_lr` (else `lr`), a warm-up of its own, and the decay of the policy over all rollouts."""
    rate = config.lr if config.critic_lr is None else config.critic_lr
    total = config.lr_decay_iters or (config.num_rollout or 0) * config.num_steps_per_rollout or None
    return LrSchedule(rate, config.lr_decay_style, config.critic_lr_warmup_iters, total, config.min_lr)
