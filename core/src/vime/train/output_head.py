"""The end of a language model: logits in float32, and of those only the log-probs of chosen tokens and the entropy.

Legend: C tokens of a chunk, V vocabulary, H hidden size.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vime.train.precision import cpu_emulates_bfloat16


def answer_in_float32(head: Any) -> None:
    """Let a low-precision output head answer in float32.

    Logits of about 20 rounded to bfloat16 are off by up to 0.06, more than training and engine may differ by. The module
    stays the one that is called, so that ZeRO-3 gathers its weight.
    """
    head.products_in_float32 = cpu_emulates_bfloat16()
    head.forward = MethodType(_forward, head)


def _forward(head: Any, hidden: Tensor) -> Tensor:
    logits: Any = _Float32Product.apply(hidden, head.weight, head.products_in_float32 and hidden.device.type == "cpu")
    return logits if head.bias is None else logits + head.bias.float()


class _Float32Product(torch.autograd.Function):
    """x w^T of low-precision tensors, not rounded. The products of the backward pass are in the format of the weight, or in float32.

    NVIDIA's libraries multiply in bfloat16 and answer in float32 (`out_dtype` of torch.mm); elsewhere both are converted.
    """

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, backward_in_float32: bool) -> Tensor:
        context.save_for_backward(x, weight)
        context.format = torch.float32 if backward_in_float32 else weight.dtype
        if x.is_cuda and torch.version.hip is None:
            return torch.mm(x.flatten(0, -2), weight.t(), out_dtype=torch.float32).unflatten(0, x.shape[:-1])
        return nn.functional.linear(x.float(), weight.float())

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = context.saved_tensors
        needs_x, needs_weight, _ = context.needs_input_grad
        gradient = gradient.to(context.format)
        for_x = (gradient @ weight.to(context.format)).to(x.dtype) if needs_x else None
        for_weight = (gradient.flatten(0, -2).t() @ x.to(context.format).flatten(0, -2)).to(weight.dtype) if needs_weight else None
        return for_x, for_weight, None


def log_probs_and_entropy(logits_C_V: Tensor, targets_C: Tensor, *, entropy_grad: bool = False) -> tuple[Tensor, Tensor]:
    """log softmax(logits) at the target of each row, and the entropy -sum(p log p), which has a gradient only if asked."""
    result: Any = _LogProbsAndEntropy.apply(logits_C_V, targets_C, entropy_grad)
    return result


class _LogProbsAndEntropy(torch.autograd.Function):
    """Keeps one tensor of (C, V) for the backward pass, two where the entropy has a gradient, and goes over it as seldom as it can.

    Its gradient has none of its own: asking for that raises RuntimeError.

    With p = softmax(x), t the target and H the entropy: d log p_t / d x = onehot(t) - p, and dH / dx = -p (x - sum(p x)).
    """

    @staticmethod
    def forward(context: Any, logits_C_V: Tensor, targets_C: Tensor, entropy_grad: bool) -> tuple[Tensor, Tensor]:
        shifted_C_V = logits_C_V - logits_C_V.amax(dim=-1, keepdim=True)
        exps_C_V = shifted_C_V.exp()
        sums_C_1 = exps_C_V.sum(dim=-1, keepdim=True)
        log_sums_C = sums_C_1.log().squeeze(-1)
        log_probs_C = shifted_C_V.gather(-1, targets_C[:, None]).squeeze(-1) - log_sums_C
        products_C_V = exps_C_V * shifted_C_V if entropy_grad else shifted_C_V.mul_(exps_C_V)
        mean_C = products_C_V.sum(dim=-1) / sums_C_1.squeeze(-1)
        entropy_C = log_sums_C - mean_C
        if entropy_grad:
            context.save_for_backward(exps_C_V, sums_C_1, targets_C, shifted_C_V, mean_C)
        else:
            context.save_for_backward(exps_C_V, sums_C_1, targets_C)
            context.mark_non_differentiable(entropy_C)
        return log_probs_C, entropy_C

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad_log_probs_C: Tensor, grad_entropy_C: Tensor) -> tuple[Tensor, None, None]:
        exps_C_V, sums_C_1, targets_C, *for_entropy = context.saved_tensors
        gradient_C_V = exps_C_V * (-grad_log_probs_C[:, None] / sums_C_1)
        gradient_C_V[torch.arange(len(targets_C), device=targets_C.device), targets_C] += grad_log_probs_C
        if for_entropy:
            shifted_C_V, mean_C = for_entropy
            gradient_C_V -= exps_C_V * (grad_entropy_C[:, None] / sums_C_1) * (shifted_C_V - mean_C[:, None])
        return gradient_C_V, None, None
