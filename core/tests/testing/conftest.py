"""Packages that tests install into a directory of their own, as pip would leave them."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Install = Callable[..., str]

_METADATA = """Metadata-Version: 2.4
Name: {distribution}
Version: 1.0
Summary: For a test
Requires-Python: >=3.11
License-Expression: Apache-2.0
Requires-Dist: vime>=0.1,<0.2

A package for a test.
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory on sys.path; what is imported from it is forgotten afterwards."""
    directory = tmp_path / "site"
    directory.mkdir()
    monkeypatch.syspath_prepend(str(directory))
    before, path = set(sys.modules), list(sys.path)
    yield directory
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
def install(site: Path) -> Install:
    """`install("name", "source", entry="{module}:Class")` makes a good distribution of one module; returns the module's name."""

    def write(name: str, source: str, *, entry: str = "{module}") -> str:
        module = "kit_" + name.replace("-", "_").replace(".", "_")
        info = site / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(_METADATA.format(distribution=f"vime-{name}"))
        (info / "entry_points.txt").write_text(f"[vime.plugins]\n{name} = {entry.format(module=module)}\n")
        (site / f"{module}.py").write_text(textwrap.dedent(source))
        return module

    return write
