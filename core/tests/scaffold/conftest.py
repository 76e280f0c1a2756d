"""Packages as `vime plugin new` writes them, importable by processes of their own as if they were installed."""

from __future__ import annotations

import os
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vime.plugins.discovery import Catalog
from vime.scaffold.kinds import KINDS
from vime.scaffold.write import new_package


@dataclass
class Workshop:
    """A folder with a package of every kind, and a site folder that has them all with their metadata."""

    root: Path
    packages: dict[str, Path] = field(default_factory=dict)
    """The package folder by kind. A plugin has the name of its folder."""

    @property
    def environment(self) -> dict[str, str]:
        """In which these plugins are found beside those of the environment that runs the tests."""
        before = os.environ.get("PYTHONPATH")
        search = [str(self.root / "site"), *([before] if before else [])]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(search),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    made = Workshop(tmp_path_factory.mktemp("workshop"))
    for kind in KINDS.values():
        folder = new_package(f"made-{kind.name}", kind, made.root, Catalog((), "0"))
        install(folder, made.root / "site")
        made.packages[kind.name] = folder
    return made


def install(folder: Path, site: Path) -> None:
    """What an editable installation of the package at `folder` comes to: its code, and its metadata."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (source,) = (folder / "src").iterdir()
    site.mkdir(exist_ok=True)
    (site / source.name).symlink_to(source)
    info = site / f"{source.name}-{project['version']}.dist-info"
    info.mkdir()
    header = {
        "Metadata-Version": "2.4",
        "Name": project["name"],
        "Version": project["version"],
        "Summary": project["description"],
        "License-Expression": project["license"],
        "Requires-Python": project["requires-python"],
        "Requires-Dist": project["dependencies"][0],
        "Description-Content-Type": "text/markdown",
    }
    lines = [f"{key}: {value}" for key, value in header.items()]
    (info / "METADATA").write_text("\n".join([*lines, "", (folder / project["readme"]).read_text(encoding="utf-8")]), encoding="utf-8")
    entries = [f"{name} = {target}" for name, target in project["entry-points"]["vime.plugins"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[vime.plugins]", *entries, ""]), encoding="utf-8")
