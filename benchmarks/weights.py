"""What a sync of weights from the trainer to an engine in the same process costs, over a plain copy of the same bytes.

    uv run python benchmarks/weights.py                          prints the tables
    uv run python benchmarks/weights.py --model FOLDER           of this model too
    uv run python benchmarks/weights.py --write                  and writes them to benchmarks/weights.md

Trainer and engine are the real ones, each model in a process of its own. A round is a copy of the weights into tensors
that are there already (Tensor.copy_), a sync as between two steps, and the check of log-probs that every
`check_weights_every`-th sync has, in turns with the other order. The parts of a sync are timed in rounds of their own,
each without what it calls of the other parts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from machine import machine
from random_model import write_random_model

PARTS = {
    "dry run": "vLLM's own count, for each tensor, of what its loader would copy",
    "allocate": "the model's layers taken apart, given new memory, and put together again",
    "copy": "vLLM's loaders: finding the place of each tensor, and copying it",
    "pack": "the weights of linear layers and embeddings packed for the CPU's matrix products",
    "head": "the packed weight of a tied output head",
    "prefix cache": "forgetting the cached prefixes",
    "vime": "all else: the tensors' names, the way to the engine's thread and back",
}


@dataclass
class Clock:
    """Seconds by part, each without those of the parts inside it."""

    seconds: dict[str, float] = field(default_factory=dict)
    _inside: list[float] = field(default_factory=lambda: [0.0])

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._inside.append(0.0)
        started = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + elapsed - self._inside.pop()
            self._inside[-1] += elapsed

    def wrap(self, owner: Any, function: str, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, function)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return original(*args, **kwargs)

        timed.__name__ = function
        setattr(owner, function, timed)


def watch(clock: Clock, engine: Any) -> None:
    """Time the parts of a reload inside vLLM."""
    from vllm.model_executor.layers import utils
    from vllm.model_executor.model_loader.reload import inplace, layerwise

    (model,) = engine.llm_engine.apply_model(lambda model: model)
    for owner, function, name in (
        (model, "load_weights", "copy"),
        (layerwise, "get_numel_loaded", "dry run"),
        (layerwise, "materialize_layer", "allocate"),
        (inplace, "initialize_layerwise_reload", "allocate"),
        (inplace, "finalize_layerwise_reload", "allocate"),
        (utils, "dispatch_cpu_unquantized_gemm", "pack"),
        (engine.llm_engine, "apply_model", "head"),
        (engine.llm_engine, "reset_prefix_cache", "prefix cache"),
    ):
        clock.wrap(owner, function, name)


def measure(model: str, rounds: int) -> dict[str, Any]:
    """Seconds of each round, and of each part, in this process."""
    import torch

    from vime.config.run_config import RunConfig
    from vime.engine.local import LocalEngine
    from vime.runtime.build import engine_dtype
    from vime.train.deepspeed_trainer import DeepSpeedTrainer
    from vime.train.weights import WeightSync

    config = RunConfig(hf_checkpoint=model, check_weights_every=10**9)
    trainer = DeepSpeedTrainer(config, model)
    engine = LocalEngine(config, model, dtype=engine_dtype(config, model, on_cpu=True), deterministic=True, concurrency=8)
    sync = WeightSync(config, trainer, engine, lambda version: engine.update_weights(trainer.named_weights(), version))
    generator = random.Random(0)
    sync.set_probe([[generator.randrange(trainer.vocab_size) for _ in range(100)] for _ in range(8)], [84] * 8)
    copies = [torch.empty_like(tensor) for _, tensor in trainer.named_weights()]
    found: dict[str, list[float]] = {"copy": [], "sync": [], "check": []}

    def copy() -> None:
        for place, (_, tensor) in zip(copies, trainer.named_weights(), strict=True):
            place.copy_(tensor)

    def push() -> None:
        trainer.weight_version += 1
        sync.sync()

    for number in range(rounds + 2):
        actions: list[tuple[str, Callable[[], Any]]] = [("copy", copy), ("sync", push), ("check", sync.verify)]
        for name, action in actions if number % 2 else [actions[1], actions[2], actions[0]]:
            started = time.perf_counter()
            action()
            if number >= 2:
                found[name].append(time.perf_counter() - started)
    parts: dict[str, list[float]] = {name: [] for name in PARTS}
    clock = Clock()
    watch(clock, engine)
    for _ in range(rounds):
        clock.seconds.clear()
        with clock.part("vime"):
            push()
        for name, values in parts.items():
            values.append(clock.seconds.get(name, 0.0))
    result = {
        "tensors": len(copies),
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in copies),
        "dtype": str(trainer.dtype).removeprefix("torch."),
        "seconds": found,
        "parts": parts,
    }
    engine.close()
    return result


def in_its_own_process(model: str, rounds: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", model, "--rounds", str(rounds)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return json.loads(answer.stdout)


def table(found: dict[str, dict[str, Any]]) -> list[str]:
    head = ["model", "tensors", "MiB", "copy, ms", "sync, ms", "over a copy", "with the check, ms", "over a copy"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for name, one in found.items():
        seconds = one["seconds"]
        checked = [push + check for push, check in zip(seconds["sync"], seconds["check"], strict=True)]
        copy = statistics.median(seconds["copy"])
        cells = [f"{name}, {one['dtype']}", f"{one['tensors']}", f"{one['bytes'] / 2**20:,.1f}", f"{1e3 * copy:,.1f}"]
        for values in (seconds["sync"], checked):
            ratio = statistics.median(mine / plain for mine, plain in zip(values, seconds["copy"], strict=True))
            cells += [f"{1e3 * statistics.median(values):,.1f}", f"{ratio:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def table_of_parts(found: dict[str, dict[str, Any]]) -> list[str]:
    lines = ["| ms of a sync | " + " | ".join(found) + " | |", "|---|" + "---:|" * len(found) + "---|"]
    for part, meaning in PARTS.items():
        cells = [f"{1e3 * statistics.median(one['parts'][part]):,.1f}" for one in found.values()]
        lines.append(f"| {part} | " + " | ".join(cells) + f" | {meaning} |")
    return lines


def page(models: dict[str, str], rounds: int) -> str:
    found = {name: in_its_own_process(model, rounds) for name, model in models.items()}
    return "\n".join(
        [
            "# What a sync of weights costs",
            "",
            "Written by `python benchmarks/weights.py --write`.",
            "",
            f"Medians of {rounds} rounds, copy and sync in turns, {datetime.now(UTC):%Y-%m-%d}; {machine()}. Trainer and engine "
            "are in one process.",
            "",
            *table(found),
            "",
            *table_of_parts(found),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables to benchmarks/weights.md")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--model", metavar="FOLDER", help="a model to measure beside the others")
    parser.add_argument("--one", metavar="FOLDER", help="measure one model in this process")
    arguments = parser.parse_args()
    if arguments.one:
        out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what the libraries print is not an answer
        print(json.dumps(measure(arguments.one, arguments.rounds)), file=out, flush=True)
        return
    from vime.quickstart import MODEL

    with tempfile.TemporaryDirectory() as folder:
        models = {
            "quickstart, tied head": str(MODEL),
            "60M, tied head": write_random_model(Path(folder) / "tied"),
            "60M, head of its own": write_random_model(Path(folder) / "untied", is_tied=False),
        }
        if arguments.model:
            models["/".join(Path(arguments.model).absolute().parts[-2:])] = arguments.model
        text = page(models, arguments.rounds)
    print(text, end="")
    if arguments.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
