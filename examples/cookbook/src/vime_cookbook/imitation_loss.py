"""A loss with a term of its own: the clipped policy loss, and beside it the likelihood of the answers that did better than their group.

`policy_loss` replaces the whole loss, under `--loss-type custom_loss`. Everything in `inputs` is over the K trained
tokens of a micro-batch; `inputs.reduce` turns K numbers into this micro-batch's share of the scalar that
`--loss-aggregation` asks for. What is returned beside the loss is logged under `train/`. torch is imported in the
function: listing and checking plugins stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import vime.api
from vime.api import hookimpl

if TYPE_CHECKING:
    from torch import Tensor


class ImitationLoss:
    """Policy gradient plus self-imitation."""

    class Settings(vime.api.Settings):
        weight: float = 0.1
        """Weight of the imitation term."""

    def __init__(self, settings: ImitationLoss.Settings) -> None:
        self.settings = settings

    @hookimpl
    def policy_loss(self, args: Any, inputs: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """A scalar with gradient, and scalars to log."""
        import torch

        difference = (inputs.log_probs - inputs.old_log_probs).clamp(-20, 20)  # exp of more than that overflows in float16
        ratio = torch.exp(difference)
        clipped = ratio.clamp(1 - args.eps_clip, 1 + (args.eps_clip_high or args.eps_clip))
        policy = inputs.reduce(-torch.minimum(ratio * inputs.advantages, clipped * inputs.advantages))
        better = (inputs.advantages > 0).to(inputs.log_probs.dtype)
        imitation = inputs.reduce(-inputs.log_probs * better)
        loss = policy + self.settings.weight * imitation
        return loss, {"pg_loss": policy.detach(), "imitation_loss": imitation.detach(), "better_tokens": better.mean()}
