"""The services of --track: each gets what it should, and none can hold up or end a run, whatever it does."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vime.config.run_config import RunConfig
from vime.redact import Redactor
from vime.track import services as services_module
from vime.track.console import Console
from vime.track.run_dir import RunDir
from vime.track.services import ServiceRun, Services
from vime.track.tracker import Tracker

NUM_GPUS = 0


class Recorder:
    """A service that keeps what it is given; `fails_at` names the call that raises or, with `hangs`, waits for `release`."""

    where = "here"

    def __init__(self, run, fails_at=None, error=None, hangs=None):
        self.run, self.fails_at, self.error, self.hangs = run, fails_at, error, hangs
        self.lines, self.closed = [], None
        self.identity = run.identity or "new-1"
        self._maybe("start")

    def _maybe(self, call):
        if call == self.fails_at:
            if self.hangs is not None:
                self.hangs.wait(30)
            if self.error is not None:
                raise self.error

    def log(self, namespace, step, metrics):
        self._maybe("log")
        self.lines.append((namespace, step, metrics))

    def close(self, *, failed):
        self._maybe("close")
        self.closed = failed


class Bench:
    def __init__(self, tmp_path):
        self.folder, self.said, self.warned, self.made = tmp_path, [], [], []

    def services(self, logged=None, **options):
        def load(name):
            def build(run):
                self.made.append(Recorder(run, **options))
                return self.made[-1]

            return build

        run = ServiceRun("run-1", self.folder, None, {"lr": 1.0})
        return Services(["wandb"], run, logged=logged or {}, say=self.said.append, warn=self.warned.append, load=load)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@pytest.fixture
def release():
    event = threading.Event()
    yield event
    event.set()


def test_lines_arrive_in_order_and_the_end_is_told(bench):
    services = bench.services()
    for step in range(3):
        services.log("train", step, {"train/loss": float(step)})
    services.close(failed=False)
    (service,) = bench.made
    assert service.lines == [("train", step, {"train/loss": float(step)}) for step in range(3)]
    assert service.closed is False
    assert service.run == ServiceRun("run-1", bench.folder, None, {"lr": 1.0}, None)
    assert bench.said == ["Weights & Biases: here"]
    assert bench.warned == []


def test_a_run_that_goes_on_finds_itself_again_and_sends_nothing_twice(bench):
    first = bench.services()
    for step in range(3):
        first.log("train", step, {"train/loss": 1.0})
    first.log("eval", 0, {"eval/sums": 1.0})
    first.close(failed=True)
    assert bench.made[0].closed is True
    assert json.loads((bench.folder / "trackers.json").read_text()) == {"wandb": {"run": "new-1", "sent": {"train": 2, "eval": 0}}}

    again = bench.services(logged={"train": 0, "rollout": 4})  # the checkpoint is older than what was sent; of rollouts the file knows more
    for step in range(1, 5):
        again.log("train", step, {"train/loss": 2.0})
    again.log("rollout", 4, {"rollout/x": 1.0})
    again.log("rollout", 5, {"rollout/x": 1.0})
    again.close(failed=False)
    assert bench.made[1].run.identity == "new-1"
    assert [line[:2] for line in bench.made[1].lines] == [("train", 3), ("train", 4), ("rollout", 5)]


def test_what_the_run_has_logged_before_is_no_matter_of_a_new_service(bench):
    services = bench.services(logged={"train": 7})
    services.log("train", 5, {"train/loss": 1.0})
    services.close(failed=False)
    assert [line[:2] for line in bench.made[0].lines] == [("train", 5)]


@pytest.mark.parametrize("call", ["start", "log", "close"])
@pytest.mark.parametrize("error", [ConnectionError("no route\nmore"), SystemExit(3), ImportError("No module named 'wandb'")])
def test_a_failing_service_is_warned_of_once(bench, call, error):
    services = bench.services(fails_at=call, error=error)
    for step in range(5):
        services.log("train", step, {"train/loss": 1.0})
    services.close(failed=False)
    first = str(error).splitlines()[0]
    assert bench.warned == [f"Weights & Biases is switched off: {type(error).__name__}: {first}; the run goes on without it"]
    assert [thread for thread in threading.enumerate() if thread.name.startswith("vime-track")] == []


@pytest.mark.parametrize("call", ["start", "log", "close"])
def test_a_hanging_service_is_warned_of_once(bench, release, call, monkeypatch):
    for limit in ("PATIENCE", "START_WAIT", "CLOSE_WAIT"):
        monkeypatch.setattr(services_module, limit, 0.05)
    services = bench.services(fails_at=call, hangs=release, error=ConnectionError("at last"))
    for step in range(5):
        services.log("train", step, {"train/loss": 1.0})
        release.wait(0.05)
    assert len(bench.warned) == (call != "close")
    services.close(failed=False)
    what = "does not come to its end; what it has not sent yet is in metrics.jsonl" if call == "close" else "has not answered for 0 s"
    expected = [f"Weights & Biases is switched off: it {what}; the run goes on without it"]
    assert bench.warned == expected
    release.set()
    for thread in threading.enumerate():
        if thread.name.startswith("vime-track"):
            thread.join(10)
    assert bench.warned == expected


def test_what_a_service_prints_is_no_result(bench, capsys):
    class Loud(Recorder):
        def _maybe(self, call):
            sys.stdout.write(f"loud {call}\n")

    run = ServiceRun("run-1", bench.folder, None, {})
    services = Services(["wandb"], run, logged={}, say=bench.said.append, warn=bench.warned.append, load=lambda name: Loud)
    services.close(failed=False)
    assert capsys.readouterr().out == ""


# Through the tracker, with the real packages


SECRET = "hush-hush-hush-1"


def _config(*names, **values):
    return RunConfig(track=list(names), plugin_settings={"judge": {"api_key": SECRET}}, **values)


def _tracker(path, config):
    path.mkdir(exist_ok=True)
    said = io.StringIO()
    console = Console(file=said, terminal=False)
    return Tracker(RunDir(path, path / "checkpoints"), config, console, Redactor.of({}, config)), said


def _log_steps(tracker, steps):
    for step in steps:
        tracker.log(step, "rollout", {"raw_reward": step / 2, "bad": float("nan")})
        tracker.log(step, "train", {"loss": -float(step)})
    tracker.log(steps[-1] + 1, "eval", {"sums-pass@4": 0.5})


def _nowhere_in(folder, text):
    for path in folder.rglob("*"):
        assert not path.is_file() or text.encode() not in path.read_bytes(), path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own, of sqlalchemy
def test_mlflow_without_a_server(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    pytest.importorskip("mlflow", reason="vime[mlflow] is not installed")
    from mlflow import MlflowClient

    tracker, said = _tracker(tmp_path / "run", _config("mlflow", track_project="sums", lr=0.5))
    _log_steps(tracker, [0, 1])
    tracker.close()
    again, _ = _tracker(tmp_path / "run", _config("mlflow", track_project="sums", lr=0.25))
    again.truncate_after(0)
    _log_steps(again, [1, 2])
    again.close()

    assert "switched off" not in said.getvalue()
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/run/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("sums").experiment_id])
    assert run.info.run_name == "run"
    assert run.info.status == "FINISHED"
    assert (run.data.params["lr"], run.data.params["plugin_settings.judge.api_key"]) == ("0.5", "***")
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(metric.step, metric.value) for metric in history] == [(0, 0.0), (1, -1.0), (2, -2.0)]
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "eval/sums-pass_4")] == [2, 3]
    assert "rollout/bad" not in run.data.metrics
    assert sorted(run.data.tags) == ["mlflow.runName"]
    _nowhere_in(tmp_path, SECRET)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_that_failed_is_one_in_mlflow(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    pytest.importorskip("mlflow", reason="vime[mlflow] is not installed")
    from mlflow import MlflowClient

    tracker, _ = _tracker(tmp_path / "run", _config("mlflow"))
    try:
        raise ValueError
    except ValueError:
        tracker.close()
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/run/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("vime").experiment_id])
    assert run.info.status == "FAILED"


def test_trackio_in_a_folder(tmp_path):
    """In a process of its own: trackio reads TRACKIO_DIR once, when it is imported."""
    pytest.importorskip("trackio", reason="vime[trackio] is not installed")
    run = _alone(tmp_path, "trackio", {"TRACKIO_DIR": str(tmp_path / "trackio")})
    assert run.stdout == ""
    assert "trackio: trackio show --project sums" in run.stderr
    assert "switched off" not in run.stderr
    import sqlite3

    database = sqlite3.connect(tmp_path / "trackio" / "sums.db")
    rows = database.execute("select run_name, step, metrics from metrics order by id").fetchall()
    database.close()
    losses = [(name, step, json.loads(metrics)) for name, step, metrics in rows if b"train/loss" in metrics]
    assert losses == [("run", step, {"train/loss": -float(step)}) for step in range(3)]
    _nowhere_in(tmp_path, SECRET)


def test_wandb_offline(tmp_path):
    """In a process of its own, whose command line holds the secret as well."""
    pytest.importorskip("wandb", reason="vime[wandb] is not installed")
    run = _alone(tmp_path, "wandb", {"WANDB_MODE": "offline"})
    assert "switched off" not in run.stderr
    assert "Weights & Biases: kept in " in run.stderr
    records = [record for path in sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")) for record in _wandb_records(path)]
    history = [
        {item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json) for item in r.history.item} for r in records
    ]
    losses = [(line["train/step"], line["train/loss"]) for line in history if "train/loss" in line]
    assert losses == [(0, 0.0), (1, -1.0), (2, -2.0)]
    assert [line["eval/step"] for line in history if "eval/sums-pass@4" in line] == [2, 3]
    metrics = {(r.metric.name or r.metric.glob_name, r.metric.step_metric) for r in records if r.HasField("metric")}
    assert {("train/*", "train/step"), ("rollout/*", "rollout/step"), ("eval/*", "eval/step")} <= metrics
    assert len({r.run.run_id for r in records if r.HasField("run")}) == 1
    _nowhere_in(tmp_path, SECRET)


def test_mlflow_says_only_where_it_is(tmp_path):
    """In a process of its own, into which MLflow has just been imported: that is when it sets up its loggers."""
    pytest.importorskip("mlflow", reason="vime[mlflow] is not installed")
    run = _alone(tmp_path, "mlflow", {})
    assert {line.partition(":")[0] for line in run.stderr.splitlines()} == {
        "MLflow",
        "warning metric rollout/bad is not finite; such values are left out of metrics.jsonl",
    }


def test_an_mlflow_server_that_is_not_there_is_named_with_the_reason(tmp_path):
    pytest.importorskip("mlflow", reason="vime[mlflow] is not installed")
    run = _alone(tmp_path, "mlflow", {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"})
    told = [line for line in run.stderr.splitlines() if "MLflow is switched off" in line]
    assert len(told) == 2, "once in each of the two runs"
    assert all("refused" in line for line in told), told


def _wandb_records(path):
    """The records of a .wandb file: a log as LevelDB has it, in blocks of 32 KiB, after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, place, whole, records = path.read_bytes(), 7, b"", []
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a record in one piece, or its last piece
            records.append(vars(wandb_internal_pb2)["Record"].FromString(whole))  # a class that is made at run time
            whole = b""
    return records


ALONE = """
import sys
from pathlib import Path
from vime.config.run_config import RunConfig
from vime.redact import Redactor
from vime.track.console import Console
from vime.track.run_dir import RunDir
from vime.track.tracker import Tracker

name, folder, secret = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
config = RunConfig(track=[name], track_project="sums", plugin_settings={"judge": {"api_key": secret}})
for steps in ([0, 1], [1, 2]):
    tracker = Tracker(RunDir(folder, folder / "checkpoints"), config, Console(), Redactor.of({}, config))
    if steps[0]:
        tracker.truncate_after(0)
    for step in steps:
        tracker.log(step, "rollout", {"raw_reward": step / 2, "bad": float("nan")})
        tracker.log(step, "train", {"loss": -float(step)})
    tracker.log(steps[-1] + 1, "eval", {"sums-pass@4": 0.5})
    tracker.close()
"""


def _alone(tmp_path, name, environment):
    (tmp_path / "run").mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "TRACKIO_", "MLFLOW_"))}
    command = [sys.executable, "-c", ALONE, name, str(tmp_path / "run"), SECRET]
    done = subprocess.run(command, env=kept | environment, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_no_package_of_a_service_is_imported_unless_asked_for(tmp_path):
    code = ALONE.replace("track=[name]", "track=[]") + "print([name for name in ('wandb', 'mlflow', 'trackio') if name in sys.modules])"
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-c", code, "none", str(tmp_path / "run"), SECRET]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True).stdout == "[]\n"
    assert not (tmp_path / "run" / "trackers.json").exists()


def test_a_service_that_is_not_there_is_warned_of(tmp_path, monkeypatch):
    monkeypatch.setitem(services_module.SERVICES, "wandb", ("Weights & Biases", "vime.track.no_such_module:Service"))
    tracker, said = _tracker(tmp_path / "run", _config("wandb"))
    _log_steps(tracker, [0, 1])
    tracker.close()
    assert said.getvalue().count("Weights & Biases is switched off: ModuleNotFoundError") == 1
    assert len(Path(tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 5


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
