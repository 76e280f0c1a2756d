"""The weights and the cache of a vLLM engine: replaced, put to sleep, woken. Called in the thread that steps the engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vime.engine.vllm_repairs import pack_float32_heads, share_tied_head


class VllmWeights:
    """What of `llm_engine` is in the device's memory.

    Asleep its weights are in the host's memory and its cache is gone; vLLM does that on GPUs (`enable_sleep_mode`) and
    takes the same calls without an effect elsewhere. All wake it as far as they need. Where the model is split among
    processes (not `is_in_process`), each is sent all weights and takes its part.
    """

    def __init__(self, llm_engine: Any, *, is_in_process: bool = True) -> None:
        self._llm_engine, self._is_in_process = llm_engine, is_in_process
        self._asleep: list[str] = []
        """vLLM's tags of what sleeps."""
        llm_engine.apply_model(pack_float32_heads)

    def sleep(self) -> None:
        """Leave the device's memory to others. With no requests in flight."""
        if not self._asleep:
            self._llm_engine.sleep(level=1)  # 2 would drop the weights, which a score or a step that is skipped wants back
            self._asleep = ["weights", "kv_cache"]

    def wake(self, *tags: str) -> None:
        """Take back what sleeps of these, or of all."""
        wanted = [tag for tag in self._asleep if not tags or tag in tags]
        if wanted:
            self._llm_engine.wake_up(tags=wanted)
            self._asleep = [tag for tag in self._asleep if tag not in wanted]

    def replace(self, named_tensors: Iterable[tuple[str, Any]]) -> None:
        """Load these weights and forget cached prefixes."""
        self.wake("weights")
        weights = iter(named_tensors) if self._is_in_process else list(named_tensors)
        self._llm_engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        self._loaded()

    def transfer(self, method: str, arguments: dict[str, Any]) -> None:
        """One of the calls of vLLM's weight transfer, in the order that the trainer's side makes them."""
        if method == "start_weight_update":
            self.wake("weights")
        self._llm_engine.collective_rpc(method, kwargs=arguments)
        if method == "finish_weight_update":
            self._loaded()

    def _loaded(self) -> None:
        """The cache comes back last: until then old and new weights may be in memory."""
        self._llm_engine.apply_model(share_tied_head)
        self._llm_engine.apply_model(pack_float32_heads)
        self.wake()
        self._llm_engine.reset_prefix_cache()
