"""What `auto` means as a number format. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")

SMALL_MODEL_PARAMETERS = 500_000_000
"""Up to this size the trainer computes in float32 on the CPU when `train_dtype` is auto."""


def train_dtype_name(name: str, parameters: int, *, on_cpu: bool) -> str:
    """The name of the number format: `auto` is float32 for a small model on the CPU, bfloat16 otherwise."""
    if name != "auto":
        return name
    return "float32" if on_cpu and parameters <= SMALL_MODEL_PARAMETERS else "bfloat16"


def engine_dtype_name(name: str, train_dtype: str, *, on_cpu: bool) -> str:
    """The name of the engine's number format: `auto` is the trainer's, and float32 where bfloat16 would be slower."""
    if name != "auto":
        return name
    return "float32" if train_dtype == "bfloat16" and on_cpu and cpu_emulates_bfloat16() else train_dtype


def cpu_emulates_bfloat16() -> bool:
    """Whether products of bfloat16 matrices are several times slower than those of float32 ones: x86 without AVX-512, under Linux."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return False
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), None)
    return flags is not None and "avx512f" not in flags
