"""`vime plugin list` and `vime plugin show` beside plugins that are broken, in conflict, or made for another vime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vime.cli.plugin import plugin_app
from vime.errors import PluginError

NUM_GPUS = 0

FINE = '''
"""Scores by length.

More about it."""
from vime.api import Settings, hookimpl

class Length:
    """Scores by length."""

    class Settings(Settings):
        limit: int = 5
        """Answers above this length score nothing."""
        url: str
        """Where to ask."""

    @hookimpl
    def custom_rm(self, sample, args):
        """1.0 for a short answer.

        Second paragraph."""
        return 1.0
'''


@pytest.fixture
def crowd(tmp_path, monkeypatch):
    """Five distributions: one works, one does not import, one has no module, two share a name, one needs another vime."""

    def install(distribution: str, name: str, target: str, requires: str = "vime") -> None:
        info = tmp_path / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\nRequires-Dist: {requires}\n")
        (info / "entry_points.txt").write_text(f"[vime.plugins]\n{name} = {target}\n")

    (tmp_path / "zoo_fine.py").write_text(textwrap.dedent(FINE))
    (tmp_path / "zoo_exit.py").write_text("print('noise')\nraise SystemExit(0)\n")
    (tmp_path / "zoo_dies.py").write_text("import os\nos._exit(7)\n")
    install("vime-zoo-fine", "zoo-length", "zoo_fine:Length")
    install("vime-zoo-exit", "zoo-exit", "zoo_exit")
    install("vime-zoo-dies", "zoo-dies", "zoo_dies")
    install("vime-zoo-gone", "zoo-gone", "zoo_gone.module")
    install("vime-zoo-twin1", "zoo-twin", "zoo_fine:Length")
    install("vime-zoo-twin2", "zoo_twin", "zoo_fine:Length")
    install("vime-zoo-future", "zoo-future", "zoo_fine:Length", "vime>=99")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield tmp_path
    for name in ("zoo_fine", "zoo_exit", "zoo_dies"):
        sys.modules.pop(name, None)


def rows(*args: str) -> dict[tuple[str, str], dict]:
    result = CliRunner().invoke(plugin_app, ["list", "--json", *args])
    assert result.exit_code == 0, result.output
    return {(row["name"], row["distribution"]): row for row in json.loads(result.stdout)}


def test_the_list_has_a_row_with_its_fault_for_each(crowd, monkeypatch):
    monkeypatch.setenv("VIME_PLUGINS", "Zoo_Length, other")
    found = rows()
    assert found["zoo-length", "vime-zoo-fine"] == {
        "name": "zoo-length",
        "distribution": "vime-zoo-fine",
        "version": "1.0",
        "target": "zoo_fine:Length",
        "enabled": True,
        "status": "ok",
        "detail": None,
    }
    gone = found["zoo-gone", "vime-zoo-gone"]
    assert (gone["enabled"], gone["status"]) == (False, "broken") and "no module 'zoo_gone'" in gone["detail"]
    assert found["zoo-twin", "vime-zoo-twin1"]["status"] == found["zoo_twin", "vime-zoo-twin2"]["status"] == "conflict"
    assert found["zoo-twin", "vime-zoo-twin1"]["detail"] == "the name is also claimed by vime-zoo-twin2 1.0"
    assert found["zoo-future", "vime-zoo-future"]["status"] == "incompatible"
    assert found["zoo-exit", "vime-zoo-exit"]["status"] == "ok"
    assert not {"zoo_fine", "zoo_exit", "zoo_dies"} & set(sys.modules)


def test_probe_imports_each_in_its_own_process(crowd):
    found = rows("--probe")
    assert found["zoo-length", "vime-zoo-fine"]["hooks"] == ["custom_rm"]
    exit_row = found["zoo-exit", "vime-zoo-exit"]
    assert (exit_row["status"], exit_row["hooks"], exit_row["detail"]) == ("broken", [], "importing zoo_exit raised SystemExit: 0")
    dies = found["zoo-dies", "vime-zoo-dies"]
    assert dies["status"] == "broken" and dies["detail"] == "importing it ended the process: exit code 7"
    assert found["zoo-gone", "vime-zoo-gone"]["hooks"] == []
    assert not {"zoo_fine", "zoo_exit", "zoo_dies"} & set(sys.modules)


def test_probe_does_not_depend_on_the_current_directory(crowd, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    for name in ("random", "json", "types"):
        (tmp_path / "here" / f"{name}.py").write_text("raise RuntimeError('hidden')\n")
    monkeypatch.chdir(tmp_path / "here")
    assert rows("--probe")["zoo-length", "vime-zoo-fine"]["hooks"] == ["custom_rm"]


def test_what_a_plugin_prints_is_not_in_the_answer(crowd, tmp_path):
    (tmp_path / "zoo_fine.py").write_text("print('noise')\n" + textwrap.dedent(FINE))
    result = CliRunner().invoke(plugin_app, ["show", "zoo-length", "--json"])
    assert json.loads(result.stdout)["name"] == "zoo-length"
    assert "noise" in result.stderr


def test_the_list_as_text(crowd):
    result = CliRunner().invoke(plugin_app, ["list"])
    lines = result.stdout.splitlines()
    assert result.exit_code == 0 and lines[0].split() == ["name", "distribution", "enabled", "status", "detail"]
    (line,) = [line for line in lines if line.startswith("zoo-future")]
    assert "vime-zoo-future 1.0" in line and "needs vime >=99" in line
    assert "\x1b" not in result.stdout


def test_show(crowd):
    result = CliRunner().invoke(plugin_app, ["show", "Zoo_Length"])
    assert result.exit_code == 0, result.output
    for part in (
        "zoo-length  (vime-zoo-fine 1.0)",
        "Scores by length.",
        "target    zoo_fine:Length",
        f"found in  {crowd}",
        "needs     vime (any version)",
        "custom_rm(sample, args)\n      1.0 for a short answer.",
        "limit: int  (default 5)    --set zoo-length.limit=...\n      Answers above this length score nothing.",
        "url: str  (required)",
    ):
        assert part in result.stdout, part


def test_show_as_json(crowd):
    shown = json.loads(CliRunner().invoke(plugin_app, ["show", "zoo-length", "--json"]).stdout)
    assert shown["hooks"] == [
        {"name": "custom_rm", "params": ["sample", "args"], "kind": "one", "doc": "1.0 for a short answer.\n\nSecond paragraph."}
    ]
    assert shown["settings"][0] == {
        "name": "limit",
        "type": "int",
        "required": False,
        "default": 5,
        "doc": "Answers above this length score nothing.",
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [("zoo-exit", "raised SystemExit"), ("zoo-twin", "is claimed by"), ("zoo-future", "needs vime"), ("zoo-nothing", "there is no plugin")],
)
def test_show_of_a_plugin_that_cannot_be_used(crowd, name, message):
    result = CliRunner().invoke(plugin_app, ["show", name])
    assert isinstance(result.exception, PluginError) and message in result.exception.message
    assert result.exception.exit_code == 2


def test_the_whole_command(crowd):
    vime = Path(sys.executable).with_name("vime")
    done = subprocess.run([vime, "plugin", "list", "--json"], capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0 and {row["name"] for row in json.loads(done.stdout)} >= {"zoo-length", "zoo-exit", "zoo_twin"}
    refused = subprocess.run([vime, "plugin", "show", "zoo-exit"], capture_output=True, text=True, check=False, env=os.environ)
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert "plugin 'zoo-exit' (vime-zoo-exit 1.0): importing zoo_exit raised SystemExit: 0" in " ".join(refused.stderr.split())


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
