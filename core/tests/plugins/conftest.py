"""A site directory that tests install distributions into: real metadata, real modules, nothing stubbed."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Install = Callable[..., None]


def write_distribution(
    site: Path,
    distribution: str,
    *,
    version: str = "1.0",
    plugins: dict[str, str] | None = None,
    modules: dict[str, str] | None = None,
    requires: tuple[str, ...] = ("vime",),
    entry_points: str | None = None,
) -> None:
    """Write a distribution as pip would leave it: `modules` by file name, `plugins` by entry-point name."""
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}", *(f"Requires-Dist: {line}" for line in requires)]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    if entry_points is None:
        entry_points = "[vime.plugins]\n" + "".join(f"{name} = {target}\n" for name, target in (plugins or {}).items())
    (info / "entry_points.txt").write_text(entry_points)
    for name, source in (modules or {}).items():
        file = site / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(source))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory on sys.path; what is imported from it is forgotten afterwards."""
    directory = tmp_path / "site"
    directory.mkdir()
    monkeypatch.syspath_prepend(str(directory))
    before, path = set(sys.modules), list(sys.path)
    yield directory
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(tmp_path)) or name.startswith(("vime_file_", "zoo")):
            del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
def install(site: Path) -> Install:
    """`install("vime-x", plugins={"x": "zoo_x"}, modules={"zoo_x.py": source})` writes a distribution into the site directory."""

    def write(distribution: str, **what: object) -> None:
        write_distribution(site, distribution, **what)

    return write
