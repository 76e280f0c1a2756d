"""What vLLM is told: its environment, its engine arguments, and the parameters of a request."""

from __future__ import annotations

import importlib.metadata
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime.engine.base import SamplingParams

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig


def prepare_environment() -> None:
    """Set what vLLM reads when it is first imported. A value that the user has set stays."""
    if _is_cpu_build():
        # Without it the first generation compiles sampling kernels for up to 20 s; eager mode has no use for them.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    for name, value in {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout is for results; how much it says: vime.runtime.third_party
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would inherit the threads' locks of this process
        "TOKENIZERS_PARALLELISM": "false",
    }.items():
        os.environ.setdefault(name, value)


def own_process_group() -> None:
    """Make this process the only rank of torch.distributed, over a store in memory: vLLM would open a port on every interface for it."""
    import torch

    if torch.distributed.is_initialized():
        return
    from torch._C._distributed_c10d import HashStore

    backend = "nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(backend=backend, store=HashStore(), rank=0, world_size=1)


def _is_cpu_build() -> bool:
    try:
        importlib.metadata.distribution("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def engine_options(config: RunConfig, model_path: str, *, dtype: str, concurrency: int) -> dict[str, Any]:
    """vLLM's engine arguments for this configuration."""
    import torch

    max_num_seqs = config.vllm_max_num_seqs or max(1, min(256, concurrency))
    options: dict[str, Any] = {
        "model": model_path,
        "dtype": dtype,
        # Logits of 20 rounded to bfloat16 are off by 0.06, in the engine and in the trainer; see train/output_head.py for the other half.
        "hf_overrides": {"head_dtype": "float32"},
        "enable_prefix_caching": config.vllm_enable_prefix_caching,
        "max_num_seqs": max_num_seqs,
        "seed": config.rollout_seed,
        "disable_log_stats": config.trace_step is None,  # a request's own times come with them
        "logprobs_mode": "processed_logprobs",
        "distributed_executor_backend": "uni",
        "generation_config": "vllm",
        "use_tqdm_on_load": False,
    }
    if config.engine_tp > 1:
        options |= {"tensor_parallel_size": config.engine_tp, "distributed_executor_backend": "mp"}
    return options | (_gpu_options(config) if torch.cuda.is_available() else _cpu_options(config, model_path, max_num_seqs))


def transfer_backend(config: RunConfig) -> str | None:
    """vLLM's name for the way that weights take from a trainer in another process, on GPUs."""
    if config.runtime != "ray":
        return None
    return "ipc" if config.colocate else "nccl"


def _gpu_options(config: RunConfig) -> dict[str, Any]:
    backend = transfer_backend(config)
    shares_device = config.colocate or config.runtime == "local"
    return {
        "enforce_eager": bool(config.vllm_enforce_eager),
        "max_model_len": config.vllm_max_model_len,
        "max_num_batched_tokens": config.vllm_max_num_batched_tokens,
        "gpu_memory_utilization": config.vllm_gpu_memory_utilization or (0.5 if shares_device else 0.9),
        "enable_sleep_mode": config.colocate,
        **({} if backend is None else {"weight_transfer_config": {"backend": backend}}),
    }


def _cpu_options(config: RunConfig, model_path: str, max_num_seqs: int) -> dict[str, Any]:
    model = json.loads((Path(model_path) / "config.json").read_text())
    longest = config.vllm_max_model_len or longest_sequence(config, model.get("max_position_embeddings", 4096))
    return {
        "enforce_eager": True if config.vllm_enforce_eager is None else config.vllm_enforce_eager,
        "max_model_len": longest,
        # A prompt that is split over two steps crashes seeded requests: vLLM 0.32 then moves the offset of the request's
        # random generator, which a generator on the CPU does not have.
        "enable_chunked_prefill": False,
        # The smallest that the CPU's attention takes: prompts shorter than a block are computed for each sample of a group.
        "block_size": 32,
        "max_num_batched_tokens": max(longest, config.vllm_max_num_batched_tokens or 4096),
        "kv_cache_memory_bytes": int((config.vllm_kv_cache_gib or kv_cache_gib(config, model, longest, max_num_seqs)) * 2**30),
    }


def longest_sequence(config: RunConfig, model_limit: int) -> int:
    """What a prompt and a response may need together, without reserving for a context that nobody asked for."""
    responses = [config.rollout_max_response_len, *(dataset.max_response_len or 0 for dataset in config.eval_datasets)]
    return min(model_limit, max(4096, (config.rollout_max_prompt_len or 2048) + max(responses)))


def kv_cache_gib(config: RunConfig, model: dict[str, Any], longest: int, max_num_seqs: int) -> float:
    """Room for the requests of a rollout at full length, between 0.25 and 4 GiB."""
    heads = model["num_attention_heads"]
    head_dim = model.get("head_dim") or model["hidden_size"] // heads
    per_token = 2 * model["num_hidden_layers"] * model.get("num_key_value_heads", heads) * head_dim * 4
    wanted = per_token * max(longest, max_num_seqs * min(longest, config.rollout_max_response_len + (config.rollout_max_prompt_len or 512)))
    return min(4.0, max(0.25, 1.1 * wanted / 2**30))


def vllm_params(params: SamplingParams, room: int) -> Any:
    """vLLM's form of a request's parameters; `room` is the number of tokens that still fit into the context."""
    from vllm.sampling_params import RequestOutputKind
    from vllm.sampling_params import SamplingParams as VllmParams

    stop = params.get("stop") or None
    max_tokens = max(1, min(params.get("max_new_tokens", room), room))
    return VllmParams(
        temperature=params.get("temperature", 1.0),
        top_p=params.get("top_p", 1.0),
        top_k=max(0, params.get("top_k", -1)),
        max_tokens=max_tokens,
        min_tokens=min(params.get("min_new_tokens", 0) or 0, max_tokens),
        stop=stop,
        stop_token_ids=params.get("stop_token_ids") or None,
        repetition_penalty=params.get("repetition_penalty", 1.0),
        seed=params.get("seed"),
        logprobs=0,
        flat_logprobs=True,
        detokenize=stop is not None,  # vLLM needs the text only to find stop strings
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,  # each request has parameters of its own
    )
