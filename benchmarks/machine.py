"""What the tables say of the machine that they were made on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

INSTRUCTIONS = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX-512 BF16", "amx_tile": "AMX"}
"""Those of x86 that decide how fast matrices are multiplied, by the kernel's name."""


def machine() -> str:
    """Cores, processor, its instructions as far as the kernel tells, and Python's version."""
    facts = {}
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = (line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
        facts = {name.strip(): value.strip() for name, value in lines}
    flags = facts.get("flags", "").split()
    model = " ".join(facts.get("model name", "a processor without a name").split())
    known = [platform.machine(), *(name for flag, name in INSTRUCTIONS.items() if flag in flags)]
    return f"{os.cpu_count()} cores of {model} ({', '.join(known)}), Python {platform.python_version()}"
