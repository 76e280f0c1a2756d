"""What `vime train --plugin math` trains when no model and no data are named: a small model and arithmetic problems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MODEL = Path(__file__).parent / "model"
DATA = Path(__file__).parent / "data"


def quickstart_defaults() -> dict[str, Any]:
    """Configuration values, by field, that stand in for all that the user leaves open."""
    held_out = str(DATA / "heldout.jsonl")
    return {
        "hf_checkpoint": str(MODEL),
        "engine_dtype": "float32",
        "train_dtype": "float32",
        "prompt_data": str(DATA / "train.jsonl"),
        "input_key": "prompt",
        "label_key": "label",
        "apply_chat_template": True,
        "rollout_shuffle": True,
        "eval": {
            "datasets": [
                {"name": "heldout", "path": held_out, "temperature": 1.0},
                {"name": "heldout-greedy", "path": held_out, "temperature": 0.0},
            ]
        },
        "eval_interval": 20,
        "rollout_batch_size": 16,
        "n_samples_per_prompt": 8,
        "num_rollout": 80,
        "rollout_temperature": 1.0,
        "rollout_max_response_len": 8,
        "advantage_estimator": "grpo",
        "lr": 1e-4,
        "weight_decay": 0.0,
        "max_tokens_per_gpu": 8192,
    }
