"""The step time of the three pipelines with a real engine and a real trainer on Ray.

    python benchmarks/pipeline_real.py            prints the table
    python benchmarks/pipeline_real.py --write    and writes it to benchmarks/pipeline_real.md

Whole runs of `vime train --plugin math --runtime ray`, one trainer rank and one engine, the pipelines taking turns. Under
sync each has all cores for itself while it works, under the others they share them: what overlaps is what one of them alone
does not use. Medians over the steps of all rounds, without the first two of a run and the last.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import machine

PIPELINES = ("sync", "async", "continuous")
PARTS = ("rollout_time", "train_time", "sync_time", "step_time")


def steps(pipeline: str, rollouts: int) -> list[dict[str, float]]:
    """The metrics of the steps of one run."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "vime", "train", "--plugin", "math", "--runtime", "ray", "--pipeline", pipeline]
        command += ["--num-rollout", str(rollouts), "--rollout-batch-size", "32", "--skip-eval-before-train", "--eval-interval", "1000"]
        command += ["--sample-every", "0", "--no-tensorboard", "--run-dir", str(run)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "perf/step_time" in line][2:-1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=20)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {pipeline: [] for pipeline in PIPELINES}
    for _ in range(arguments.rounds):
        for pipeline in PIPELINES:
            found[pipeline] += steps(pipeline, arguments.rollouts)
    rows: list[str] = []
    for pipeline, lines in found.items():
        middle = [statistics.median(line[f"perf/{part}"] for line in lines) for part in PARTS]
        rows.append(f"| {pipeline} | {' | '.join(f'{seconds:.3f}' for seconds in middle)} |")
    text = f"""# Step time of the pipelines, with a real engine and trainer

Written by `python benchmarks/pipeline_real.py --write`, {datetime.datetime.now(tz=datetime.UTC).date()};
{machine()}. Seconds, medians of {arguments.rounds} runs of {arguments.rollouts} steps
of 32 x 8 samples; the quickstart model, one trainer rank and one engine, which share the cores. In async and continuous `rollout` is
what a step waits for one.

| pipeline | rollout | train | sync | step |
|---|---|---|---|---|
""" + "\n".join(rows)
    print(text)
    if arguments.write:
        Path(__file__).with_suffix(".md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
