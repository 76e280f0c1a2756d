"""Makes the quickstart's model and data: `python -m vime.quickstart.make OUT` writes OUT/model and OUT/data.

The model starts from random weights and is warm-started by vime itself (`vime train --plugin sft`) on demonstrations
whose later part has many wrong answers. Needs the extra cpu or gpu and the plugin vime-rollout-sft, and some minutes.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from vime.quickstart.assets import build_model, build_tokenizer, write_demonstrations, write_problems
from vime.quickstart.problems import SEED, demonstrations, held_out_problems, training_problems

TRAINING_PROBLEMS = 2000
HELD_OUT_PROBLEMS = 300
BATCH = 64
STEPS = 1400
CLEAN_STEPS = 1200
WRONG_FRACTION = 0.5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m vime.quickstart.make", description="Make the quickstart's model and data.")
    parser.add_argument("out", type=Path, help="folder to write model/ and data/ into; warm-start/ has what led to them")
    out: Path = parser.parse_args().out
    write_problems(out / "data" / "train.jsonl", training_problems(TRAINING_PROBLEMS))
    write_problems(out / "data" / "heldout.jsonl", held_out_problems(HELD_OUT_PROBLEMS))
    prepare_warm_start(out / "warm-start")
    finished = subprocess.run([sys.executable, "-m", "vime", *warm_start_flags(out / "warm-start")], check=False)
    if finished.returncode != 0:
        return finished.returncode
    ship(out / "warm-start" / "run" / "checkpoints" / f"step_{STEPS}", out / "model")
    sys.stdout.write(f"{out}\n")
    return 0


def prepare_warm_start(folder: Path) -> None:
    """Write the untrained model to `folder`/random and the demonstrations to `folder`/demonstrations.jsonl."""
    tokenizer = build_tokenizer()
    build_model(tokenizer).save_pretrained(folder / "random")
    tokenizer.save_pretrained(folder / "random")
    write_demonstrations(folder / "demonstrations.jsonl", demonstration_rows())


def demonstration_rows() -> Iterator[tuple[str, str]]:
    """The demonstrations of the warm start in the order of its steps: first right ones, then half of them wrong."""
    return demonstrations(STEPS * BATCH, wrong_from=CLEAN_STEPS * BATCH, wrong_fraction=WRONG_FRACTION)


def warm_start_flags(folder: Path) -> list[str]:
    """The command line of vime that warm-starts the model: the demonstrations in their order, once."""
    flags = {
        "plugin": "sft",
        "loss-type": "sft_loss",
        "hf-checkpoint": folder / "random",
        "prompt-data": folder / "demonstrations.jsonl",
        "input-key": "messages",
        "run-dir": folder / "run",
        "rollout-batch-size": BATCH,
        "num-rollout": STEPS,
        "loss-aggregation": "token",
        "lr": 2e-3,
        "lr-decay-style": "cosine",
        "lr-warmup-iters": 20,
        "min-lr": 1e-4,
        "weight-decay": 0.1,
        "adam-beta2": 0.98,
        "train-dtype": "float32",
        "rollout-seed": SEED,
        "sample-every": 0,
    }
    return ["train", *(word for name, value in flags.items() for word in (f"--{name}", str(value)))]


def ship(checkpoint: Path, folder: Path) -> None:
    """Copy a checkpoint's model and tokenizer to `folder`, the weights as bfloat16: half the size, and read as float32."""
    import torch
    from safetensors.torch import load_file, save_file

    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(checkpoint / name, folder / name)
    weights = load_file(checkpoint / "model.safetensors")
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors keeps its files to their owner


if __name__ == "__main__":
    raise SystemExit(main())
