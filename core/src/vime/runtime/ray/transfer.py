"""Weights from trainer ranks to engines on GPUs, by vLLM's own transfer: NCCL between devices, CUDA IPC on shared ones.

vLLM does the work (vllm.distributed.weight_transfer). What is here names the weights for it and carries its four calls
to several engines. Runs in the trainer ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import ParamMeta, TrainerInitInfo, TrainerWeightTransferEngine, WeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

Call = Callable[[int, str, Any], Any]
"""(number of the engine, method of vLLM's protocol, argument) -> something that `wait_for` waits for."""


class TrainerSource(WeightSource):
    """The weights of a trainer, gathered as they are iterated: all ranks iterate in step."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._metadata: list[ParamMeta] | None = None

    def metadata(self) -> list[ParamMeta]:
        """Found once, by a pass over the weights that all ranks make."""
        if self._metadata is None:
            self._metadata = [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self._trainer.named_weights()]
        return self._metadata

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self._trainer.named_weights())


@dataclass
class EngineClient:
    """Carries vLLM's calls to every engine (`VLLMWeightSyncClient`); `tp` processes of each take part."""

    engines: int
    tp: int
    call: Call
    wait_for: Callable[[Sequence[Any]], object]
    keep_requests: bool = False
    version: int = 0
    """What the engines are to hold after the next transfer."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """In a common group the engines' processes come one engine after the other, behind the trainer's one."""
        infos = [dict(init_info) for _ in range(self.engines)]
        if "rank_offset" in init_info:
            for engine, info in enumerate(infos):
                info["rank_offset"] = init_info["rank_offset"] + engine * self.tp
        self.wait_for([self.call(engine, "init_weight_transfer_engine", {"init_info": info}) for engine, info in enumerate(infos)])

    def start_weight_update(self) -> None:
        self._on_all("start_weight_update", {"keep_requests": self.keep_requests})

    def update_weights(self, update_info: Any) -> None:
        self._on_all("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._on_all("finish_weight_update", {"version": self.version})

    def _on_all(self, method: str, arguments: dict[str, Any]) -> None:
        self.wait_for([self.call(engine, method, arguments) for engine in range(self.engines)])


def connect(trainer: Any, init_info: TrainerInitInfo, client: EngineClient) -> TrainerWeightTransferEngine[Any]:
    """Meet the engines. Called on every rank; rank 0 sends."""
    return WeightTransferTrainerFactory.trainer_init(init_info, client=client, source=TrainerSource(trainer))


def init_info(backend: str, rank: int, *, address: str, port: int, processes: int) -> TrainerInitInfo:
    """How to meet: at a port of rank 0's node ("nccl", with that many engine processes), or by memory of the same GPUs ("ipc")."""
    if backend == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return IPCTrainerInitInfo(packed=True, rank=rank)  # packed: gathered parameters are gone after their turn
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    return NCCLTrainerInitInfo(master_address=address, master_port=port, world_size=1 + processes, rank=rank)
