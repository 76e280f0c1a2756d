"""Weights on their way between processes: flat buffers that shared memory can hold without a copy for each reader."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

BUCKET_BYTES = 256 * 2**20
ALIGNMENT = 64
"""Bytes at whose multiples tensors begin: vector instructions read faster there."""


@dataclass(frozen=True)
class Bucket:
    """Tensors laid end to end: `entries` are (name, dtype, shape, offset in bytes), `data` is a flat uint8 array."""

    entries: list[tuple[str, str, tuple[int, ...], int]]
    data: Any


def pack(named_tensors: Iterable[tuple[str, Tensor]], limit: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """The tensors, in their order, in buckets of at most `limit` bytes; a larger tensor has one of its own."""
    held: list[tuple[str, Tensor]] = []
    used = 0
    for name, tensor in named_tensors:
        size = _aligned(tensor.numel() * tensor.element_size())
        if held and used + size > limit:
            yield _bucket(held, used)
            held, used = [], 0
        held.append((name, tensor))
        used += size
    if held:
        yield _bucket(held, used)


def unpack(bucket: Bucket) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a bucket, as views of its buffer, which may be read-only: copy them before you write."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable", category=UserWarning)
        flat = torch.from_numpy(bucket.data)
    for name, dtype, shape, offset in bucket.entries:
        kind: torch.dtype = getattr(torch, dtype)
        count = 1
        for length in shape:
            count *= length
        yield name, flat[offset : offset + count * kind.itemsize].view(kind).view(shape)


def _bucket(held: list[tuple[str, Tensor]], size: int) -> Bucket:
    data = numpy.empty(size, dtype=numpy.uint8)
    flat, offset = torch.from_numpy(data), 0
    entries: list[tuple[str, str, tuple[int, ...], int]] = []
    for name, tensor in held:
        length = tensor.numel() * tensor.element_size()
        entries.append((name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset))
        flat[offset : offset + length].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        offset += _aligned(length)
    return Bucket(entries, data)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
