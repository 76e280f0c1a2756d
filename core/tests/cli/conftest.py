"""A machine full of broken plugins: real distributions in a directory on PYTHONPATH, for the real command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HOOK = "from vime.api import hookimpl\n\n@hookimpl\ndef custom_rm(sample):\n    return 1.0\n"


@dataclass
class Zoo:
    """Distributions under `site`, and a way to run `vime` among them."""

    site: Path
    env: dict[str, str] = field(default_factory=dict)

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
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(self.site), os.environ.get("PYTHONPATH", "")]), **self.env, **env},
        )

    def rows(self, *words: str, **env: str) -> dict[str, dict]:
        """`vime plugin list --json`, by "distribution name"."""
        done = self.vime("plugin", "list", "--json", *words, **env)
        assert done.returncode == 0, done.stderr
        return {f"{row['distribution']} {row['name']}": row for row in json.loads(done.stdout)}


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Zoo:
    """An empty zoo. The command line runs in `tmp_path`, with no plugin enabled by the environment."""
    monkeypatch.delenv("VIME_PLUGINS", raising=False)
    site = tmp_path / "site"
    site.mkdir()
    return Zoo(site)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """One plugin that works, and one of every kind that does not."""
    site = tmp_path_factory.mktemp("crowd") / "site"
    site.mkdir()
    crowd = Zoo(site, {"VIME_PLUGINS": ""})
    crowd.add("fine")
    _add_broken_metadata(crowd)
    _add_broken_modules(crowd)
    return crowd


def _add_broken_metadata(crowd: Zoo) -> None:
    """What can be told without importing anything."""
    crowd.add("gone", None)
    crowd.add("gone-part", "", target="zoo_gone_part.inner")
    crowd.add("no-target", entry_points=b"[vime.plugins]\nno-target =\n")
    crowd.add("no-name", entry_points=b"[vime.plugins]\n= zoo_no_name\n")
    crowd.add("bad-target", target="zoo_bad_target:")
    crowd.add("odd-name", entry_points="[vime.plugins]\nödd name, [x] = zoo_odd_name\n".encode())
    crowd.add("latin", metadata=b"Metadata-Version: 2.1\nName: vime-zoo-latin\nVersion: 1.0\nSummary: caf\xe9\n")
    crowd.add("no-metadata", metadata=b"")
    crowd.add("no-version", metadata=b"Metadata-Version: 2.1\nName: vime-zoo-no-version\n")
    crowd.add("bad-version", metadata=b"Metadata-Version: 2.1\nName: vime-zoo-bad-version\nVersion: one\n")
    crowd.add("bad-requires", requires="vime >>> 3")
    crowd.add("future", requires="vime>=99")
    crowd.add("twin1", entry_points=b"[vime.plugins]\nTwin.Rm = zoo_twin1\n")
    crowd.add("twin2", entry_points=b"[vime.plugins]\ntwin_rm = zoo_twin2\n")
    crowd.add("self-twin", entry_points=b"[vime.plugins]\nself-twin = zoo_self_twin\nSelf_Twin = zoo_fine\n")


BROKEN_MODULES = {
    "syntax": "def f(:\n",
    "raises": "raise RuntimeError('no licence')\n",
    "raises-oddly": "class Odd(Exception):\n    def __str__(self):\n        raise ValueError\nraise Odd\n",
    "exits": "import sys\nsys.exit(0)\n",
    "interrupts": "raise KeyboardInterrupt\n",
    "needs-more": "import zoo_not_installed\n",
    "no-hooks": "",
    "misspelt": HOOK.replace("custom_rm", "custom_rn"),
    "misspelt-param": HOOK.replace("(sample)", "(smple)"),
    "twice": HOOK + "\n@hookimpl(specname='custom_rm')\ndef other(sample):\n    return 2.0\n",
    "wrapper": HOOK.replace("@hookimpl", "@hookimpl(tryfirst=True)"),
    "unmarked": "def custom_rm(sample):\n    return 1.0\n",
}
"""Modules that are refused when they are imported, in every process that does so."""
LETHAL_MODULES = {
    "quits": "import os\nprint('bye', flush=True)\nos._exit(0)\n",
    "crashes": "import ctypes\nctypes.string_at(0)\n",
    "hangs": "import time\nprint('waiting', flush=True)\ntime.sleep(1000)\n",
}
"""Modules that take the process with them."""
RUDE_MODULES = {
    "prints": "import os, sys\nprint('rubbish')\nos.write(1, b'caf\\xe9\\n')\nsys.stdout.buffer.write(b'\\xff[]\\n')\n" + HOOK,
    "closes": "import os, sys\nsys.stdout.close()\nos.close(1)\n" + HOOK,
    "replaces": "import sys\nsys.stdout = None\n" + HOOK,
    "moves": "import os\nos.chdir('/')\n" + HOOK,
    "thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n" + HOOK,
    "child": "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n" + HOOK,
}
"""Modules that work, and disturb their surroundings."""


def _add_broken_modules(crowd: Zoo) -> None:
    for name, source in {**BROKEN_MODULES, **LETHAL_MODULES, **RUDE_MODULES}.items():
        crowd.add(name, source)
    crowd.add("no-attribute", target="zoo_no_attribute:Clas")
    crowd.add("function", target="zoo_function:custom_rm")
    no_self = "from vime.api import hookimpl\nclass P:\n    @hookimpl\n    def custom_rm(sample):\n        return 1\n"
    crowd.add("no-self", no_self, target="zoo_no_self:P")
