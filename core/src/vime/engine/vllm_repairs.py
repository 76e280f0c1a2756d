"""Three places where vLLM inside a trainer's process needs help. All reach into its internals: check them at each upgrade."""

from __future__ import annotations

import gc
from typing import Any


def share_tied_head(model: Any) -> None:
    """Give a tied output head the packed weight of its embedding.

    vLLM's CPU layers compute with a pre-packed copy of their weight. A reload renews that of the embedding, which never
    multiplies, and leaves out a head that shares the embedding's parameter: it would go on answering with the old weights.
    """
    head = getattr(model, "lm_head", None)
    packed = getattr(getattr(getattr(model, "model", None), "embed_tokens", None), "cpu_linear", None)
    if head is not None and packed is not None and getattr(model.config, "tie_word_embeddings", False):
        head.cpu_linear = packed


def pack_float32_head(model: Any) -> None:
    """Pack the output head of a low-precision model that answers in float32 on a CPU, as of this moment.

    In every step vLLM's `LogitsProcessor` would convert the whole weight, and multiply without packing it: for 64 requests
    of a model with 49,152 tokens that is half of a step.
    """
    import torch

    head: Any = getattr(model, "lm_head", None)
    processor: Any = getattr(model, "logits_processor", None)
    weight = getattr(head, "weight", None)
    if weight is None or weight.device.type != "cpu" or weight.dtype is torch.float32 or weight.ndim != 2:
        return
    if getattr(processor, "head_dtype", None) is not torch.float32:
        return
    from vllm import _custom_ops as ops

    if not ops._supports_onednn:
        return
    packed = ops.create_onednn_mm(weight.detach().float().t(), 32)
    apply_head = type(processor)._apply_head

    def apply_packed(asked_head: Any, hidden: Any, bias: Any) -> Any:
        if asked_head is not head:
            return apply_head(processor, asked_head, hidden, bias)
        return ops.onednn_mm(packed, hidden.float(), None if bias is None else bias.float())

    processor._apply_head = apply_packed


def shut_down(llm_engine: Any) -> None:
    """vLLM's own shutdown, without the process group that it would destroy too: the trainer shares that one."""
    from vllm.distributed import parallel_state

    client = llm_engine.engine_core
    client._finalizer.detach()
    client.engine_core.model_executor.shutdown()
    client.engine_core.scheduler.shutdown()
    parallel_state.destroy_model_parallel()
    if parallel_state._WORLD is not None:
        parallel_state._WORLD.destroy()
        parallel_state._WORLD = None
    gc.unfreeze()
