"""Two places where vLLM inside a trainer's process needs help. Both reach into its internals: check them at each upgrade."""

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
