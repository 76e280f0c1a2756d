"""A whole run whose engines and reward workers are killed: it finishes, says what died, and loses and doubles no sample."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.ray, pytest.mark.e2e, pytest.mark.timeout(900)]

ROLLOUTS, GROUPS, SAMPLES = 8, 4, 8

# vime as it is, but that signals are sent right after a message to an engine went out: while it generates, or takes weights.
# New requests wait for both engines, so that there is one to be killed; those that were in flight do not.
RUN = """
import asyncio
import os
import signal
import sys

from vime.cli.app import main
from vime.engine.pool import EnginePool
from vime.runtime.ray.engines import EngineActorHandle

AFTER_SYNC = {1: [(0, "submit", signal.SIGKILL)], 5: [(0, "submit", signal.SIGKILL), (1, "submit", signal.SIGKILL)],
              6: [(1, "submit", signal.SIGSTOP)]}
IN_SYNC = {3: [(1, "update_weights", signal.SIGKILL)]}
due, version, handles = [], 0, {}
send = EngineActorHandle.call


def call(self, method, *args):
    global version
    handles[self.index] = self
    if method == "update_weights" and args[1] > version:
        version = args[1]
        due.extend(IN_SYNC.get(version, []) + AFTER_SYNC.get(version, []))
    answer = send(self, method, *args)
    hits = [fault for fault in due if fault[1] == method and (method == "submit" or fault[0] == self.index)]
    for fault in hits:
        due.remove(fault)
        os.kill(handles[fault[0]].description.pid, fault[2])
        print(f"test: signal {int(fault[2])} to engine {fault[0]} after {method}", file=sys.stderr, flush=True)
    return answer


async def when_both_are_there(self, requests, session_id):
    while len(self._members) < 2:
        await asyncio.sleep(0.05)
    return await run(self, requests, session_id)


run, EnginePool._run = EnginePool._run, when_both_are_there
EngineActorHandle.call = call
sys.exit(main(sys.argv[1:]))
"""

REWARD = """
import os
import signal
from pathlib import Path

MARK = Path(__file__).with_name("killed")


def score(args, sample, **kwargs):
    if sample.index == 40 and not MARK.exists():
        MARK.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return float(str(sample.label) in sample.response)
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the run said on stderr, and its folder."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "run_faulty.py").write_text(RUN)
    (folder / "mortal.py").write_text(REWARD)
    size = ["--num-rollout", str(ROLLOUTS), "--rollout-batch-size", str(GROUPS), "--n-samples-per-prompt", str(SAMPLES)]
    length = ["--rollout-max-response-len", "64", "--skip-eval-before-train", "--eval-interval", "100"]
    ray = ["--runtime", "ray", "--engines", "2", "--max-engine-restarts", "6", "--engine-timeout", "40", "--check-weights-every", "1"]
    reward = ["--custom-rm-path", "./mortal.py:score", "--on-reward-error", "drop"]
    command = [sys.executable, "run_faulty.py", "train", *size, *length, *ray, *reward, "--run-dir", "run", "--sample-every", "1"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr, folder / "run"


def lines(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if "rollout/samples_trained" in line]


def test_the_run_says_what_died_and_what_was_done(faulty: tuple[str, Path]) -> None:
    said = re.sub(r"\s+", " ", faulty[0])
    engine = r"engine {} \(process \d+ on node [^)]+\)"
    assert len(re.findall(r"test: signal", said)) == 5
    died = (
        engine.format(r"\d")
        + r" has died \(killed, out of memory, or crashed\)(; its \d+ unfinished requests (go on elsewhere|wait))?; a new one is starting"
    )
    assert len(re.findall(died, said)) == 4, said
    assert re.search(engine.format(1) + r" (made no step|gave no answer) in 40 s and was ended", said), said
    assert re.search(engine.format(0) + r" is there, with version \d+ of the weights", said), said


def test_restarts_are_counted(faulty: tuple[str, Path]) -> None:
    perf = [json.loads(line) for line in (faulty[1] / "metrics.jsonl").read_text().splitlines() if "perf/engine_restarts" in line]
    assert len(perf) == ROLLOUTS and sum(line["perf/engine_restarts"] for line in perf) == 5


def test_no_sample_is_lost_or_doubled(faulty: tuple[str, Path]) -> None:
    import pyarrow.parquet

    rollouts = lines(faulty[1])
    assert [line["rollout/samples_trained"] for line in rollouts] == [GROUPS * SAMPLES] * ROLLOUTS
    gone = ("samples_trained", "removed_samples", "samples_filtered", "samples_to_buffer", "samples_aborted", "samples_failed")
    for line in rollouts:
        came = line["rollout/samples_generated"] + line["rollout/samples_from_buffer"]
        assert came == sum(line[f"rollout/{where}"] for where in gone)
        assert line["rollout/samples_failed"] == 0
    files = sorted((faulty[1] / "samples").glob("train_*.parquet"))
    assert len(files) == ROLLOUTS
    counts: Counter[int] = Counter()
    for file in files:
        counts.update(row["index"] for row in pyarrow.parquet.read_table(file).to_pylist() if row["kept"])
    assert len(counts) == ROLLOUTS * GROUPS * SAMPLES and set(counts.values()) == {1}


def test_the_reward_worker_that_was_killed_cost_one_sample_a_second_try(faulty: tuple[str, Path]) -> None:
    errors = {key: value for line in lines(faulty[1]) for key, value in line.items() if key.startswith("rollout/reward_errors/")}
    assert sum(errors.values()) == 1, errors
    assert sum(line["rollout/retries"] for line in lines(faulty[1])) == 1


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
