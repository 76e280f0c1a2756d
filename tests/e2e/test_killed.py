"""A run that is killed again and again, at any moment, ends as the run that never was: same numbers, same weights.

A start costs 20 s, nearly all of it imports, and this test needs two dozen. So `warm_process.py` imports once and forks
each attempt: a process of its own, with nothing built yet, that gets a real SIGKILL.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

SEED = 7
ROLLOUTS = 32
KILLS = 22
FIRST_MOMENTS = ["starting", "first rollout", "writing"]
"""Before anything was built, before any checkpoint, in the first checkpoint."""

# A reward that hangs on every random state, and on its own: what is not in the checkpoint shows in the next reward.
PLUGIN = """
import os
import random
from pathlib import Path

import numpy
import torch

from vime.api import hookimpl


class Noisy:
    def __init__(self):
        self.calls = self.calls_here = 0

    @hookimpl
    async def custom_rm(self, sample):
        self.calls += 1
        self.calls_here += 1
        stop = Path("stop")
        if self.calls_here == 30 and stop.exists():
            signum = int(stop.read_text())
            stop.unlink()
            os.kill(os.getpid(), signum)
        noise = random.random() + numpy.random.random() + float(torch.rand(()))
        return float(sample.response[:1].isdigit()) + 0.01 * noise + 0.001 * self.calls

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]
"""


class Warm:
    """The process that forks jobs."""

    def __init__(self, packages: Path) -> None:
        path = os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("warm_process.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
            text=True,
        )
        assert self._answer() == "ready"

    def fork(self, argv: list[str], cwd: Path, log: Path) -> int:
        """Start a job; its process id. `status` waits for its end."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"argv": argv, "cwd": str(cwd), "log": str(log)}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def status(self) -> int:
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


@dataclass
class Job:
    """One run folder, and the processes that work on it, one after another."""

    warm: Warm
    flags: list[str]
    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    def start(self, *flags: str, save_interval: int = 1) -> int:
        return self.warm.fork([*self.flags, "--run-dir", "run", "--save-interval", str(save_interval), *flags], self.folder, self.log)

    def finish(self, *flags: str) -> None:
        self.start(*flags)
        assert self.warm.status() == 0, self.log.read_text()[-3000:]

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]

    def comparable(self) -> list[tuple[int, list[str], dict[str, float]]]:
        """Every line in order: its step, its namespaces, and its numbers but the timings."""
        return [
            (
                line["step"],
                sorted({key.partition("/")[0] for key in line.keys() - {"step", "time"}}),
                {key: value for key, value in line.items() if not is_timing(key)},
            )
            for line in self.lines()
        ]

    def files(self, pattern: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.run.glob(pattern))}

    @property
    def last_checkpoint(self) -> Path:
        return self.run / "checkpoints" / f"step_{ROLLOUTS}"

    def manifest(self) -> dict[str, Any]:
        """That of the last checkpoint: checksums of the files, and the state of the run."""
        return json.loads((self.last_checkpoint / "manifest.json").read_text())


def is_timing(key: str) -> bool:
    return key == "time" or key.startswith(("perf/", "hooks/")) or key.endswith("_per_second")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installed plugin `noisy`."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "noisy_reward.py").write_text(PLUGIN)
    info = folder / "noisy_reward-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: noisy-reward\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vime.plugins]\nnoisy = noisy_reward:Noisy\n")
    return folder


@pytest.fixture(scope="module")
def warm(packages: Path) -> Iterator[Warm]:
    warm = Warm(packages)
    yield warm
    warm.process.communicate()  # end of input ends it


@pytest.fixture(scope="module")
def flags(model_factory: Callable[[bool], Path], sums: Path) -> list[str]:
    """A small job with everything that a resume has to bring back: buffer, partial answers, two steps a rollout, a reference."""
    return [
        *("train", "--plugin", "noisy", "--model", str(model_factory(True)), "--prompt-data", str(sums), "--input-key", "prompt"),
        *("--label-key", "answer", "--rollout-batch-size", "4", "--over-sampling-batch-size", "5", "--n-samples-per-prompt", "4"),
        *("--rollout-max-response-len", "6", "--num-rollout", str(ROLLOUTS), "--rollout-shuffle", "--partial-rollout", "--use-tis"),
        *("--num-steps-per-rollout", "2", "--lr", "1e-3", "--lr-decay-style", "cosine", "--lr-warmup-iters", "4"),
        *("--use-kl-loss", "--kl-loss-coef", "0.1", "--eval-prompt-data", "few", f"{sums}@[:8]", "--eval-interval", "5"),
        *("--keep-checkpoints", "2"),
    ]


@pytest.fixture(scope="module")
def uninterrupted(warm: Warm, flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Job:
    job = Job(warm, flags, tmp_path_factory.mktemp("uninterrupted"))
    job.finish()
    return job


def wait_for(happened: Callable[[], bool], pid: int) -> None:
    """Until it has happened, or the process has ended."""
    while not happened() and not has_ended(pid):
        time.sleep(0.002)


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def is_being_written(job: Job, since: float) -> bool:
    """Whether a checkpoint is being written by a process that started after `since`; leftovers of earlier ones do not count."""
    for path in job.run.glob("checkpoints/.writing-step_*"):
        try:
            if path.stat().st_mtime > since:
                return True
        except FileNotFoundError:
            continue
    return False


def has_logged(job: Job, since: float) -> bool:
    """Whether a line of metrics.jsonl was written after `since`."""
    try:
        lines = (job.run / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return False
    return any(json.loads(line)["time"] > since for line in lines if line.endswith("}"))


def last_step(job: Job) -> int:
    return max((int(path.name.removeprefix("step_")) for path in job.run.glob("checkpoints/step_*")), default=0)


def kill_at(job: Job, moment: str, turns: int, delay: float) -> bool:
    """Start, wait for `turns` more checkpoints, the moment and a delay, then kill. Whether a checkpoint was being written."""
    since, before = time.time(), last_step(job)
    pid = job.start(*(["--load", "auto"] if job.log.exists() else []))
    if moment != "starting":
        wait_for(lambda: has_logged(job, since) and last_step(job) >= before + turns, pid)
    if moment == "writing":
        wait_for(lambda: is_being_written(job, since), pid)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    assert job.warm.status() == -signal.SIGKILL, f"the run ended before it was killed: {job.log.read_text()[-2000:]}"
    return is_being_written(job, since)


def test_a_run_killed_at_twenty_two_moments_is_the_uninterrupted_one(uninterrupted: Job, warm: Warm, tmp_path: Path) -> None:
    draw = random.Random(SEED)
    times = [line["time"] for line in uninterrupted.lines() if "train/loss" in line]
    turn = (times[-1] - times[0]) / (len(times) - 1)
    job = Job(warm, uninterrupted.flags, tmp_path)
    moments = FIRST_MOMENTS + draw.choices(["starting", "running", "writing"], [1, 4, 5], k=KILLS - len(FIRST_MOMENTS))
    longest = {"starting": 4.0, "first rollout": 0.0, "running": turn, "writing": 0.2 * turn}
    while_writing = 0
    for number, moment in enumerate(moments):
        turns = draw.choice([0, 1, 1, 2]) if number >= len(FIRST_MOMENTS) else 0
        while_writing += kill_at(job, moment, turns, draw.uniform(0, longest[moment]))
        if number < 2:
            assert last_step(job) == 0
    assert while_writing >= 5
    assert last_step(job) < ROLLOUTS - 4, "some kills came after the last step: make the run longer"
    for signum in (signal.SIGINT, signal.SIGTERM):  # by the reward itself, between two rewards of one rollout
        (job.folder / "stop").write_text(str(int(signum)))
        job.start("--load", "auto", save_interval=ROLLOUTS)  # so that only the interrupt saves
        assert job.warm.status() == 128 + signum, job.log.read_text()[-2000:]
    job.finish("--load", "auto")
    assert_equal(job, uninterrupted)


def assert_equal(job: Job, uninterrupted: Job) -> None:
    """Every number, every sample, and all of the last checkpoint: the same bytes, and of torch's pickles the same values."""
    for ours, theirs in zip(job.comparable(), uninterrupted.comparable(), strict=False):
        assert ours == theirs
    assert len(job.lines()) == len(uninterrupted.lines())
    assert job.files("samples/*.parquet") == uninterrupted.files("samples/*.parquet")
    ours, theirs = job.manifest(), uninterrupted.manifest()
    assert ours["contents"] == theirs["contents"]
    pickles = {name for name in ours["files"] if name.endswith(".pt")}
    assert {name: entry for name, entry in ours["files"].items() if name not in pickles} == {
        name: entry for name, entry in theirs["files"].items() if name not in pickles
    }
    loadable = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert loadable <= ours["files"].keys()
    assert pickles
    for name in pickles:  # Python may write one value in two ways
        assert difference(pickled(job.last_checkpoint / name), pickled(uninterrupted.last_checkpoint / name)) is None
    assert {path.name for path in (job.run / "checkpoints").iterdir()} == {f"step_{ROLLOUTS - 1}", f"step_{ROLLOUTS}"}


def pickled(path: Path) -> Any:
    import torch

    return torch.load(path, weights_only=False)


def difference(ours: Any, theirs: Any, where: str = "") -> str | None:
    """The place of the first difference between two values of dicts, lists, tensors and plain data."""
    if hasattr(ours, "dtype"):
        return None if ours.dtype == theirs.dtype and ours.equal(theirs) else where
    if isinstance(ours, dict):
        if list(ours) != list(theirs):
            return where
        ours, theirs, names = list(ours.values()), list(theirs.values()), list(ours)
    elif isinstance(ours, list | tuple):
        if len(ours) != len(theirs):
            return where
        names = range(len(ours))
    else:
        return None if ours == theirs else f"{where}: {ours!r} and {theirs!r}"
    parts = (difference(mine, other, f"{where}/{name}") for name, mine, other in zip(names, ours, theirs, strict=True))
    return next((part for part in parts if part is not None), None)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
