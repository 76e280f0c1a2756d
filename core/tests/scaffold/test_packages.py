"""Every kind of package passes, as it is written: its own CI file, the linters as they come, and the contract checks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from vime.plugins.discovery import Catalog
from vime.scaffold.kinds import KINDS
from vime.scaffold.naming import LONGEST
from vime.scaffold.write import new_package

NUM_GPUS = 0


def run(*words: str, cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run([sys.executable, "-m", *words], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)} in {cwd.name} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def commands_of_ci(package: Path) -> list[list[str]]:
    """What the CI file of the package runs in its environment, without `uv run`."""
    (job,) = yaml.safe_load((package / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"].values()
    lines = [step["run"] for step in job["steps"] if "run" in step]
    return [line.removeprefix("uv run ").split() for line in lines if line.startswith("uv run ")]


@pytest.mark.parametrize("kind", KINDS)
def test_the_package_passes_its_own_ci(kind: str, workshop: Any) -> None:
    package = workshop.packages[kind]
    commands = commands_of_ci(package)
    assert [words[0] for words in commands] == ["ruff", "ruff", "pyright", "pytest", "vime"]
    for words in commands:
        if words[0] != "vime" and (words[0] != "pyright" or kind == "reward"):  # the others follow, faster
            run(*words, cwd=package, env=workshop.environment)
    assert commands[-1] == ["vime", "plugin", "check", package.name]


def test_all_packages_are_well_typed_as_their_ci_files_ask(workshop: Any) -> None:
    """In one go: a start of pyright takes longer than reading a package."""
    folders = [folder.name for folder in workshop.packages.values()]
    for folder in folders:
        assert '\ntypeCheckingMode = "strict"\n' in (workshop.root / folder / "pyproject.toml").read_text(encoding="utf-8")
    settings = {
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "include": [f"{folder}/{part}" for folder in folders for part in ("src", "tests")],
        "extraPaths": [str(workshop.root / "site")],
    }
    (workshop.root / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    report = json.loads(run("pyright", "--outputjson", cwd=workshop.root, env=workshop.environment))
    assert report["summary"]["filesAnalyzed"] == 3 * len(folders)


@pytest.mark.parametrize("name", ["x", "x" * LONGEST, "vime-" + "x" * (LONGEST - 5)])
def test_the_linters_agree_whatever_the_name_and_the_configuration(name: str, workshop: Any, tmp_path: Path) -> None:
    folders = [new_package(name, kind, tmp_path / kind.name, Catalog((), "0")) for kind in KINDS.values()]
    for configuration in (["--isolated"], ["--config", str(folders[0] / "pyproject.toml")]):
        run("ruff", "check", *configuration, ".", cwd=tmp_path, env=workshop.environment)
        run("ruff", "format", *configuration, "--check", ".", cwd=tmp_path, env=workshop.environment)


@pytest.mark.parametrize("kind", KINDS)
def test_the_plugin_passes_every_check(kind: str, workshop: Any) -> None:
    package = workshop.packages[kind]
    report = json.loads(run("vime", "plugin", "check", package.name, "--json", cwd=package, env=workshop.environment))
    assert report["passed"]
    statuses = [check["status"] for check in report["checks"]]
    assert statuses.count("pass") > 5
    assert "xfail" not in statuses


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
