"""Three places where vLLM inside a trainer's process needs help. All reach into its internals: check them at each upgrade."""

from __future__ import annotations

import gc
import weakref
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


def pack_float32_heads(model: Any) -> None:
    """Let output heads of a low-precision model that answer in float32 on a CPU multiply with a packed float32 weight.

    In every step vLLM's `LogitsProcessor` would convert the whole weight, and multiply without packing it: for 64 requests
    of a model with 49,152 tokens that is half of a step. A weight is packed when it is first used after this call, which
    therefore belongs after every change of the weights.
    """
    import torch
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module in model.modules():
        if getattr(module, "head_dtype", None) is torch.float32 and hasattr(module, "_apply_head"):
            vars(module).pop("_apply_head", None)  # the old pack goes before the new one is made
            module._apply_head = _PackedHeads(module)


class _PackedHeads:
    """In place of the `_apply_head` of a `LogitsProcessor`, which may be asked about several heads."""

    def __init__(self, processor: Any) -> None:
        self._processor = weakref.proxy(processor)  # which owns this
        self._apply_head = type(processor)._apply_head
        self._packed: dict[Any, Any] = {}
        """By head; None for one that is left to vLLM."""

    def __call__(self, head: Any, hidden: Any, bias: Any) -> Any:
        if head not in self._packed:
            self._packed[head] = self._pack(head)
        packed = self._packed[head]
        if packed is None:
            return self._apply_head(self._processor, head, hidden, bias)
        from vllm import _custom_ops as ops

        return ops.onednn_mm(packed, hidden.float(), None if bias is None else bias.float())

    @staticmethod
    def _pack(head: Any) -> Any:
        import torch
        from vllm import _custom_ops as ops

        weight = head.weight
        if weight.dtype not in (torch.bfloat16, torch.float16) or weight.ndim != 2 or not ops._supports_onednn:
            return None
        try:
            return ops.create_onednn_mm(weight.detach().float().t(), 32)
        except RuntimeError:  # vLLM also does without, where oneDNN refuses
            return None


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
