"""What a process may use of a machine: control groups, memory, GPUs."""

import os
import stat

import pytest

from vime.doctor.machine import GIB, Gpu, cpu_limit, look_at_machine, memory_limit

NUM_GPUS = 0


def write(root, **files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def no_nvidia_smi(monkeypatch, tmp_path):
    empty = tmp_path / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    return empty


def test_version_2_of_control_groups_takes_the_least_limit_on_the_way_up(tmp_path):
    groups = tmp_path / "sys/fs/cgroup"
    write(tmp_path, **{"proc/self/cgroup": "0::/pod/box\n", "sys/fs/cgroup/cgroup.controllers": "cpu memory"})
    assert cpu_limit(tmp_path) is None and memory_limit(tmp_path) is None
    write(groups, **{"pod/cpu.max": "150000 100000", "pod/box/cpu.max": "max 100000", "pod/memory.max": "max"})
    write(groups, **{"pod/box/memory.max": str(3 * GIB)})
    assert cpu_limit(tmp_path) == 1.5 and memory_limit(tmp_path) == 3.0
    write(groups, **{"pod/box/cpu.max": "50000 100000"})
    assert cpu_limit(tmp_path) == 0.5


def test_version_1_of_control_groups(tmp_path):
    write(tmp_path, **{"proc/self/cgroup": "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n"})
    groups = tmp_path / "sys/fs/cgroup"
    write(groups, **{"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000", "memory/memory.limit_in_bytes": str(2**63 - 4096)})
    assert cpu_limit(tmp_path) is None and memory_limit(tmp_path) is None
    write(groups, **{"cpu/cpu.cfs_quota_us": "200000", "memory/memory.limit_in_bytes": str(GIB)})
    assert cpu_limit(tmp_path) == 2.0 and memory_limit(tmp_path) == 1.0


def test_the_machine_is_what_its_limits_leave(tmp_path, monkeypatch, no_nvidia_smi):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    write(tmp_path, **{"proc/meminfo": f"MemTotal: {32 * 2**20} kB\nMemAvailable: {20 * 2**20} kB\n", "proc/version": "Linux 5 Microsoft"})
    write(tmp_path, **{"proc/loadavg": "1.25 0.50 0.10 2/300 4242"})
    machine = look_at_machine({}, tmp_path)
    assert (machine.cpus, machine.cpus_seen, machine.memory_gib, machine.memory_free_gib) == (16.0, 64, 32.0, 20.0)
    assert machine.is_wsl and machine.load == 1.25 and machine.shm_gib is None and machine.gpus == ()
    write(tmp_path, **{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cgroup.controllers": "", "sys/fs/cgroup/cpu.max": "250000 100000"})
    write(tmp_path / "sys/fs/cgroup", **{"memory.max": str(8 * GIB), "memory.current": str(2 * GIB)})
    machine = look_at_machine({}, tmp_path)
    assert (machine.cpus, machine.memory_gib, machine.memory_free_gib) == (2.5, 8.0, 6.0)


@pytest.mark.parametrize(
    ("visible", "names"),
    [(None, ["A", "B"]), ("1", ["B"]), ("1,0", ["B", "A"]), ("0,7,1", ["A"]), ("", []), ("-1", []), ("GPU-bb", ["B"])],
)
def test_gpus_as_nvidia_smi_lists_them_and_cuda_shows_them(tmp_path, no_nvidia_smi, visible, names):
    tool = no_nvidia_smi / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU-aa11, A, 81920, 550.1'\necho 'GPU-bb22, B, [N/A], 550.1'\n")
    tool.chmod(tool.stat().st_mode | stat.S_IEXEC)
    found = look_at_machine({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, tmp_path).gpus
    assert [gpu.name for gpu in found] == names
    assert {gpu.name: gpu.memory_gib for gpu in found}.items() <= {"A": 80.0, "B": None}.items()


def test_gpus_of_the_kernel_where_there_is_no_nvidia_smi(tmp_path, no_nvidia_smi):
    nvidia = tmp_path / "proc/driver/nvidia"
    write(
        nvidia,
        **{"version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54  Thu\n", "gpus/0/information": "Model: \t NVIDIA H200\n"},
    )
    assert look_at_machine({}, tmp_path).gpus == (Gpu("NVIDIA H200", None, "550.54"),)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
