"""What this machine has, and what of it this process may use."""

from __future__ import annotations

import csv
import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

GIB = 1024**3
_NO_LIMIT = 1 << 60
"""Version 1 of cgroups writes a number near 2**63 where there is no limit."""


@dataclass(frozen=True)
class Gpu:
    name: str
    memory_gib: float | None
    """None where only the kernel's driver is there to ask."""
    driver: str | None


@dataclass(frozen=True)
class Machine:
    system: str
    is_wsl: bool
    cpus: float
    """What this process may use: the least of the cores, its affinity and the limit of its container."""
    cpus_seen: int
    """What `os.cpu_count()` says, which knows of no limit."""
    memory_gib: float
    memory_free_gib: float
    gpus: tuple[Gpu, ...]
    shm_gib: float | None
    """Size of /dev/shm; None where there is none."""
    open_files: int
    load: float = 0.0
    """Processes that ran or waited for a CPU, in the mean of the last minute."""


def look_at_machine(env: Mapping[str, str], root: Path = Path("/")) -> Machine:
    """The machine, from the files under `root` (/proc, /sys, /dev) and nvidia-smi."""
    seen = os.cpu_count() or 1
    usable = [float(seen), float(len(os.sched_getaffinity(0)))]
    quota = cpu_limit(root)
    total, free = _memory(root)
    limit = memory_limit(root)
    used = 0.0 if limit is None else _memory_used(root)
    kernel = _read(root / "proc/version").lower()
    return Machine(
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        is_wsl="microsoft" in kernel,
        cpus=min([*usable, *([quota] if quota is not None else [])]),
        cpus_seen=seen,
        memory_gib=total if limit is None else min(total, limit),
        memory_free_gib=free if limit is None else max(0.0, min(free, limit - used)),
        gpus=tuple(_visible(list(_gpus(root)), env)),
        shm_gib=_size_gib(root / "dev/shm"),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        load=float((_read(root / "proc/loadavg").split() or ["0"])[0]),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _size_gib(folder: Path) -> float | None:
    try:
        return shutil.disk_usage(folder).total / GIB
    except OSError:
        return None


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control group and those around it: version 2, else version 1 of `controller`."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, kinds, inside = [*line.split(":", 2), "", ""][:3]
        if number == "0" and (root / "sys/fs/cgroup/cgroup.controllers").exists():
            base = root / "sys/fs/cgroup"
        elif controller in kinds.split(","):
            base = root / "sys/fs/cgroup" / controller
        else:
            continue
        folder = base / inside.lstrip("/")
        while True:
            yield folder
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent


def cpu_limit(root: Path) -> float | None:
    """Cores that the control group allows, the least on the way up; None where it sets no limit."""
    limits: list[float] = []
    for folder in _groups(root, "cpu"):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def memory_limit(root: Path) -> float | None:
    """GiB that the control group allows; None where it sets no limit."""
    limits: list[int] = []
    for folder in _groups(root, "memory"):
        text = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        if text.isdigit() and int(text) < _NO_LIMIT:
            limits.append(int(text))
    return min(limits) / GIB if limits else None


def _memory_used(root: Path) -> float:
    for folder in _groups(root, "memory"):
        text = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
        if text.isdigit():
            return int(text) / GIB
    return 0.0


def _memory(root: Path) -> tuple[float, float]:
    """Memory of the machine and what is available of it, in GiB."""
    fields = dict(line.split(":", 1) for line in _read(root / "proc/meminfo").splitlines() if ":" in line)
    kib = {name: int(text.split()[0]) for name, text in fields.items() if text.split()[:1] and text.split()[0].isdigit()}
    return kib.get("MemTotal", 0) / 2**20, kib.get("MemAvailable", 0) / 2**20


def _gpus(root: Path) -> Iterator[tuple[str, Gpu]]:
    """UUID (or index) and description of each NVIDIA GPU."""
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=uuid,name,memory.total,driver_version", "--format=csv,noheader,nounits"]
        try:
            said = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout
        except (OSError, subprocess.SubprocessError):
            said = ""
        rows = [row for row in csv.reader(said.splitlines(), skipinitialspace=True) if len(row) == 4]
        if rows:
            for uuid, name, memory, driver in rows:
                size = float(memory) / 1024 if memory.replace(".", "").isdigit() else None
                yield uuid, Gpu(name, size, driver)
            return
    driver = next(iter(_read(root / "proc/driver/nvidia/version").partition("Kernel Module")[2].split()), None)
    for file in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in _read(file).splitlines())}
        yield fields.get("GPU UUID", ""), Gpu(fields.get("Model", "NVIDIA GPU"), None, driver)


def _visible(gpus: list[tuple[str, Gpu]], env: Mapping[str, str]) -> Iterator[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES leaves."""
    chosen = env.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        yield from (gpu for _, gpu in gpus)
        return
    for word in chosen.split(","):
        word = word.strip()
        found = [gpu for index, (uuid, gpu) in enumerate(gpus) if word == str(index) or (word.startswith("GPU-") and uuid.startswith(word))]
        if not found:  # CUDA stops at the first that it does not know
            return
        yield found[0]
