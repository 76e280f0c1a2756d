"""A step against its floor: `LLM.generate` alone and a bare training loop, on the work that the step had.

    uv run python benchmarks/floor.py                                                 sizes a and b of vs_trl.py
    uv run python benchmarks/floor.py --sizes c --smollm2 examples/smollm2/model      and c
    ... --write                                                                       and adds the rows to benchmarks/floor.md

`vime train` saves its rollouts. A process of the floor then generates the same number of tokens for the same prompts with vLLM's
`LLM.generate` (same engine options, log-probs and seeds, no text), and takes optimizer steps over the same micro-batches with the
loop of training_steps.py. Its time of a step is the sum of the two: without rewards, data, metrics, checks, or a sync of weights.
The two sides take turns. The bare loop has vime's micro-batches, prompts shared: what those save is in trainer.py and vs_trl.py.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import machine
from vs_trl import SIZES, Size, data_of, model_of, run_vime

PARTS = ("rollout", "train", "sync")


def run_floor(size: Size, model: str, rollouts: Path) -> dict[str, list[float]]:
    """Seconds of generation and of training for each saved rollout."""
    from vime.config.run_config import RunConfig
    from vime.engine.vllm_options import engine_options, prepare_environment
    from vime.rollout.debug_data import load_rollout

    prepare_environment()
    from training_steps import BareModel
    from vllm import LLM

    from vime.runtime.build import engine_dtype

    config = RunConfig(
        hf_checkpoint=model,
        rollout_batch_size=size.prompts,
        n_samples_per_prompt=size.samples,
        rollout_max_response_len=size.tokens,
        train_dtype=size.dtype,  # type: ignore[arg-type]
    )
    total = size.prompts * size.samples
    llm = LLM(**engine_options(config, model, dtype=engine_dtype(config, model, on_cpu=True), concurrency=total))
    bare = BareModel(model, size.dtype)
    found: dict[str, list[float]] = {"generate": [], "train": []}
    for number in range(size.steps):
        groups = load_rollout(str(rollouts / "{rollout_id}.parquet"), number)
        prompts, params = work_of(groups)
        started = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        found["generate"].append(time.perf_counter() - started)
        micros = micro_batches(config, bare.model, groups)
        started = time.perf_counter()
        bare.step(micros)
        found["train"].append(time.perf_counter() - started)
    return found


def work_of(groups: list[list[Any]]) -> tuple[list[Any], list[Any]]:
    """The prompts of a rollout, and parameters under which each response is as long as it was."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    prompts: list[Any] = []
    params: list[Any] = []
    for sample in (sample for group in groups for sample in group):
        length = sample.response_length
        prompts.append({"prompt_token_ids": sample.tokens[:-length]})
        params.append(
            SamplingParams(
                max_tokens=length,
                min_tokens=length,
                ignore_eos=True,
                seed=sample.index,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
        )
    return prompts, params


def micro_batches(config: Any, model: Any, groups: list[list[Any]]) -> list[Any]:
    """As the trainer makes them."""
    import torch

    from vime.train.batch import build_train_batch
    from vime.train.losses import token_weights
    from vime.train.microbatch import collate, plan_sequences, trained_rows
    from vime.train.shared_prompts import attention_pair_cost

    batch = build_train_batch(config, None, groups)
    cpu = torch.device("cpu")
    rows = trained_rows(batch, 0, cpu)
    weights = token_weights([batch.loss_masks[row.index] for row in rows], [batch.rollout_ids[row.index] for row in rows], "sample")
    micros = []
    for sequences in plan_sequences(rows, config, 1, attention_pair_cost(model))[0]:
        picked = [position for sequence in sequences for position in sequence]
        micros.append(collate([rows[p] for p in picked], [weights[p] for p in picked], cpu, sizes=[len(each) for each in sequences]))
    return micros


def compare(key: str, rounds: int, smollm2: str | None) -> str:
    """A row of the table."""
    size = SIZES[key]
    pairs: list[tuple[dict[str, float], dict[str, float]]] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            model, rollouts = model_of(key, smollm2, folder / "model"), folder / "rollouts"
            saved = {"save-debug-rollout-data": rollouts / "{rollout_id}.parquet"}
            steps = run_vime(size, model, data_of(key, smollm2), folder, **saved)["steps"][size.warm_up :]
            ours = {part: statistics.median(step[f"perf/{part}_time"] for step in steps) for part in (*PARTS, "step")}
            command = [sys.executable, __file__, "--one", key, model, str(rollouts)]
            finished = subprocess.run(command, check=True, capture_output=True, text=True)
            times = json.loads(finished.stdout.splitlines()[-1])
            floor = {part: statistics.median(times[part][size.warm_up :]) for part in times}
            floor["step"] = statistics.median(sum(both) for both in zip(*(times[part][size.warm_up :] for part in times), strict=True))
            pairs.append((ours, floor))
    ours, floor = ({part: statistics.median(side[part] for side in sides) for part in sides[0]} for sides in zip(*pairs, strict=True))
    ratios = [mine["step"] / theirs["step"] for mine, theirs in pairs]
    rest = ours["step"] - sum(ours[part] for part in PARTS)
    cells = [f"({key}) {size.name}", str(rounds), f"{ours['step']:.3f}", f"{floor['step']:.3f}"]
    cells += [f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"]
    cells += [f"{ours['rollout']:.3f}", f"{floor['generate']:.3f}", f"{ours['train']:.3f}", f"{floor['train']:.3f}"]
    cells += [f"{ours['sync']:.3f}", f"{rest:.3f}"]
    return f"| {' | '.join(cells)} |"


def write(rows: list[str]) -> None:
    """Put the rows into the table of benchmarks/floor.md, in the place of those of the same size."""
    file = Path(__file__).with_suffix(".md")
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("| (")] if file.exists() else []
    found = {line.split(")")[0]: line for line in [*lines, *rows]}
    table = "\n".join(found[key] for key in sorted(found))
    text = f"""# A step against its floor

Written by `python benchmarks/floor.py --write`, {datetime.date.today()};
{machine()}. Seconds, medians of the steps of a run and of the runs; the ratio with the smallest and largest.

| size | runs | step | floor | step / floor | rollout | generate | train | bare loop | sync | rest |
|---|---|---|---|---|---|---|---|---|---|---|
{table}
"""
    file.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="ab")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--smollm2")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("SIZE", "MODEL", "ROLLOUTS"))
    arguments = parser.parse_args()
    if arguments.one:
        key, model, rollouts = arguments.one
        print(json.dumps(run_floor(SIZES[key], model, Path(rollouts))))
        return
    rows: list[str] = []
    for key in arguments.sizes:
        rows.append(compare(key, arguments.rounds, arguments.smollm2))
        print(rows[-1], flush=True)
    if arguments.write:
        write(rows)


if __name__ == "__main__":
    main()
