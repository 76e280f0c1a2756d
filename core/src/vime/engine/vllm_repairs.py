"""Two places where vLLM inside a trainer's process needs help. Both reach into its internals: check them at each upgrade."""

from __future__ import annotations

import gc
from typing import Any


def repack_tied_head(model: Any) -> None:
    """Rebuild the packed copy of a tied output head.

    vLLM's CPU linear layers keep a pre-packed copy of their weight. A reload refreshes it for every layer but a head
    that shares the embedding's parameter, which would go on answering with the old weights.
    """
    head = getattr(model, "lm_head", None)
    embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
    method = getattr(head, "quant_method", None)
    if head is not None and embedding is not None and method is not None and getattr(model.config, "tie_word_embeddings", False):
        method.process_weights_after_loading(head)


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
