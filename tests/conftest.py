"""The wheels of this tree, built once a session, and an environment in which commands find them as if they were published."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def clean_environment() -> dict[str, str]:
    """This process's environment without what would leak the development environment into a new one."""
    leaks = ("VIRTUAL_ENV", "PYTHON", "VIME_", "UV_PROJECT", "UV_RUN")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(leaks)}
    return {"UV_SYSTEM_CERTS": "true"} | kept  # as the workspace says of itself: new environments are outside of it


@pytest.fixture(scope="session")
def uv() -> str:
    found = os.environ.get("UV") or shutil.which("uv")
    assert found, "uv is needed to build the wheels: pip install uv"
    return found


@pytest.fixture(scope="session")
def wheels(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of every distribution."""
    folder = tmp_path_factory.mktemp("dist")
    command = [uv, "build", "--all-packages", "--wheel", "--out-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def as_printed(uv: str, wheels: Path) -> dict[str, str]:
    """The variables with which `uv` is found by name and finds the wheels of this tree as if they were published."""
    return clean_environment() | {"PATH": f"{Path(uv).parent}{os.pathsep}{os.environ['PATH']}", "UV_FIND_LINKS": str(wheels)}
