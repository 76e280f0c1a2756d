"""The time of a training step over that of a bare PyTorch loop on the same micro-batches.

    uv run python benchmarks/trainer.py                                         prints the table
    uv run python benchmarks/trainer.py --smollm2 examples/smollm2/model        SmolLM2-135M in bfloat16 too
    uv run python benchmarks/trainer.py --write                                 and writes it to benchmarks/trainer.md

Two processes hold one model each and take turns: while one takes a step the other sleeps; what they do is in
training_steps.py. Medians over the rounds; the ratio is that of each pair of neighbours, by the clock and by processor time,
which other work on the machine disturbs less. Memory: benchmarks/memory.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from machine import machine
from training_steps import CASES, Bare, Case, Trainer, case_models


def serve(kind: str, case: Case, model: str) -> None:
    """A worker process: a line in, a line with seconds and seconds of the processor out."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print is not an answer
    worker = Trainer(case, model) if kind == "trainer" else Bare(case, model)
    worker.step()
    worker.step()
    print("ready", file=out, flush=True)
    for _ in sys.stdin:
        start, used = time.perf_counter(), time.process_time()
        worker.step()
        print(json.dumps([time.perf_counter() - start, time.process_time() - used]), file=out, flush=True)


class Worker:
    """The parent's end of a worker process."""

    def __init__(self, kind: str, case: str, model: str) -> None:
        command = [sys.executable, __file__, "--serve", kind, "--case", case, "--model", model]
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        assert self.stdout.readline().strip() == "ready", f"the {kind} process did not start"

    def step(self) -> list[float]:
        print("go", file=self.stdin, flush=True)
        return json.loads(self.stdout.readline())

    def close(self) -> None:
        self.stdin.close()
        self.process.wait()


def compare(name: str, model: str, rounds: int) -> str:
    """A row of the table."""
    workers = {kind: Worker(kind, name, model) for kind in ("trainer", "bare")}
    steps: dict[str, list[list[float]]] = {kind: [] for kind in workers}
    for number in range(rounds):
        for kind in list(workers) if number % 2 else reversed(list(workers)):
            steps[kind].append(workers[kind].step())
    for worker in workers.values():
        worker.close()
    cells = [CASES[name].name]
    for column in (0, 1):
        ours, bare = ([step[column] for step in steps[kind]] for kind in ("trainer", "bare"))
        speed = statistics.median(theirs / mine for theirs, mine in zip(bare, ours, strict=True))
        cells += [f"{statistics.median(ours):.3f}", f"{statistics.median(bare):.3f}", f"{speed:.2f}"]
    return "| " + " | ".join(cells) + " |"


def page(models: dict[str, str], rounds: int) -> str:
    columns = ("step", "trainer, s", "bare, s", "speed", "trainer, CPU s", "bare, CPU s", "speed")
    return "\n".join(
        [
            "# A training step over a bare PyTorch loop",
            "",
            "Written by `python benchmarks/trainer.py --write`.",
            "",
            f"Medians of {rounds} rounds in turns, {datetime.now(UTC):%Y-%m-%d}; {machine()}. Speed is the bare "
            "loop's time over the trainer's.",
            "",
            "| " + " | ".join(columns) + " |",
            "|---|" + "---:|" * (len(columns) - 1),
            *(compare(name, model, rounds) for name, model in models.items()),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/trainer.md")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--smollm2", metavar="FOLDER", help="the folder of SmolLM2-135M, as examples/smollm2 writes it")
    parser.add_argument("--serve", choices=("trainer", "bare"))
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--model")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, CASES[arguments.case], arguments.model)
        return
    with tempfile.TemporaryDirectory() as folder:
        text = page(case_models(Path(folder), arguments.smollm2), arguments.rounds)
    print(text, end="")
    if arguments.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
