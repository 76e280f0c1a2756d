"""DeepSpeed as this trainer wants it: quiet, no launcher, no kernels to compile, accumulation decided by us."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

import torch

from vime.config.inputs import read_deepspeed_settings
from vime.errors import ConfigError
from vime.heavy import heavy_imports
from vime.train.precision import train_dtype_name


def resolve_train_dtype(name: str, parameters: int, device: torch.device) -> torch.dtype:
    """`auto` is float32 for a small model on the CPU, bfloat16 otherwise."""
    name = train_dtype_name(name, parameters, on_cpu=device.type == "cpu")
    try:
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    except KeyError:
        raise ConfigError(f"train_dtype {name!r} is not supported", hint="choose auto, float32 or bfloat16") from None


def deepspeed_config(config: Any, dtype: torch.dtype, world_size: int) -> dict[str, Any]:
    """The dict for `deepspeed.initialize`.

    Accumulation is 1 in DeepSpeed's eyes: the trainer sets the boundaries itself, and its losses are already
    normalised over the optimizer step. bfloat16 without ZeRO runs as stage 1, whose optimizer keeps float32 weights
    and accumulates gradients in float32 (DeepSpeed's stage 0 would accumulate them in bfloat16).
    """
    is_bf16 = dtype is torch.bfloat16
    stage = 1 if is_bf16 and config.zero_stage == 0 else config.zero_stage
    result: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "train_batch_size": world_size,
        "steps_per_print": 10**12,
        "gradient_clipping": float(config.clip_grad or 0.0),
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": config.lr,
                "betas": [config.adam_beta1, config.adam_beta2],
                "eps": config.adam_eps,
                "weight_decay": config.weight_decay,
                "torch_adam": True,
                "fused": True,  # one kernel over all parameters, on CPUs too
            },
        },
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    if is_bf16:
        result["bf16"] = {"enabled": True}
        result["data_types"] = {"grad_accum_dtype": "fp32"}
    if config.optimizer_offload:
        if stage == 0:
            raise ConfigError("--optimizer-offload needs ZeRO, which splits the optimizer off", hint="add --zero-stage 1, 2 or 3")
        result["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
        result["zero_force_ds_cpu_optimizer"] = False
    if config.deepspeed_config is not None:
        _merge(result, read_deepspeed_settings(config.deepspeed_config), config.deepspeed_config)
    return result


def _merge(ours: dict[str, Any], theirs: dict[str, Any], path: str, prefix: str = "") -> None:
    """Add the user's settings in place. What follows from our own flags may be repeated but not contradicted."""
    for key, value in theirs.items():
        if key not in ours:
            ours[key] = value
        elif isinstance(ours[key], dict) and isinstance(value, dict):
            _merge(ours[key], value, path, f"{prefix}{key}.")
        elif value not in (ours[key], "auto"):
            raise ConfigError(
                f"--deepspeed-config {path} sets {prefix}{key} to {value!r}, but vime's own flags make it {ours[key]!r}",
                hint=f"take {prefix}{key} out of the file and use the flag (--zero-stage, --lr, --clip-grad, --train-dtype, ...)",
            )


def start_process_group(device: torch.device) -> None:
    """Make sure that torch.distributed and DeepSpeed's layer over it are up.

    A process without a launcher becomes the only rank, over an in-memory store: no port, no network. The shared-memory
    all-reduce of DeepSpeed, half a minute of compiling on a new machine, is left out.
    """
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if device.type == "cuda" else "cpu")
    with heavy_imports(without="mlflow"):  # a second, for its autotuner
        import deepspeed
        import deepspeed.comm as dist

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # DeepSpeed's own calls under ZeRO-3: nothing that a user of vime could change.
    warnings.filterwarnings("ignore", message=".*reduce_scatter_tensor", category=FutureWarning)
    if dist.is_initialized():
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
            os.environ.setdefault(name, value)  # DeepSpeed asks for them even where the group is there, started by an engine
    if not torch.distributed.is_initialized() and os.environ["WORLD_SIZE"] == "1":
        from torch._C._distributed_c10d import HashStore

        torch.distributed.init_process_group(backend=backend, store=HashStore(), rank=0, world_size=1)
    deepspeed.init_distributed(dist_backend=backend, verbose=False)
