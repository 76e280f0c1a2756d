"""A GRPO step here against one of TRL's GRPOTrainer: same model, prompts, reward, sampling, optimizer, number format and threads.

    uv run python benchmarks/vs_trl.py                                                 sizes a and b
    uv run python benchmarks/vs_trl.py --sizes cd --smollm2 examples/smollm2/model     c and d (examples/smollm2 makes the model)
    ... --write                                                                        and adds the rows to benchmarks/vs_trl.md

(a) the quickstart model, 8 prompts x 8 samples, up to 16 tokens; (b) a model of that architecture with random weights, whose
answers have very different lengths up to 128 tokens, 32 x 8; (c) SmolLM2-135M in bfloat16, 8 x 8, up to 128 tokens; (d) the
same in float32, which is what one would choose on a processor that emulates bfloat16. At c both trainers are bfloat16; vime's
engine then computes in float32 on such a processor of its own accord (`--engine-dtype auto`). TRL generates with its own loop:
its vLLM mode does not run on a CPU. Each run is a process of its own, with the round's number as its seed; the two sides take
turns. A step is timed from the end of the one before to its own end; the first ones of a run are left out (none at c, where TRL
takes minutes for one, and takes one only). "Learned" is the mean reward of the last third of the steps minus that of the first
third; per second, it is divided by the time of the steps.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Size:
    """The shape of a step and the length of a run."""

    name: str
    prompts: int
    samples: int
    tokens: int
    steps: int
    lr: float
    dtype: str = "float32"
    reward: str = "answer"
    rows_at_once: int = 64
    """Rows of a forward pass in TRL; vime fills its passes by tokens."""
    warm_up: int = 2
    """Steps at the start that are not timed."""
    trl_steps: int = 0
    """Where TRL takes fewer steps than vime; 0: as many."""


SIZES = {
    "a": Size("quickstart model, 8 x 8, 16 tokens", 8, 8, 16, 60, 1e-4),
    "b": Size("random weights, 32 x 8, up to 128 tokens", 32, 8, 128, 14, 1e-4, reward="ones", rows_at_once=256),
    "c": Size("SmolLM2-135M, bfloat16, 8 x 8, up to 128 tokens", 8, 8, 128, 4, 1e-5, dtype="bfloat16", warm_up=1, trl_steps=2),
    "d": Size("SmolLM2-135M, float32, 8 x 8, up to 128 tokens", 8, 8, 128, 3, 1e-5, warm_up=1),
}


def score(kind: str, text: str, label: str | None) -> float:
    """`answer`: whether the last number is the label. `ones`: the share of the digit 1, without special tokens, which TRL's text lacks."""
    text = re.sub(r"<\|\w+\|>", "", text)
    if kind == "ones":
        return text.count("1") / max(1, len(text))
    numbers = re.findall(r"-?\d+", text)
    return float(bool(numbers) and numbers[-1] == str(label))


async def answer(args: Any, sample: Any) -> float:
    return score("answer", sample.response, sample.label)


async def ones(args: Any, sample: Any) -> float:
    return score("ones", sample.response, sample.label)


def model_of(size: str, smollm2: str | None, folder: Path) -> str:
    """The folder of the model, made where it has random weights."""
    from vime.quickstart import MODEL

    if size == "a":
        return str(MODEL)
    if size in "cd":
        assert smollm2 is not None, "sizes c and d need --smollm2"
        return smollm2
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    # Room for prompt and response: vLLM ends a sequence that fills the context, TRL does not.
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(MODEL, max_position_embeddings=256))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(MODEL).save_pretrained(folder)
    return str(folder)


def data_of(size: str, smollm2: str | None) -> Path:
    from vime.quickstart import DATA

    return Path(smollm2).parent / "data" / "train.jsonl" if size in "cd" and smollm2 else DATA / "train.jsonl"


def run_vime(size: Size, model: str, data: Path, folder: Path, **more: Any) -> dict[str, Any]:
    """Train with `vime train`, given `more` flags, and read what it logged."""
    flags: dict[str, Any] = {
        "hf-checkpoint": model,
        "prompt-data": data,
        "input-key": "prompt",
        "label-key": "label",
        "run-dir": folder / "run",
        "custom-rm-path": f"{Path(__file__).absolute()}:{size.reward}",
        "rollout-batch-size": size.prompts,
        "n-samples-per-prompt": size.samples,
        "rollout-max-response-len": size.tokens,
        "num-rollout": size.steps,
        "lr": size.lr,
        "weight-decay": 0.0,
        "train-dtype": size.dtype,
        "sample-every": 0,
        **more,
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "vime", "train", "--apply-chat-template", "--rollout-shuffle", "--no-tensorboard", *words]
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - started
    steps: dict[int, dict[str, float]] = {}
    for line in (folder / "run" / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        steps.setdefault(entry["step"], {}).update(entry)
    ordered = [steps[number] for number in sorted(steps) if "perf/step_time" in steps[number]]
    return {
        "seconds": [step["perf/step_time"] for step in ordered],
        "rewards": [step["rollout/raw_reward"] for step in ordered],
        "tokens": statistics.fmean(step["rollout/response_len/mean"] for step in ordered),
        "wall": wall,
        "steps": ordered,
    }


def run_trl(size: Size, model: str, data: Path, folder: Path, seed: int) -> dict[str, Any]:
    """Train with GRPOTrainer, in this process."""
    started = time.perf_counter()
    import torch
    from datasets import load_dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    rows = load_dataset("json", data_files=str(data), split="train")
    rows = rows.map(
        lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}] if isinstance(row["prompt"], str) else row["prompt"]}
    )
    rewards: list[float] = []
    lengths: list[float] = []
    ends: list[float] = []

    def reward(completions: Any, label: Any, completion_ids: Any, **_: Any) -> Any:
        scores = [score(size.reward, completion[0]["content"], wanted) for completion, wanted in zip(completions, label, strict=True)]
        rewards.append(statistics.fmean(scores))
        lengths.append(statistics.fmean(map(len, completion_ids)))
        return scores

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

    total = size.prompts * size.samples
    config = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        model_init_kwargs={"dtype": size.dtype},
        per_device_train_batch_size=min(total, size.rows_at_once),
        gradient_accumulation_steps=max(1, total // size.rows_at_once),
        num_generations=size.samples,
        max_completion_length=size.tokens,
        temperature=1.0,
        top_k=0,
        beta=0.0,
        epsilon=0.2,
        loss_type="grpo",
        learning_rate=size.lr,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        adam_beta2=0.999,
        max_grad_norm=1.0,
        max_steps=size.trl_steps or size.steps,
        gradient_checkpointing=False,
        logging_steps=10**6,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=seed,
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    trainer = GRPOTrainer(
        model=model, reward_funcs=reward, args=config, train_dataset=rows, processing_class=tokenizer, callbacks=[Clock()]
    )
    begun = time.perf_counter()
    trainer.train()
    return {
        "seconds": [end - start for start, end in zip([begun, *ends], ends, strict=False)],
        "rewards": rewards,
        "tokens": statistics.fmean(lengths),
        "wall": time.perf_counter() - started,
        "threads": torch.get_num_threads(),
    }


def measured(run: dict[str, Any], warm_up: int) -> dict[str, float]:
    """The figures of one run."""
    seconds, rewards = run["seconds"][warm_up:], run["rewards"]
    third = max(1, len(rewards) // 3)
    learned = statistics.fmean(rewards[-third:]) - statistics.fmean(rewards[:third])
    return {
        "step": statistics.median(seconds),
        "reward": statistics.fmean(rewards),
        "learned": learned,
        "per_second": learned / sum(seconds),
        "tokens": run["tokens"],
        "wall": run["wall"],
    }


def compare(key: str, rounds: int, more: list[str]) -> list[str]:
    """Both sides in turns; a line of the table for each."""
    found: dict[str, list[dict[str, float]]] = {"vime": [], "trl": []}
    for number in range(rounds):
        for side in ("vime", "trl") if number % 2 == 0 else ("trl", "vime"):
            command = [sys.executable, __file__, "--one", side, key, str(number), *more]
            finished = subprocess.run(command, check=True, capture_output=True, text=True)
            found[side].append(measured(json.loads(finished.stdout.splitlines()[-1]), SIZES[key].warm_up))
    ratios = [trl["step"] / vime["step"] for vime, trl in zip(found["vime"], found["trl"], strict=True)]
    rows: list[str] = []
    for side, runs in found.items():
        middle = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        faster = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if side == "vime" else ""
        cells = [
            f"({key}) {SIZES[key].name}",
            side,
            str(rounds),
            f"{middle['step']:.3f}",
            faster,
            f"{middle['tokens']:.1f}",
            f"{middle['reward']:.3f}",
        ]
        cells += [f"{middle['learned']:+.3f}", f"{1000 * middle['per_second']:.2f}", f"{middle['wall']:.0f}"]
        rows.append(f"| {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="ab")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--smollm2")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("SIDE", "SIZE", "SEED"))
    arguments = parser.parse_args()
    if arguments.one:
        side, key, seed = arguments.one
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            model = model_of(key, arguments.smollm2, folder / "model")
            work = SIZES[key], model, data_of(key, arguments.smollm2), folder
            print(json.dumps(run_vime(*work, **{"rollout-seed": seed}) if side == "vime" else run_trl(*work, int(seed))))
        return
    keys = arguments.sizes
    rows: list[str] = []
    for key in keys:
        rows += compare(key, arguments.rounds, ["--smollm2", arguments.smollm2] if arguments.smollm2 else [])
    if arguments.write:
        write(rows)


def write(rows: list[str]) -> None:
    """Put the rows into the table of benchmarks/vs_trl.md, in the place of those of the same size and side."""
    from machine import machine  # not above: `vime train` loads this file as the reward, by its path

    file = Path(__file__).with_suffix(".md")
    found = (
        {key_of(line): line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("| (")} if file.exists() else {}
    )
    found |= {key_of(row): row for row in rows}
    table = "\n".join(found[key] for key in sorted(found))
    text = f"""# A GRPO step against TRL's

Written by `python benchmarks/vs_trl.py --write`, {datetime.date.today()};
{machine()}; medians of the runs of each side, taking turns. "Faster" is TRL's time over
vime's in neighbouring runs, with the smallest and the largest.

| size | side | runs | s/step | faster | tokens | reward | learned | learned per 1,000 s | whole run, s |
|---|---|---|---|---|---|---|---|---|---|
{table}
"""
    file.write_text(text, encoding="utf-8")


def key_of(row: str) -> tuple[str, bool]:
    """Size and side of a row of the table; vime's first."""
    size, side, *_ = row.removeprefix("| ").split(" | ")
    return size, side != "vime"


if __name__ == "__main__":
    main()
