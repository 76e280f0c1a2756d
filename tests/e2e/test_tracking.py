"""All that a run leaves behind with every tracker on: services, trace, logs, samples, report, and nowhere a secret.

The engine is the kit's and nothing is trained, so that this needs no vLLM and no DeepSpeed at work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

OF_SETTING, OF_ENVIRONMENT = "setting-secret-0123", "environment-secret-0456"

PLUGIN = '''
import os
from vime.api import Settings, hookimpl

class Judge:
    """A reward that tells its secrets wherever it can."""

    class Settings(Settings):
        api_key: str
        """The key of the service."""

    def __init__(self, settings):
        self.settings = settings

    @hookimpl
    def custom_rm(self, sample):
        sample.metadata["said"] = f"{self.settings.api_key} {os.environ['JUDGE_TOKEN']}"
        sample.response += self.settings.api_key
        if os.environ.get("FAIL") and sample.index == 5:
            raise ConnectionError(f"https://judge/?key={self.settings.api_key} refused {os.environ['JUDGE_TOKEN']}")
        return float(sample.index % 2)
'''

MAIN = """
import sys
import vime.runtime.placement as placement
from vime.testing.fakes import FakeEngine

placement.InProcess.start_engine = lambda self: FakeEngine()
from vime.cli.app import main

sys.exit(main(sys.argv[1:]))
"""


def vime_train(folder: Path, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    from vime.quickstart import quickstart_defaults

    (folder / "zoo_judge.py").write_text(PLUGIN)
    metadata = folder / "zoo_judge-1.0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: zoo-judge\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[vime.plugins]\njudge = zoo_judge:Judge\n")
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"input": f"{i}+1="}) + "\n" for i in range(8)))
    command = [sys.executable, "-c", MAIN, "train", "--plugin", "judge", "--set", f"judge.api_key={OF_SETTING}"]
    command += ["--hf-checkpoint", str(quickstart_defaults()["hf_checkpoint"]), "--prompt-data", "prompts.jsonl", "--debug-rollout-only"]
    command += ["--num-rollout", "2", "--rollout-batch-size", "2", "--n-samples-per-prompt", "2", "--rollout-max-response-len", "8"]
    command += ["--reward-isolation", "thread", "--run-dir", "run", *flags]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "MLFLOW_", "TRACKIO_"))}
    path = os.pathsep.join([str(folder), kept.pop("PYTHONPATH", "")]).rstrip(os.pathsep)
    own = {"PYTHONPATH": path, "JUDGE_TOKEN": OF_ENVIRONMENT, "WANDB_MODE": "offline", "TRACKIO_DIR": str(folder / "run" / "trackio")}
    return subprocess.run(command, cwd=folder, env=kept | own | environment, capture_output=True, text=True, timeout=200, check=False)


def tells(folder: Path) -> list[str]:
    """The files that hold a secret, in the clear or in a compressed column."""
    import pyarrow.parquet

    found: list[str] = []
    for path in (path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes() + (str(pyarrow.parquet.read_table(path).to_pylist()).encode() if path.suffix == ".parquet" else b"")
        found += [str(path) for secret in (OF_SETTING, OF_ENVIRONMENT) if secret.encode() in content]
    return found


def test_a_run_with_every_tracker_and_a_trace(tmp_path: Path) -> None:
    for package in ("wandb", "mlflow", "trackio", "tensorboard"):
        pytest.importorskip(package, reason=f"vime[{package}] is not installed")
    done = vime_train(tmp_path, "--track", "tensorboard,wandb,mlflow,trackio", "--trace-step", "1")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    assert "switched off" not in done.stderr
    assert done.stdout == ""
    assert "WARNING" not in done.stderr
    assert "model: ***" not in done.stderr
    for label in ("Weights & Biases: ", "MLflow: ", "trackio: ", "device: ", "runtime: local"):
        assert label in done.stderr
    assert {"wandb", "mlflow.db", "trackio", "tensorboard", "trackers.json", "report.html"} <= {path.name for path in run.iterdir()}
    assert sorted(json.loads((run / "trackers.json").read_text())) == ["mlflow", "trackio", "wandb"]
    assert tells(run) == []
    assert OF_SETTING not in done.stderr
    assert OF_ENVIRONMENT not in done.stderr

    events = json.loads((run / "trace_step_1.json").read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    for index in range(4, 8):
        spans = {event["name"] for event in events if event["ph"] == "X" and names[event["tid"]] == f"sample {index} (group {index // 2})"}
        assert {"sample", "queueing", "generation", "reward"} <= spans
    assert {"step 1", "rollout", "train", "sync"} <= {event["name"] for event in events}

    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(run / "samples" / "train_000001.parquet").to_pylist()
    assert [row["verdicts"] for row in rows] == [
        [{"hook": "custom_rm", "plugin": "judge", "verdict": str(row["index"] % 2)}] for row in rows
    ]
    assert all("***" in row["metadata"] for row in rows)


def test_a_failing_run_tells_no_secret(tmp_path: Path) -> None:
    done = vime_train(tmp_path, FAIL="1")
    assert done.returncode == 1
    assert "https://judge/?key=*** refused ***" in done.stderr
    assert OF_SETTING not in done.stderr + done.stdout
    assert OF_ENVIRONMENT not in done.stderr + done.stdout
    assert tells(tmp_path / "run") == []


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
