"""Real distributions in a directory on PYTHONPATH, and the real command line among them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vime.cli.app import main

HOOK = "from vime.api import hookimpl\n\n@hookimpl\ndef custom_rm(sample):\n    return 1.0\n"


@dataclass
class Zoo:
    """Distributions under `site`, and a way to run `vime` there."""

    site: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def pythonpath(self) -> str:
        """`site` before what is there; an empty part would be the current directory."""
        return os.pathsep.join(filter(None, [str(self.site), os.environ.get("PYTHONPATH")]))

    def add(
        self,
        name: str,
        source: str | None = HOOK,
        *,
        target: str | None = None,
        distribution: str | None = None,
        requires: str = "vime",
        metadata: bytes | None = None,
        entry_points: bytes | None = None,
    ) -> None:
        """Write the distribution vime-zoo-<name>, whose plugin `name` is the module zoo_<name> with this source."""
        module = "zoo_" + name.replace("-", "_")
        distribution = distribution or f"vime-zoo-{name}"
        info = self.site / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        usual = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\nRequires-Dist: {requires}\n".encode()
        if metadata != b"":
            (info / "METADATA").write_bytes(usual if metadata is None else metadata)
        (info / "entry_points.txt").write_bytes(entry_points or f"[vime.plugins]\n{name} = {target or module}\n".encode())
        if source is not None:
            (self.site / f"{module}.py").write_text(textwrap.dedent(source))

    def vime(self, *words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the real command line in a process of its own."""
        return subprocess.run(
            [sys.executable, "-m", "vime", *words],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=60,
            cwd=cwd or self.site.parent,
            env={**os.environ, "PYTHONPATH": self.pythonpath, **self.env, **env},
        )

    def vime_here(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """The same in this process, which saves starting an interpreter. Plugins are imported in processes of their own all the same."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            patch.syspath_prepend(str(self.site))
            patch.setenv("PYTHONPATH", self.pythonpath)
            patch.chdir(self.site.parent)
            for name, value in {**self.env, **env}.items():
                patch.setenv(name, value)
            code = main(list(words))
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    def rows(self, *words: str, **env: str) -> dict[str, dict]:
        """`vime plugin list --json`, by "distribution name"."""
        done = self.vime_here("plugin", "list", "--json", *words, **env)
        assert done.returncode == 0, done.stderr
        return {f"{row['distribution']} {row['name']}": row for row in json.loads(done.stdout)}


@pytest.fixture
def zoo(tmp_path: Path) -> Zoo:
    """An empty zoo. The command line runs in `tmp_path`, with no plugin enabled by the environment."""
    return _empty_zoo(tmp_path)


@pytest.fixture(scope="module")
def shared_zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """The same, for all tests of a module."""
    return _empty_zoo(tmp_path_factory.mktemp("zoo"))


def _empty_zoo(directory: Path) -> Zoo:
    site = directory / "site"
    site.mkdir()
    return Zoo(site, {"VIME_PLUGINS": ""})
