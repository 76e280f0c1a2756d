"""Whole runs on Ray as processes, with a look at every process that belongs to them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import vime

PATIENCE = 300.0
"""Seconds that anything may take on a busy machine."""

# Functions of a run, told what to do by files in its folder. A reward runs in a worker process, the other one in each trainer rank.
FUNCTIONS = """
import os
import random
import signal
import time
from pathlib import Path

import numpy
import torch


def hold(name):
    while Path(name).exists():
        Path(name + "-held").touch()
        time.sleep(0.02)


def reward(args, sample, **kwargs):
    hold("hold-rollout")
    return float(sample.response[:1].isdigit()) + 0.1 * (len(sample.response) % 3)


def in_training(args, rollout_id, rollout_data):
    hold("hold-training")
    if os.environ["RANK"] == "1" and Path("raise").exists():
        raise ValueError("the advantages of this batch went wrong")
    if os.environ["RANK"] == "1" and Path("crash").exists():
        os.kill(os.getpid(), signal.SIGSEGV)
    if Path("calm").exists():
        return
    noise = random.random() + numpy.random.random() + float(torch.rand(()))  # so that a resume needs the random states of each rank
    rollout_data["advantages"] = [values + 0.01 * noise for values in rollout_data["advantages"]]
"""


class RayRun:
    """A `vime train` process and its folder. Every process that it starts, and those of these, carries a mark in its environment."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder, self.log = folder, folder / "log.txt"
        self.since = self.log.stat().st_size if self.log.exists() else 0
        self.mark = f"VIME_TEST_RUN={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vime", "train", *flags],
                cwd=folder,
                env=os.environ | {name: value},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """What this start has printed."""
        return self.log.read_bytes()[self.since :].decode(errors="replace")

    def processes(self) -> dict[int, str]:
        """Command lines of the living processes of this run, by id."""
        found: dict[int, str] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                        line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                        if line:  # a zombie has none
                            found[int(entry.name)] = line
                except OSError:
                    continue
        return found

    def pid_of(self, what: str) -> int:
        """The process whose command line begins with this, or whose program is called so; of several that with the highest id."""
        return max(pid for pid, line in self.processes().items() if line.startswith(what) or line.split()[0].endswith(f"/{what}"))

    def until(self, happened: Callable[[], Any]) -> None:
        """Wait; fails with what the run said if it ends before."""
        end = time.monotonic() + PATIENCE
        while not happened():
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.said[-3000:]}"
            assert time.monotonic() < end, f"waited in vain:\n{self.said[-3000:]}"
            time.sleep(0.02)

    def hold(self, where: str, after: int) -> None:
        """Let it come to a stop in the next rollout or training, once `after` more steps are saved."""
        first = self.last_checkpoint
        self.until(lambda: self.last_checkpoint >= first + after)
        (self.folder / f"hold-{where}-held").unlink(missing_ok=True)
        (self.folder / f"hold-{where}").touch()
        self.until((self.folder / f"hold-{where}-held").exists)

    def let_go(self) -> None:
        for path in self.folder.glob("hold-*"):
            path.unlink()

    @property
    def last_checkpoint(self) -> int:
        steps = (self.folder / "run" / "checkpoints").glob("step_*")
        return max((int(path.name.removeprefix("step_")) for path in steps), default=0)

    def ends(self) -> int:
        """The exit code."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.said[-3000:]}") from None

    def left(self, within: float = 90.0) -> dict[int, str]:
        """The processes of it that are left after this many seconds; returns as soon as there are none."""
        end = time.monotonic() + within
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.1)
        return left

    def end(self) -> None:
        for pid in [self.process.pid, *self.processes()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def save_rollouts(folder: Path, rollouts: int) -> None:
    """Rollouts of random tokens, two groups of four, with the log-probs of an engine that was never asked."""
    from vime.rollout.debug_data import save_rollout
    from vime.sample import Sample, Status

    draw = random.Random(0)
    for rollout_id in range(rollouts):
        groups: list[list[Sample]] = []
        for group in range(2):
            groups.append([])
            for member in range(4):
                index = 8 * rollout_id + 4 * group + member
                sample = Sample(group_index=2 * rollout_id + group, index=index, tokens=[draw.randrange(2, 30) for _ in range(5)])
                tokens = [draw.randrange(2, 30) for _ in range(draw.randrange(1, 6))]
                sample.append_response_tokens(tokens=tokens, log_probs=[-3.0] * len(tokens), text="3")
                sample.reward, sample.status = float(draw.randrange(2)), Status.COMPLETED
                groups[-1].append(sample)
        save_rollout(str(folder / "saved_{rollout_id}.parquet"), rollout_id, groups)


@pytest.fixture(scope="session")
def saved() -> Callable[[Path, int], list[str]]:
    """Save that many rollouts in a folder, and return the flags of a run there that trains on them, without an engine."""

    def saved(folder: Path, rollouts: int) -> list[str]:
        save_rollouts(folder, rollouts)
        model = Path(vime.__file__).parent / "quickstart" / "model"
        return ["--model", str(model), "--debug-train-only", "--load-debug-rollout-data", "saved_{rollout_id}.parquet"]

    return saved


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RayRun]]:
    """Start a run in a folder; at the end of the module nothing of it is left."""
    started: list[RayRun] = []

    def start(folder: Path, *flags: str) -> RayRun:
        (folder / "functions.py").write_text(FUNCTIONS)
        started.append(RayRun(folder, *flags))
        return started[-1]

    yield start
    for run in started:
        run.end()


def read_metrics(run_folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def metrics() -> Callable[[Path], list[dict[str, float]]]:
    """The lines of a run folder's metrics.jsonl."""
    return read_metrics
