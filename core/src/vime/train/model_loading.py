"""Hugging Face models for training: the policy and the frozen reference."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vime.errors import ConfigError
from vime.heavy import heavy_imports
from vime.train.bfloat16 import compute_products_in_float32
from vime.train.precision import cpu_emulates_bfloat16
from vime.train.quiet import quiet_transformers


def check_model_folder(path: str) -> None:
    """Raise ConfigError for a folder that is not a Hugging Face model; other names are left to the hub's client."""
    folder = Path(path)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"{path} is not a Hugging Face model: it has no config.json", hint="give the folder that save_pretrained wrote"
            )
    elif path.startswith((os.sep, ".", "~")) or folder.exists():
        raise ConfigError(f"the model {path} does not exist", hint="give a folder with config.json and safetensors, or a model name")


def count_parameters(path: str) -> int:
    """The number of parameters of a model, each tied one once, without loading a weight."""
    with heavy_imports():
        from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
    return sum(parameter.numel() for parameter in model.parameters())


def load_model(path: str, dtype: torch.dtype, attn_implementation: str, device: torch.device) -> nn.Module:
    """The model in training precision, without dropout: the trainer must see the distribution that the engine sampled from."""
    from transformers import AutoModelForCausalLM

    attention = "sdpa" if attn_implementation == "auto" else attn_implementation
    with quiet_transformers():
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation=attention)
    for name in ("attention_dropout", "hidden_dropout", "embd_pdrop", "resid_pdrop", "attn_pdrop"):
        if hasattr(model.config, name):
            setattr(model.config, name, 0.0)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            setattr(module, "attention_dropout", 0.0)  # noqa: B010
    if dtype is torch.bfloat16 and device.type == "cpu" and cpu_emulates_bfloat16():
        compute_products_in_float32(model)
    return model.to(device)
