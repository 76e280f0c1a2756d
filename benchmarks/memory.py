"""The peak memory of a training step over that of a bare PyTorch loop on the same micro-batches.

    uv run python benchmarks/memory.py                                         prints the table
    uv run python benchmarks/memory.py --smollm2 examples/smollm2/model        SmolLM2-135M in bfloat16 too
    uv run python benchmarks/memory.py --write                                 and writes it to benchmarks/memory.md

Each is measured in a process of its own, some processes of each in turns; what they do is in training_steps.py. "Imported"
is what a process holds before it has a model, which the libraries take; "held" what it has between two steps beyond that:
weights, gradients and the optimizer's state; "step" what a step takes at its highest point beyond that. The highest point
is Linux's own (VmHWM), set back after two steps that do not count, and is that of three more.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from machine import machine
from training_steps import CASES, Bare, Case, Trainer, case_models

KINDS = {
    "trainer": ("vime.train.deepspeed_trainer", "deepspeed", "transformers.models.qwen3.modeling_qwen3"),
    "bare": ("vime.train.model_loading", "vime.train.microbatch", "transformers.models.qwen3.modeling_qwen3"),
}
"""What each imports before it has a model."""
SHOWN = ("wide", "long", "random", "smollm2")
"""The cases of the table."""


def memory(name: str) -> int:
    """Bytes by a line of /proc/self/status: VmRSS is what this process holds, VmHWM the most that it has held."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise LookupError(f"/proc/self/status has no {name}")


def settle() -> None:
    """Give back what nobody needs."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def measure(kind: str, case: Case, model: str) -> dict[str, int]:
    """Bytes in this process: after the imports, between two steps, and at the highest point of a step."""
    for module in KINDS[kind]:
        importlib.import_module(module)
    settle()
    imported = memory("VmRSS")
    worker = Trainer(case, model) if kind == "trainer" else Bare(case, model)
    worker.step()
    worker.step()
    settle()
    held = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM back
    for _ in range(3):
        worker.step()
    return {"imported": imported, "held": held - imported, "step": memory("VmHWM") - held, "peak": memory("VmHWM")}


def in_its_own_process(kind: str, case: str, model: str) -> dict[str, int]:
    command = [sys.executable, __file__, "--one", kind, "--case", case, "--model", model]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout)


def compare(name: str, model: str, rounds: int) -> list[str]:
    """Rows of the table: the trainer, the bare loop, and one over the other."""
    found: dict[str, list[dict[str, int]]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind, measured in found.items():
            measured.append(in_its_own_process(kind, name, model))
    columns = ("imported", "held", "step", "peak")
    of = {kind: [statistics.median(one[column] for one in found[kind]) for column in columns] for kind in KINDS}
    rows = [[CASES[name].name, kind, *(f"{value / 2**20:,.0f}" for value in values)] for kind, values in of.items()]
    rows.append(["", "trainer / bare", *(f"{ours / bare:.2f}" for ours, bare in zip(of["trainer"], of["bare"], strict=True))])
    return ["| " + " | ".join(row) + " |" for row in rows]


def page(models: dict[str, str], rounds: int) -> str:
    columns = ("step", "", "imported", "held", "step, beyond that", "peak, all of it")
    return "\n".join(
        [
            "# The memory of a training step over that of a bare PyTorch loop",
            "",
            "Written by `python benchmarks/memory.py --write`.",
            "",
            f"MiB; medians of {rounds} processes of each, {datetime.now(UTC):%Y-%m-%d}; {machine()}.",
            "",
            "| " + " | ".join(columns) + " |",
            "|---|---|" + "---:|" * (len(columns) - 2),
            *(row for name in SHOWN if name in models for row in compare(name, models[name], rounds)),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/memory.md")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--smollm2", metavar="FOLDER", help="the folder of SmolLM2-135M, as examples/smollm2 writes it")
    parser.add_argument("--one", choices=KINDS, help="measure one process, this one")
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--model")
    arguments = parser.parse_args()
    if arguments.one:
        out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what the libraries print is not an answer
        print(json.dumps(measure(arguments.one, CASES[arguments.case], arguments.model)), file=out, flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        text = page(case_models(Path(folder), arguments.smollm2), arguments.rounds)
    print(text, end="")
    if arguments.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
