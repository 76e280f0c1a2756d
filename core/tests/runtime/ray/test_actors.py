"""What an actor's process does first: its output ends in the run's folder, and its plugins are the driver's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager

NUM_GPUS = 0

# A process of its own: it gives its streams away.
ACTOR = """
import json, os, sys
from vime.config.run_config import RunConfig
from vime.runtime.ray.actors import Surroundings, settle

logs, folder, lock = sys.argv[1:]
config = RunConfig(custom_rm_path="./rewards.py:score")
settle(Surroundings("trainer-rank-1", "node-b", json.loads(lock), logs, folder), config)
print("from Python")
sys.stdout.flush()
os.write(2, b"from below\\n")
print(os.getcwd() == folder)
"""

ENGINE = """
import asyncio
from vime.config.run_config import RunConfig
from vime.runtime.ray.actors import Surroundings
from vime.runtime.ray.engines import EngineActor, EngineSettings

around = Surroundings("engine-0", "node-b", {"vime": "0.0.0"}, "/dev/null/logs", "/")
actor = EngineActor(EngineSettings(RunConfig(), "model", "float32", 8, around))
try:
    asyncio.run(actor.describe())
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


def actor(folder: Path, lock: dict, cwd: Path) -> subprocess.CompletedProcess:
    import json

    command = [sys.executable, "-c", ACTOR, str(folder / "run" / "logs"), str(folder), json.dumps(lock)]
    return subprocess.run(command, check=False, cwd=cwd, capture_output=True, text=True, timeout=60)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The driver's folder, with a reward function in it."""
    (tmp_path / "rewards.py").write_text("def score(args, sample):\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_output_is_in_the_runs_logs_and_relative_paths_count_from_the_drivers_folder(folder, tmp_path_factory):
    lock = PluginManager.load(RunConfig(custom_rm_path="./rewards.py:score")).lock()
    result = actor(folder, lock, tmp_path_factory.mktemp("elsewhere"))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    said = (folder / "run" / "logs" / "trainer-rank-1.log").read_text()
    assert sorted(said.split(os.linesep)) == ["", "True", "from Python", "from below"]


def test_other_plugins_than_the_drivers_are_refused_with_the_node(folder):
    lock = PluginManager.load(RunConfig(custom_rm_path="./rewards.py:score")).lock()
    assert actor(folder, lock | {"vime": "0.0.0"}, folder).returncode == 1
    said = (folder / "run" / "logs" / "trainer-rank-1.log").read_text()
    assert "PluginError: node node-b does not have the driver's plugins: vime is" in said
    (folder / "rewards.py").unlink()
    assert actor(folder, lock, folder).returncode == 1
    assert "Error: node node-b: " in (folder / "run" / "logs" / "trainer-rank-1.log").read_text()


def test_why_an_engine_could_not_be_built_is_told_when_it_is_asked_for():
    result = subprocess.run([sys.executable, "-c", ENGINE], check=False, capture_output=True, text=True, timeout=60)
    assert result.stdout.startswith("PluginError: node node-b does not have the driver's plugins: vime is"), result.stderr
    assert result.returncode == 0


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
