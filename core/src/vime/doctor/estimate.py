"""What a run holds in memory and writes to disk, calculated from the headers of the model's files. Nothing is loaded.

A lower bound: activations, the libraries themselves and buffers of communication come on top.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime.config.rules import has_reference
from vime.engine.vllm_options import kv_cache_gib, longest_sequence
from vime.train.precision import engine_dtype_name, train_dtype_name

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig

GIB = 1024**3
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_GPU_SHARE = 0.5
"""What the engine takes of a GPU where --vllm-gpu-memory-utilization is not set."""
_DEFAULT_SEQUENCES = 256
_NOT_ADAPTED = ("embed", "lm_head", "wte", "wpe")


@dataclass(frozen=True)
class Model:
    """A model by its files: parameters (a tied one once), and the shapes of its linear layers."""

    config: dict[str, Any]
    parameters: int
    linear: tuple[tuple[int, int], ...]

    @property
    def is_tied(self) -> bool:
        return bool(self.config.get("tie_word_embeddings"))


@dataclass(frozen=True)
class Estimate:
    """GiB by what holds them, of one trainer rank and of one device of an engine; `disk` is one checkpoint."""

    parameters: int
    trained: int
    train_dtype: str
    engine_dtype: str
    rank: dict[str, float]
    rank_on_host: dict[str, float]
    """What --optimizer-offload and --ref-offload keep out of a GPU."""
    engine: dict[str, float]
    disk: float


def read_model(folder: Path) -> Model:
    """The model in `folder`, which `vime.config.inputs.find_model` has found whole."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shapes = dict(_tensors(folder))
    if config.get("tie_word_embeddings"):
        shapes.pop("lm_head.weight", None)
    if shapes:
        parameters = sum(math.prod(shape) for shape in shapes.values())
    else:  # *.bin files have no header; they hold numbers of the configuration's type
        size = sum(file.stat().st_size for file in folder.glob("*.bin"))
        parameters = size // _BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), 4)
    linear = [(shape[0], shape[1]) for name, shape in shapes.items() if len(shape) == 2 and not any(part in name for part in _NOT_ADAPTED)]
    return Model(config, parameters, tuple(linear))


def _tensors(folder: Path) -> Iterator[tuple[str, list[int]]]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        files = [folder / name for name in names]
    else:
        files = [file for file in sorted(folder.glob("*.safetensors")) if not file.name.startswith("consolidated")]
    for file in files:
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        yield from ((name, entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def estimate(config: RunConfig, model: Model, *, on_gpu: bool, gpu_gib: float | None = None) -> Estimate:
    """What each rank and each engine device of `config` holds. `gpu_gib` is the memory of a GPU, where it is known."""
    dtype = train_dtype_name(config.train_dtype, model.parameters, on_cpu=not on_gpu)
    engine_dtype = engine_dtype_name(config.engine_dtype, dtype, on_cpu=not on_gpu)
    adapters = sum(config.lora_rank * (rows + columns) for rows, columns in model.linear)
    trained = adapters if config.lora_rank else model.parameters
    rank, host = _of_rank(config, model.parameters + adapters, trained, dtype, on_gpu=on_gpu)
    return Estimate(
        parameters=model.parameters,
        trained=trained,
        train_dtype=dtype,
        engine_dtype=engine_dtype,
        rank=rank,
        rank_on_host=host,
        engine=_of_engine(config, model, engine_dtype, on_gpu=on_gpu, gpu_gib=gpu_gib),
        disk=(model.parameters * _BYTES[dtype] + 12 * trained) / GIB * (2 if config.advantage_estimator == "ppo" else 1),
    )


def _of_rank(config: RunConfig, parameters: int, trained: int, dtype: str, *, on_gpu: bool) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes by ZeRO stage as in Rajbhandari et al. 2020 (arXiv:1910.02054), section 3.1; float32 has no second copy of the weights."""
    ranks, is_bf16 = config.trainer_ranks, dtype == "bfloat16"
    stage = max(1, config.zero_stage) if is_bf16 else config.zero_stage
    weights = parameters * _BYTES[dtype] / (ranks if stage == 3 else 1)
    # With bfloat16 DeepSpeed adds gradients up in float32, beside those of the backward pass.
    gradients = trained * (6 if is_bf16 else 4) / (ranks if stage >= 2 else 1)
    optimizer = trained * (12 if is_bf16 else 8) / (ranks if stage >= 1 else 1)
    models = 2 if config.advantage_estimator == "ppo" else 1
    rank = {"weights": models * weights, "gradients": models * gradients}
    host: dict[str, float] = {}
    (host if config.optimizer_offload and on_gpu else rank)["optimizer"] = models * optimizer
    if has_reference(config) and (not config.lora_rank or config.ref_load is not None):
        (host if config.ref_offload and on_gpu else rank)["reference"] = parameters * _BYTES[dtype]
    return {name: size / GIB for name, size in rank.items()}, {name: size / GIB for name, size in host.items()}


def _of_engine(config: RunConfig, model: Model, dtype: str, *, on_gpu: bool, gpu_gib: float | None) -> dict[str, float]:
    weights = model.parameters * _BYTES[dtype] / config.engine_tp / GIB
    if on_gpu:
        share = None if gpu_gib is None else (config.vllm_gpu_memory_utilization or _GPU_SHARE) * gpu_gib
        return {"weights": weights} | ({} if share is None else {"KV cache": max(0.0, share - weights)})
    wave = (config.over_sampling_batch_size or config.rollout_batch_size) * config.n_samples_per_prompt
    sequences = config.vllm_max_num_seqs or max(1, min(_DEFAULT_SEQUENCES, wave))
    longest = config.vllm_max_model_len or longest_sequence(config, model.config.get("max_position_embeddings", 4096))
    held = {"weights": weights}
    if dtype != "float32":  # see pack_float32_heads in engine/vllm_repairs.py
        held["output head"] = 4 * model.config.get("vocab_size", 0) * model.config.get("hidden_size", 0) / config.engine_tp / GIB
    try:
        cache = config.vllm_kv_cache_gib or kv_cache_gib(config, model.config, longest, sequences)
    except KeyError:  # a config.json whose sizes have other names
        return held
    return held | {"KV cache": cache / config.engine_tp}
