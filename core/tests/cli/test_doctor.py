"""`vime doctor`: what it says, its exit code, and that it works where nothing heavy is installed."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vime.cli.app import main
from vime.config import extras
from vime.config.run_config import RunConfig
from vime.doctor import cluster, examine
from vime.doctor.machine import Gpu, Machine
from vime.errors import ConfigError
from vime.runtime.ray.plan import Node, plan

NUM_GPUS = 0

Captured = pytest.CaptureFixture[str]
ROOT = Path(__file__).resolve().parents[3]
MACHINE = Machine("Linux", False, 2.0, 2, 24.0, 20.0, (), 12.0, 65536)


@pytest.fixture(autouse=True)
def this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine whose size is known, with everything installed."""
    monkeypatch.setattr(examine, "look_at_machine", lambda env: MACHINE)
    monkeypatch.setattr(extras, "find_spec", lambda name: object())
    monkeypatch.delenv("VIME_PLUGINS", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reward.py").write_text("def score(args, sample):\n    return 1.0\n")


REWARD = ("--custom-rm-path", "./reward.py:score")


def doctor(capsys: Captured, *words: str) -> tuple[int, str]:
    code = main(["doctor", *words])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_a_run_that_would_start(capsys: Captured) -> None:
    code, said = doctor(capsys, *REWARD)
    assert code == 0 and said.endswith("the run would start\n")
    assert "memory    24.0 GiB, 20.0 free" in said and "runtime   local, pipeline sync" in said
    assert "trainer float32, engine float32" in said and "memory (calculated" in said


def test_all_that_stops_a_run_is_said_at_once(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "vllm" else object())
    code, said = doctor(capsys, "--plugin", "no-such", "--model", "nowhere", "--prompt-data", "missing.jsonl")
    assert code == 2
    stops = [line for line in said.splitlines() if line.startswith("STOPS: ")]
    assert len(stops) == 4 and "the run would not start: 4 things in the way" in said
    for culprit in ("this needs vllm", "--hf-checkpoint nowhere", "'no-such'", "missing.jsonl does not exist"):
        assert any(culprit in line for line in stops), culprit
    assert "uv pip install 'vime[" in said


def test_values_that_contradict_each_other_are_refused_as_by_a_run(capsys: Captured) -> None:
    code, said = doctor(capsys, *REWARD, "--engines", "2")
    assert code == 2 and "STOPS: --engines 2 needs several processes" in said and "machine" in said


@pytest.mark.skipif(find_spec("vllm") is None, reason="a machine on which nothing can be trained stops every run")
def test_without_flags_it_names_the_flags(capsys: Captured) -> None:
    code, said = doctor(capsys)
    assert code == 0 and "with the flags of a run" in said


def test_what_a_run_refuses_after_its_plugins_are_loaded(capsys: Captured, tmp_path: Path) -> None:
    code, said = doctor(capsys, "--num-rollout", "2")
    assert code == 2 and "STOPS: " in said, "no reward"
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "metrics.jsonl").write_text("")
    code, said = doctor(capsys, *REWARD, "--run-dir", "old")
    assert code == 2 and "STOPS: old already holds a run" in said
    code, said = doctor(capsys, *REWARD, "--load", "nowhere")
    assert code == 2 and "--load nowhere: no such folder" in said


def test_nothing_is_made(capsys: Captured, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    doctor(capsys, *REWARD, "--run-dir", "new", "--save", "elsewhere")
    assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in path.parts] == before


def test_the_placement_of_a_ray_run_is_a_table(capsys: Captured) -> None:
    code, said = doctor(capsys, *REWARD, "--runtime", "ray", "--trainer-ranks", "2", "--engines", "1")
    assert code == 0
    lines = [line.split() for line in said.splitlines()]
    assert ["actor", "node", "bundle", "CPUs", "GPUs", "threads"] in lines
    rows = [line for line in lines if line[:1] in (["rank"], ["engine"]) and line[1:2] != ["device"]]
    assert [[*row[:2], *row[3:]] for row in rows] == [
        ["rank", "0", "0", "0.6666", "0", "1"],
        ["rank", "1", "0", "0.6666", "0", "1"],
        ["engine", "0", "0", "0.6666", "0", "2"],
    ]
    assert "3 ranks and engines share 2 CPUs" in said


def test_a_plan_that_does_not_fit_stops_the_run(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = MACHINE.__class__(**{**vars(MACHINE), "gpus": (Gpu("H200", 139.0, "570"),)})
    monkeypatch.setattr(examine, "look_at_machine", lambda env: gpus)
    code, said = doctor(capsys, *REWARD, "--runtime", "ray")
    assert code == 2 and "STOPS: needs 2 GPUs (1 rank + 1 engine x 1), the cluster has 1" in said
    code, said = doctor(capsys, *REWARD, "--runtime", "ray", "--colocate")
    assert code == 0 and "GPU 0     H200, 139.0 GiB, driver 570" in said and "of rank 0" in said


def test_the_cluster_of_ray_address_is_asked(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def nodes(address: str) -> list[Node]:
        asked.append(address)
        return [Node("alpha", 4.0, 0, 8.0), Node("beta", 4.0, 0, 8.0)]

    monkeypatch.setattr(examine, "cluster_nodes", nodes)
    code, said = doctor(capsys, *REWARD, "--runtime", "ray", "--engines", "2", "--ray-address", "10.0.0.1:6379")
    assert code == 0 and asked == ["10.0.0.1:6379"]
    assert "node alpha: 4 CPUs, 8.0 GiB" in said and "placement group STRICT_SPREAD" in said


def test_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("ray", 60)

    monkeypatch.setattr(cluster.subprocess, "run", late)
    with pytest.raises(ConfigError, match=r"--ray-address 10\.0\.0\.1:1: no cluster answered in 60 s"):
        cluster.cluster_nodes("10.0.0.1:1")


def test_json_has_everything(capsys: Captured) -> None:
    words = ["doctor", *REWARD, "--runtime", "ray", "--engines", "2", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["starts"] is True and told["machine"]["memory_gib"] == 24.0
    made = plan(RunConfig(runtime="ray", engines=2), [Node(told["placement"]["nodes"][0]["name"], 2.0, 0, 24.0)])
    assert told["placement"]["bundles"] == made.bundles and len(told["placement"]["engines"]) == 2
    assert told["run"]["runtime"] == "ray" and told["calculated_memory_gib"]["parameters"] > 0
    assert main([*words, "--colocate", "--pipeline", "async"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["starts"] is False and told["run"] is None and told["findings"][0]["level"] == "stops"


def test_help_says_what_the_exit_codes_mean(capsys: Captured) -> None:
    assert main(["doctor", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Exit code 0" in shown and "--trainer-ranks" in shown and "--json" in shown


# --- an environment with vime alone ---------------------------------------------------------------------------------


def required_by(name: str, found: dict[str, importlib.metadata.Distribution]) -> None:
    """The distributions that `name` needs without extras, and what these need."""
    key = canonicalize_name(name)
    if key in found:
        return
    found[key] = dist = importlib.metadata.distribution(name)
    for line in dist.requires or []:
        need = Requirement(line)
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            required_by(need.name, found)


@pytest.fixture(scope="module")
def light_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds vime and its requirements, by links into this one."""
    folder = tmp_path_factory.mktemp("light")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, capture_output=True)
    found: dict[str, importlib.metadata.Distribution] = {}
    required_by("vime", found)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv"), "platbase": str(folder / "venv")}))
    for dist in found.values():
        for part in {file.parts[0] for file in dist.files or []} - {"..", "__pycache__"}:
            if part.endswith(".pth"):  # of the source tree that is installed here, which may be another one
                continue
            target = Path(str(dist.locate_file(part)))
            if not (site / part).exists() and target.exists():
                (site / part).symlink_to(target)
    (site / "vime-source.pth").write_text(str(ROOT / "core" / "src"))
    return folder / "venv" / "bin" / "python"


def test_it_works_where_nothing_heavy_is_installed(light_python: Path, tmp_path: Path) -> None:
    probe = "from importlib.util import find_spec\nprint([n for n in ('torch', 'ray', 'vllm', 'numpy', 'transformers') if find_spec(n)])"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIME_", "RAY_"))}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([light_python, *words], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path, env=env)

    assert run("-c", probe).stdout == "[]\n"
    done = run("-m", "vime", "doctor")
    assert done.returncode == 2, done.stderr
    assert "STOPS: torch, transformers, vllm, deepspeed not installed" in done.stdout and "uv pip install 'vime[" in done.stdout
    done = run("-m", "vime", "doctor", *REWARD, "--runtime", "ray", "--trainer-ranks", "2")
    assert done.returncode == 2, done.stderr
    assert "STOPS: --runtime ray needs Ray" in done.stdout and "STOPS: this needs torch" in done.stdout
    assert "rank 1" in done.stdout and "1.1M parameters" in done.stdout, "what can be told is told"


def test_no_heavy_library_is_loaded(tmp_path: Path) -> None:
    words = ["doctor", *REWARD, "--runtime", "ray"]
    heavy = ("torch", "transformers", "vllm", "deepspeed", "ray", "numpy", "pyarrow", "datasets")
    code = f"import sys\nfrom vime.cli.app import main\nmain({words!r})\nprint('LOADED', [n for n in {heavy!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)
    assert "LOADED []" in done.stdout, done.stderr


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
