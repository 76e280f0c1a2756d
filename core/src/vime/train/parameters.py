"""The weights of a model by their public names, whole, whoever holds the parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from vime.train.lora import Adapters


def gather_named_weights(model: nn.Module, *, is_partitioned: bool, adapters: Adapters | None = None) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every parameter and persistent buffer; tied ones once, under their first name.

    With `adapters` these are merged into the weights that they adapt, and the names are the public ones.
    Under ZeRO-3 (`is_partitioned`) parameters are gathered layer by layer; every rank must run through the whole
    iterator, outside forward and backward. What it yields there are copies.
    """
    for layer in _layers(model):
        tensors = _gathered(layer) if is_partitioned else [(name, parameter.detach()) for name, parameter in layer]
        yield from tensors if adapters is None else adapters.merge(tensors)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name not in parameters:
            yield name, tensor.detach()


def _gathered(layer: list[tuple[str, nn.Parameter]]) -> list[tuple[str, Tensor]]:
    from deepspeed.runtime.zero.partition_parameters import GatheredParameters

    context: Any = GatheredParameters([parameter for _, parameter in layer], modifier_rank=None)
    with context:
        return [(name, parameter.detach().clone()) for name, parameter in layer]


def _layers(model: nn.Module) -> list[list[tuple[str, nn.Parameter]]]:
    """Parameters in order, those of one numbered layer together."""
    layers: dict[str, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        parts = name.split(".")
        number = next((place for place, part in enumerate(parts) if part.isdigit()), None)
        key = name if number is None else ".".join(parts[: number + 1])
        layers.setdefault(key, []).append((name, parameter))
    return list(layers.values())
