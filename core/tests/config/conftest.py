"""A folder that looks like a model, and a data file."""

from __future__ import annotations

from pathlib import Path

import pytest

NUM_GPUS = 0


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("{}")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    path.write_text('{"input": "1+1=", "label": "2"}\n')
    return path
