"""What a step of a large run sends, in bytes: calculated from the formulas below, and from what the messages of vime weigh here.

    python benchmarks/wire_sizes.py            prints the table
    python benchmarks/wire_sizes.py --write    and writes it to benchmarks/wire_sizes.md

Nothing is sent. The weights of messages (a request, an answer, a training batch) are those of pickled samples of this
version; the rest follows from the number of parameters P, the ranks N and the number formats.
"""

from __future__ import annotations

import argparse
import datetime
import pickle
import random
from dataclasses import dataclass
from pathlib import Path

from vime.config.run_config import RunConfig
from vime.engine.host import Poll, Request
from vime.errors import EngineError
from vime.outputs import Generation
from vime.sample import Sample, Status
from vime.train.batch import build_train_batch

PROMPT, RESPONSE = 256, 1_024
SAMPLES = 4_096
"""Of a step: 512 prompts x 8."""
MICRO_STEPS = 8
"""Of a rank, in a step."""
LINK_GB = 50.0
"""Gigabytes a second between nodes: a 400 Gbit/s adapter."""


@dataclass(frozen=True)
class Case:
    """A model of `parameters` on `ranks` trainer ranks under a ZeRO stage."""

    name: str
    parameters: float
    ranks: int
    stage: int


CASES = (Case("7B", 7e9, 4, 2), Case("70B", 70e9, 64, 3))


def _tokens(count: int) -> list[int]:
    generator = random.Random(count)
    return [generator.randrange(150_000) for _ in range(count)]


def _log_probs(count: int) -> list[float]:
    generator = random.Random(count)
    return [-generator.random() for _ in range(count)]


def request_bytes() -> float:
    params = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": RESPONSE, "seed": 123_456_789}
    return len(pickle.dumps(Request(1, _tokens(PROMPT), params)))  # type: ignore[arg-type]


def answer_bytes() -> float:
    answers: list[tuple[int, Generation | EngineError]] = [
        (1, Generation(_tokens(RESPONSE), _log_probs(RESPONSE), "word " * RESPONSE, "stop", 3))
    ]
    return len(pickle.dumps(Poll(answers, 1)))


def batch_bytes() -> float:
    """Of one sample."""
    groups = [[_sample(8 * group + number) for number in range(8)] for group in range(8)]
    batch = build_train_batch(RunConfig(rollout_batch_size=8, n_samples_per_prompt=8), None, groups)
    return len(pickle.dumps(batch)) / 64


def _sample(index: int) -> Sample:
    sample = Sample(index=index, group_index=index // 8, prompt="word " * PROMPT, tokens=_tokens(PROMPT))
    meta = {"weight_version": 1}
    sample.append_response_tokens(tokens=_tokens(RESPONSE), log_probs=_log_probs(RESPONSE), meta_info=meta, text="word " * RESPONSE)
    sample.reward, sample.status = float(index % 2), Status.COMPLETED
    return sample


def rows_of(case: Case) -> list[tuple[str, str, float]]:
    """What is sent, over which wire, and how many bytes in a step (of each rank, where ranks are named)."""
    weights, share = 2 * case.parameters, (case.ranks - 1) / case.ranks
    rows = [
        ("requests", "driver to engines, Ray calls", SAMPLES * request_bytes()),
        ("answers", "engines to driver, Ray calls", SAMPLES * answer_bytes()),
        ("training batch", "driver to each node with ranks, object store", SAMPLES * batch_bytes()),
        ("gradients, reduce-scatter in every micro-step", "between ranks, NCCL; each sends", MICRO_STEPS * 2 * case.parameters * share),
    ]
    if case.stage == 3:
        rows.append(("weights, all-gather, forward and backward", "between ranks, NCCL; each receives", 2 * MICRO_STEPS * weights * share))
    else:
        rows.append(("weights, all-gather after the step", "between ranks, NCCL; each receives", weights * share))
    return [
        *rows,
        ("new weights", "rank 0 to every engine, NCCL broadcast; CUDA IPC on the same devices", weights),
        ("checkpoint (bfloat16 model; float32 weights and two moments)", "ranks to the shared file system", 14 * case.parameters),
    ]


def shown(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    lines = [
        "| what | over which wire | "
        + " | ".join(f"{case.name}, {case.ranks} ranks, ZeRO {case.stage} | at {LINK_GB:g} GB/s" for case in CASES)
        + " |",
        "|---|---|---|---|---|---|",
    ]
    for alike in zip(*(rows_of(case) for case in CASES), strict=True):
        what, wire, _ = alike[0]
        if what != alike[1][0]:
            what += f"; {CASES[1].name}: {alike[1][0].removeprefix('weights, ')}"
        lines.append(f"| {what} | {wire} | " + " | ".join(f"{shown(size)} | {size / LINK_GB / 1e9:.2g} s" for _, _, size in alike) + " |")
    text = f"""# What a step sends

Written by `python benchmarks/wire_sizes.py --write`, {datetime.date.today()}. Calculated; only the messages were weighed, as
pickled ones of this version: a request {shown(request_bytes())}, an answer {shown(answer_bytes())}, a sample of a
training batch {shown(batch_bytes())}.

A step of {SAMPLES:,} samples, {PROMPT} tokens of prompt and {RESPONSE:,} of response each; {MICRO_STEPS} micro-steps a rank; weights and
gradients in bfloat16.

""" + "\n".join(lines)
    print(text)
    if arguments.write:
        Path(__file__).with_suffix(".md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
