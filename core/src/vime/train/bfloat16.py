"""bfloat16 on a CPU that has no instructions for it (`precision.cpu_emulates_bfloat16`)."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn


class _Product(torch.autograd.Function):
    """x w^T of bfloat16 tensors, computed in float32 and rounded once. What is kept for the backward pass is bfloat16."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(x, weight)
        return nn.functional.linear(x.float(), weight.float()).to(x.dtype)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = context.saved_tensors
        exact = gradient.float()
        needs_x, needs_weight = context.needs_input_grad
        for_x = (exact @ weight.float()).to(x.dtype) if needs_x else None
        if not needs_weight:
            return for_x, None
        return for_x, (exact.flatten(0, -2).t() @ x.float().flatten(0, -2)).to(weight.dtype)


def compute_products_in_float32(model: nn.Module) -> None:
    """Let every bfloat16 linear layer multiply in float32, as hardware with bfloat16 accumulates.

    Modules stay the ones that are called, so that ZeRO-3 gathers their weights.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.weight.dtype is torch.bfloat16:
            module.forward = MethodType(forward, module)


def forward(linear: nn.Linear, x: Tensor) -> Tensor:
    """In place of the layer's own. A layer that is on a GPU by now, as a reference that waits on the host, multiplies as ever."""
    if x.device.type != "cpu":
        return nn.functional.linear(x, linear.weight, linear.bias)
    product: Any = _Product.apply(x, linear.weight)
    return product if linear.bias is None else product + linear.bias
