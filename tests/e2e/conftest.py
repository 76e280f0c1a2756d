"""Small real models for whole runs: made once a session, random weights, a character tokenizer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


def make_model(path: Path, *, tied: bool, hidden: int = 128, layers: int = 2) -> Path:
    """Write a model with random weights and a tokenizer of single characters: Qwen3, or Qwen2 (with biases) if untied."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    characters = "0123456789+-*=?. abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ\\{}()\n"
    vocabulary = {"<eos>": 0, "<unk>": 1} | {character: number for number, character in enumerate(characters, start=2)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>", unk_token="<unk>").save_pretrained(path)
    torch.manual_seed(0)
    shape = {
        "vocab_size": len(vocabulary),
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": tied,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "bos_token_id": None,
    }
    model = Qwen3ForCausalLM(Qwen3Config(head_dim=32, **shape)) if tied else Qwen2ForCausalLM(Qwen2Config(**shape))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(3.0)  # far enough from uniform that every tensor matters
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def model_factory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """A model folder by whether its embeddings are tied."""
    made: dict[bool, Path] = {}

    def make(tied: bool) -> Path:
        if tied not in made:
            made[tied] = make_model(tmp_path_factory.mktemp("model"), tied=tied)
        return made[tied]

    return make


Vime = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def vime() -> Vime:
    """Run `vime ARGS...` as a user would, in a process of its own."""

    def run(*arguments: str, cwd: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "vime", *arguments]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)

    return run


@pytest.fixture(scope="session")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 rows of prompts `a+b=` whose label is the sum, in a jsonl file."""
    path = tmp_path_factory.mktemp("data") / "sums.jsonl"
    pairs = [(a, b) for a in range(8) for b in range(8)]
    path.write_text("".join(json.dumps({"prompt": f"{a}+{b}=", "answer": str((a + b) % 10)}) + "\n" for a, b in pairs))
    return path
