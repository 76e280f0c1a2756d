"""How much the quickstart gains, over seeds: `vime train --plugin math`, one run after another, as a markdown table.

    uv run python benchmarks/quickstart_seeds.py > benchmarks/quickstart_seeds.md
    uv run python benchmarks/quickstart_seeds.py --seeds 3 --keep RUNS -- --num-rollout 20

The accuracy is the mean reward on the held-out problems, before the first step and after the last one: `eval/heldout` (sampled) and
`eval/heldout-greedy` in the run's metrics.jsonl. The wall time is that of the whole command. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from machine import machine

SAMPLED = "eval/heldout"
GREEDY = "eval/heldout-greedy"


@dataclass(frozen=True)
class Outcome:
    """One run: accuracies in [0, 1], `(before, after)`, and seconds from start to exit."""

    seed: int
    sampled: tuple[float, float]
    greedy: tuple[float, float]
    seconds: float

    @property
    def gain(self) -> float:
        """Points of sampled accuracy gained."""
        return 100 * (self.sampled[1] - self.sampled[0])


def first_and_last(metrics: Path, key: str) -> tuple[float, float]:
    """The first and the last value of `key`. Raises SystemExit where the run did not evaluate before and after."""
    records = (json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines())
    by_step = {record["step"]: float(record[key]) for record in records if key in record}
    if len(by_step) < 2:
        raise SystemExit(f"{metrics}: {key} was logged at {len(by_step)} steps, expected at least 2 (before and after)")
    return by_step[min(by_step)], by_step[max(by_step)]


def train(seed: int, run_dir: Path, extra: list[str]) -> Outcome:
    """Run the quickstart with one seed, its output in `run_dir.log`. Raises SystemExit where the run fails."""
    vime = Path(sysconfig.get_path("scripts")) / "vime"
    command = [str(vime), "train", "--plugin", "math", "--rollout-seed", str(seed), "--run-dir", str(run_dir), *extra]
    log = run_dir.with_suffix(".log")
    start = time.perf_counter()
    with log.open("w", encoding="utf-8") as output:
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    seconds = time.perf_counter() - start
    if code != 0:
        raise SystemExit(f"seed {seed}: {' '.join(command)} ended with {code}\n{log.read_text(encoding='utf-8')[-4000:]}")
    metrics = run_dir / "metrics.jsonl"
    return Outcome(seed, first_and_last(metrics, SAMPLED), first_and_last(metrics, GREEDY), seconds)


def table(outcomes: list[Outcome], threshold: float) -> str:
    lines = [
        "| seed | sampled before | sampled after | gain | greedy before | greedy after | wall time |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for run in outcomes:
        cells = [f"{100 * value:.1f}%" for value in run.sampled] + [f"{run.gain:+.1f}"] + [f"{100 * value:.1f}%" for value in run.greedy]
        lines.append(f"| {run.seed} | {' | '.join(cells)} | {run.seconds:.0f} s |")
    gained = sum(run.gain >= threshold for run in outcomes)
    slowest = max(run.seconds for run in outcomes)
    lines += [
        "",
        f"{gained} of {len(outcomes)} seeds gained at least {threshold:g} points (sampled); the slowest run took {slowest:.0f} s.",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="number of runs; the seeds are 1, 2, ... (default 10)")
    parser.add_argument("--threshold", type=float, default=20.0, help="points of accuracy that count as a clear gain (default 20)")
    parser.add_argument("--keep", type=Path, help="folder that keeps the runs (default: a temporary one)")
    parser.add_argument("extra", nargs="*", help="further flags of `vime train`, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root: Path = options.keep or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        outcomes: list[Outcome] = []
        for seed in range(1, options.seeds + 1):
            outcomes.append(train(seed, root / f"seed-{seed}", options.extra))
            print(f"seed {seed}: {outcomes[-1].gain:+.1f} points in {outcomes[-1].seconds:.0f} s", file=sys.stderr, flush=True)
    flags = " ".join(["vime train --plugin math --rollout-seed N", *options.extra])
    print(f"`{flags}`, {datetime.now(UTC):%Y-%m-%d}, {machine()}\n")
    print(table(outcomes, options.threshold))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
