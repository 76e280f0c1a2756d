"""The mathematics of the critic, as pure functions on tensors.

The steps of the decision process are the trained tokens of a row, M of them: the state of a step is everything before
its token, and what stands between two trained tokens (the output of a tool, say) belongs to the transition. It is no
step: it has no value, no reward and no place in a discount. The row ends behind its last trained token, where the value
is 0: a response that was cut off has ended too, since the limit on its length is a part of the task.
"""

from __future__ import annotations

import torch
from torch import Tensor


def token_rewards(reward: float, kl_M: Tensor, kl_coef: float) -> Tensor:
    """-kl_coef KL_t for each trained token, plus the reward at the last (InstructGPT, arXiv:2203.02155, eq. 2)."""
    rewards_M = -kl_coef * kl_M.double()
    rewards_M[-1] += reward
    return rewards_M


def generalised_advantages(rewards_M: Tensor, values_M: Tensor, gamma: float, lambd: float) -> tuple[Tensor, Tensor]:
    """GAE(gamma, lambda) and the returns that the critic learns, each M numbers of the type of `values_M`.

    delta_t = r_t + gamma V_{t+1} - V_t with V_M = 0, and A_t = delta_t + gamma lambda A_{t+1}: arXiv:1506.02438, eq. 16;
    arXiv:1707.06347, eq. 11 and 12. The returns are A_t + V_t, the TD(lambda) targets.
    """
    values = values_M.double()
    following = torch.cat([values[1:], values.new_zeros(1)])
    deltas = (rewards_M.double() + gamma * following - values).tolist()  # a tensor would wait for the GPU at every token
    running, backwards = 0.0, []
    for delta in reversed(deltas):
        running = delta + gamma * lambd * running
        backwards.append(running)
    advantages = torch.tensor(backwards[::-1], dtype=torch.float64, device=values.device)
    return advantages.to(values_M.dtype), (advantages + values).to(values_M.dtype)


def clipped_value_loss(values_K: Tensor, old_values_K: Tensor, returns_K: Tensor, value_clip: float) -> tuple[Tensor, Tensor]:
    """Per-token value loss, and where the clip decides.

    max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2: the squared error of arXiv:1707.06347, eq. 9, with the
    clip of the implementation that came with that paper. A value beyond the range has no gradient that leads it further
    away from the old one.
    """
    clipped_K = torch.clamp(values_K, old_values_K - value_clip, old_values_K + value_clip)  # within the range V itself, to the bit
    plain_loss_K, clipped_loss_K = (values_K - returns_K).square(), (clipped_K - returns_K).square()
    return 0.5 * torch.maximum(plain_loss_K, clipped_loss_K), (clipped_loss_K > plain_loss_K).to(values_K.dtype)


def explained_variance(values_K: Tensor, returns_K: Tensor) -> float | None:
    """1 - Var(R - V) / Var(R): 1 for a critic that knows the returns, 0 for a constant, below 0 for worse than that.

    None where all returns are equal, so that there is nothing to explain.
    """
    values, returns = values_K.double(), returns_K.double()
    variance = float(returns.var(correction=0))
    return 1.0 - float((returns - values).var(correction=0)) / variance if variance > 0 else None
