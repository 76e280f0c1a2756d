"""The wheels, built from this tree and installed into an empty environment, as a user gets them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.version import Version

NUM_GPUS = 0

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = {"vime", "vime_filters_basic", "vime_rm_math", "vime_rm_qa", "vime_rm_remote", "vime_rollout_sft"}
PLUGINS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))

TEST_TOOLS = ("pytest>=9.0", "pytest-timeout>=2.4", "hypothesis>=6.140", "jinja2>=3.1", "numpy>=1.26")
"""What the plugins' own tests import: jinja2 for chat templates, numpy for labels of its types."""

COMPILED = {"UV_COMPILE_BYTECODE": "true"}
"""As pip does it: else several processes at once compile what they import."""

PYTEST_INI = """
[pytest]
addopts = --import-mode=importlib --strict-markers --strict-config -ra
filterwarnings = error
xfail_strict = true
timeout = 120
"""

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def environment(**more: str) -> dict[str, str]:
    """This process's environment without what would leak the development environment into the new one."""
    leaks = ("VIRTUAL_ENV", "PYTHON", "VIME_", "UV_PROJECT", "UV_RUN")
    return {name: value for name, value in os.environ.items() if not name.startswith(leaks)} | more


def run(*command: str | Path, cwd: Path, expect: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment(**env), capture_output=True, text=True, check=False)
    assert done.returncode == expect, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def installed(uv: str, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script folder of an environment that holds the wheels and what they require without extras."""
    venv = tmp_path_factory.mktemp("empty") / "venv"
    run(uv, "venv", venv, cwd=wheels)
    run(uv, "pip", "install", "--python", venv, *sorted(wheels.glob("*.whl")), cwd=wheels, **COMPILED)
    return venv / "bin"


@pytest.fixture(scope="module")
def pytest_tools(uv: str, installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with the test tools, so that the environment itself stays as a user's."""
    folder = tmp_path_factory.mktemp("tools")
    run(uv, "pip", "install", "--python", installed / "python", "--target", folder, *TEST_TOOLS, cwd=folder)
    return folder


def test_there_is_a_wheel_for_every_distribution(wheels: Path) -> None:
    assert {path.name.split("-")[0] for path in wheels.glob("*.whl")} == DISTRIBUTIONS


def test_the_wheels_hold_the_files_of_the_source_tree(wheels: Path) -> None:
    packed: set[str] = set()
    for path in wheels.glob("*.whl"):
        packed |= set(zipfile.ZipFile(path).namelist())
    tracked = run("git", "ls-files", "core/src", "plugins/*/src", cwd=ROOT).stdout.split()
    assert [path for path in tracked if path.split("/src/")[1] not in packed] == []


def test_the_heavy_libraries_stay_out(installed: Path) -> None:
    script = (
        "from importlib.util import find_spec\nprint([n for n in ('torch', 'transformers', 'vllm', 'deepspeed', 'ray') if find_spec(n)])"
    )
    assert run(installed / "python", "-c", script, cwd=installed).stdout.strip() == "[]"


def test_import_and_help_work(installed: Path) -> None:
    run(installed / "python", "-c", "import vime, vime.api", cwd=installed)
    done = run(installed / "vime", "--help", cwd=installed)
    assert "train" in done.stdout + done.stderr


def declared_plugins() -> dict[str, str]:
    """The entry points of the plugins of this tree, with their distributions."""
    found: dict[str, str] = {}
    for folder in PLUGINS:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        found |= dict.fromkeys(project["entry-points"]["vime.plugins"], project["name"])
    return found


def test_plugin_list_shows_what_was_installed(installed: Path) -> None:
    rows = json.loads(run(installed / "vime", "plugin", "list", "--json", cwd=installed).stdout)
    assert {row["name"]: row["distribution"] for row in rows} == declared_plugins()
    assert {row["status"] for row in rows} == {"ok"}


@pytest.mark.parametrize("name", sorted(declared_plugins()))
def test_plugin_show_describes_every_plugin(name: str, installed: Path) -> None:
    text = run(installed / "vime", "plugin", "show", name, cwd=installed).stdout
    assert text.startswith(f"{name}  ({declared_plugins()[name]} ")
    shown = json.loads(run(installed / "vime", "plugin", "show", name, "--json", cwd=installed).stdout)
    assert shown["doc"]
    assert shown["hooks"]
    assert [setting["name"] for setting in shown["settings"] if not setting["doc"]] == [], "settings without a docstring"


STANDS_ON = ("pluggy", "pydantic", "typer")
"""What plugins, configuration and command line stand on: tried at both ends of the versions that the core allows."""


def lowest_versions() -> dict[str, str]:
    """The lowest allowed version of each, by name."""
    project = tomllib.loads((ROOT / "core" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = dict(re.findall(rf"\b({'|'.join(STANDS_ON)})>=([\d.]+)", " ".join(project["dependencies"])))
    assert set(bounds) == set(STANDS_ON)
    return bounds


@pytest.fixture(scope="module", params=["lowest", "newest"])
def at_one_end(request: pytest.FixtureRequest, uv: str, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """ "lowest" or "newest", and the script folder of an environment of all wheels with these versions."""
    venv = tmp_path_factory.mktemp(request.param) / "venv"
    chosen = [f"{name}=={version}" for name, version in lowest_versions().items()] if request.param == "lowest" else []
    run(uv, "venv", venv, cwd=wheels)
    run(uv, "pip", "install", "--python", venv, *sorted(wheels.glob("*.whl")), *chosen, cwd=wheels, **COMPILED)
    return request.param, venv / "bin"


def test_both_ends_are_what_they_are_called(at_one_end: tuple[str, Path]) -> None:
    end, scripts = at_one_end
    listing = f"from importlib.metadata import version\nprint(*(version(name) for name in {STANDS_ON}))"
    found = run(scripts / "python", "-c", listing, cwd=scripts).stdout.split()
    lowest = [lowest_versions()[name] for name in STANDS_ON]
    assert all(
        (Version(have) == Version(low)) if end == "lowest" else (Version(have) >= Version(low))
        for have, low in zip(found, lowest, strict=True)
    )


def test_every_plugin_loads_at_both_ends(at_one_end: tuple[str, Path], tmp_path: Path) -> None:
    _, scripts = at_one_end
    rows = json.loads(run(scripts / "vime", "plugin", "list", "--json", "--probe", cwd=tmp_path).stdout)
    assert {row["name"] for row in rows} == set(declared_plugins())
    assert {row["status"] for row in rows} == {"ok"}
    for name in ("exact", "nonzero-std", "truncated", "freshest", "overlong"):
        report = json.loads(run(scripts / "vime", "plugin", "check", name, "--json", cwd=tmp_path).stdout)
        assert report["passed"]
    assert (
        "rollout_batch_size: 32" in run(scripts / "vime", "config", "show", "--model", "m", "--prompt-data", "d.jsonl", cwd=tmp_path).stdout
    )


@pytest.mark.parametrize("at_one_end", ["lowest"], indirect=True)  # with the newest they run in the workspace anyway
@pytest.mark.parametrize("part", ["config", "plugins", "cli"])
def test_the_tests_of_the_core_pass_at_the_lowest_end(part: str, at_one_end: tuple[str, Path], pytest_tools: Path, tmp_path: Path) -> None:
    _, scripts = at_one_end
    shutil.copytree(ROOT / "core" / "tests" / part, tmp_path / "tests" / part, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pytest.ini").write_text(
        PYTEST_INI.replace("error\n", "\n    error\n    ignore::DeprecationWarning:typer\n    ignore::DeprecationWarning:click\n", 1)
    )
    done = run(scripts / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=tmp_path, PYTHONPATH=str(pytest_tools))
    assert re.search(r"^\d+ passed", done.stdout.splitlines()[-1]), done.stdout


@pytest.fixture(scope="module")
def alone(uv: str, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The script folder of an environment that holds vime and the wheel of one distribution, made when it is first asked for."""
    made: dict[str, Path] = {}

    def environment_of(distribution: str) -> Path:
        if distribution not in made:
            venv = tmp_path_factory.mktemp("alone") / "venv"
            chosen = [wheel for name in ("vime", distribution.replace("-", "_")) for wheel in wheels.glob(f"{name}-[0-9]*.whl")]
            assert len(chosen) == 2
            run(uv, "venv", venv, cwd=wheels)
            run(uv, "pip", "install", "--python", venv, *chosen, cwd=wheels, **COMPILED)
            made[distribution] = venv / "bin"
        return made[distribution]

    return environment_of


NEEDS_A_SERVICE = {"remote"}
"""Its own contract test starts one; here the package alone is checked."""
DECLARED = {"random": ["--nondeterministic"], "remote": [f"--only=package-{part}" for part in ("requires", "import", "hooks", "builds")]}
"""What an author has to say beside the name."""


@pytest.mark.parametrize("name", sorted(declared_plugins()))
def test_every_plugin_passes_its_checks_alone_from_its_wheel(name: str, alone: Callable[[str], Path], tmp_path: Path) -> None:
    scripts = alone(declared_plugins()[name])
    report = json.loads(run(scripts / "vime", "plugin", "check", name, *DECLARED.get(name, ()), "--json", cwd=tmp_path).stdout)
    assert report["target"] == name and report["passed"]
    assert {each["status"] for each in report["checks"]} <= {"pass", "skip"}
    hooks = [each["id"] for each in report["checks"] if each["status"] == "pass" and not each["id"].startswith("package-")]
    assert hooks or name in NEEDS_A_SERVICE, "no hook was checked"


FIRST_OF_EACH = """
from collections import Counter


def pytest_collection_modifyitems(items):
    seen = Counter()
    for item in list(items):
        name = item.nodeid.partition("[")[0]
        seen[name] += 1
        if seen[name] > 3:
            items.remove(item)
"""
"""Of a test with a table of inputs, the first rows: what is asked here is whether the wheel has all that it needs."""


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.name)
def test_the_own_tests_of_a_plugin_pass_beside_its_wheel(folder: Path, installed: Path, pytest_tools: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pytest.ini").write_text(PYTEST_INI)
    (tmp_path / "first_of_each.py").write_text(FIRST_OF_EACH)
    found = {"PYTHONPATH": f"{pytest_tools}{os.pathsep}{tmp_path}"}
    done = run(installed / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "first_of_each", "tests", cwd=tmp_path, **found)
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"\d+ passed(, \d+ skipped)? in .*", lines[-1]), f"something was not run\n{done.stdout}"
    skipped = [line for line in lines if line.startswith("SKIPPED") and "testing/contracts.py" not in line]
    assert skipped == [], "only checks of the kit that are not for a plugin may be left out"


def test_the_cookbook_installs_as_its_page_says(uv: str, wheels: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    run(uv, "venv", venv, cwd=tmp_path)
    run(uv, "pip", "install", "--python", venv, *wheels.glob("vime-[0-9]*.whl"), "./examples/cookbook", cwd=ROOT)
    rows = json.loads(run(venv / "bin" / "vime", "plugin", "list", "--json", cwd=tmp_path).stdout)
    assert len(rows) == 10 and {row["distribution"] for row in rows} == {"vime-cookbook"}
    assert json.loads(run(venv / "bin" / "vime", "plugin", "check", "pass-rate", "--json", cwd=tmp_path).stdout)["passed"]


def test_training_without_the_extra_names_the_extra(installed: Path, tmp_path: Path) -> None:
    done = run(installed / "vime", "train", "--plugin", "math", cwd=tmp_path, expect=2)
    assert "vime[cpu]" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [], "a refused run leaves nothing behind"


def printed_commands(section: str) -> str:
    """The first block of commands under a heading of docs/install.md."""
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {section}$.*?^```bash\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert found, f"docs/install.md has no commands under {section!r}"
    return found[1]


def test_the_light_install_commands_work(as_printed: dict[str, str], tmp_path: Path) -> None:
    run("bash", "-ec", printed_commands("To write and test plugins"), cwd=tmp_path, **as_printed)
    run(tmp_path / ".venv" / "bin" / "vime", "plugin", "list", cwd=tmp_path)


def test_the_cpu_install_commands_give_an_environment_that_trains(as_printed: dict[str, str], tmp_path: Path) -> None:
    run("bash", "-ec", printed_commands("CPU"), cwd=tmp_path, **as_printed)
    vime = tmp_path / ".venv" / "bin" / "vime"
    run(vime, "train", "--plugin", "math", "--num-rollout", "1", "--run-dir", "run", cwd=tmp_path)
    assert "train/loss" in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_the_gpu_install_commands_resolve(as_printed: dict[str, str], tmp_path: Path) -> None:
    commands = printed_commands("NVIDIA GPU")
    assert "uv pip install " in commands
    run("bash", "-ec", commands.replace("uv pip install ", "uv pip install --dry-run "), cwd=tmp_path, **as_printed)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
