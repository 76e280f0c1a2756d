"""What it costs to reach an engine through Ray instead of in this process, and what a sync of weights costs.

    uv run python benchmarks/engine_pool.py            prints the table
    uv run python benchmarks/engine_pool.py --write    and writes it to benchmarks/engine_pool.md

The same requests on the quickstart's model, in rounds that take turns: an engine in this process, one and two engines in
actors. "driver CPU" is the processor time of this process per request (with the engine in it, where it is here). A sync
is compared with a copy of the same bytes in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

from machine import machine

REQUESTS = 256
SYNCS = 20


def rate(engine: Any, requests: list[Any]) -> tuple[float, float]:
    """Tokens a second, and milliseconds of this process's processor time per request."""

    async def run() -> list[Any]:
        return await asyncio.gather(*(engine.generate(ids, params) for ids, params in requests))  # as a rollout asks

    started, processor = time.perf_counter(), time.process_time()
    answers = asyncio.run(run())
    elapsed, used = time.perf_counter() - started, time.process_time() - processor
    return sum(len(answer.token_ids) for answer in answers) / elapsed, 1000.0 * used / len(requests)


def measured_requests(local: Any, pool: Any, rounds: int) -> dict[str, list[tuple[float, float]]]:
    encode = local.tokenizer.encode
    params: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 64, "min_new_tokens": 16}
    requests = [(encode(f"{n % 10}+{n // 10 % 10}="), {**params, "seed": n}) for n in range(REQUESTS)]
    found: dict[str, list[tuple[float, float]]] = {}
    for number in range(rounds + 1):
        both = dict(pool._members)
        for name, engine in (("in this process", local), ("1 engine in an actor", pool), ("2 engines in actors", pool)):
            if name.startswith("1"):
                del pool._members[1]
            measured = rate(engine, requests)
            pool._members.update(both)
            if number:  # the first is for warming up
                found.setdefault(name, []).append(measured)
    return found


def measured_syncs(local: Any, pool: Any, weights: list[tuple[str, Any]]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {"copy": [], "in this process": [], "2 engines in actors": []}
    for version in range(1, SYNCS + 1):
        started = time.perf_counter()
        copies = [tensor.clone() for _, tensor in weights]
        seconds["copy"].append(time.perf_counter() - started)
        del copies
        for name, engine in (("in this process", local), ("2 engines in actors", pool)):
            started = time.perf_counter()
            engine.update_weights(iter(weights), version)
            seconds[name].append(time.perf_counter() - started)
    return seconds


def table(requests: dict[str, list[tuple[float, float]]], syncs: dict[str, list[float]], size: int) -> str:
    lines = ["| engine | tokens/s | driver CPU, ms per request |", "|---|---|---|"]
    for name, values in requests.items():
        tokens, used = (statistics.median(column) for column in zip(*values, strict=True))
        lines.append(f"| {name} | {tokens:,.0f} | {used:.2f} |")
    lines += ["", "| sync | ms |", "|---|---|"]
    labels = {"copy": f"copy of the {size / 2**20:.1f} MiB in memory"}
    return "\n".join(
        [*lines, *(f"| {labels.get(name, name)} | {1000.0 * statistics.median(values):.1f} |" for name, values in syncs.items())]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()

    import torch
    from transformers import AutoModelForCausalLM

    from vime.config.run_config import RunConfig
    from vime.engine.local import LocalEngine
    from vime.plugins.manager import PluginManager
    from vime.quickstart import MODEL
    from vime.runtime.placement import Needs
    from vime.runtime.ray.placement import RayPlacement

    shape: dict[str, Any] = {"num_rollout": 1, "rollout_batch_size": 32, "n_samples_per_prompt": 8, "rollout_max_response_len": 64}
    config = RunConfig(hf_checkpoint=str(MODEL), engine_dtype="float32", train_dtype="float32", runtime="ray", engines=2, **shape)
    placement = RayPlacement(None)
    told: dict[str, Any] = {"warn": print, "say": print, "deterministic": False, "concurrency": REQUESTS, "trainer": False, "engine": True}
    placement.open(Needs(config=config, model_path=str(MODEL), plugins=PluginManager(), **told))
    pool = placement.start_engine()
    local = LocalEngine(config, str(MODEL), dtype="float32", deterministic=False, concurrency=REQUESTS)
    weights = [(name, tensor.detach()) for name, tensor in AutoModelForCausalLM.from_pretrained(MODEL).named_parameters()]
    size = sum(tensor.numel() * tensor.element_size() for _, tensor in weights)
    text = table(measured_requests(local, pool, arguments.rounds), measured_syncs(local, pool, weights), size)
    print(text)
    if arguments.write:
        what = f"{REQUESTS} requests, medians of {arguments.rounds} rounds and {SYNCS} syncs"
        head = f"# Engines through Ray\n\n`python benchmarks/engine_pool.py`, {machine()}, torch {torch.__version__}, {what}.\n\n"
        Path(__file__).with_suffix(".md").write_text(f"{head}{text}\n")
    pool.close()
    placement.close()
    local.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
