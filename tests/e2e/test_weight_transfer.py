"""vLLM's weight transfer, as it runs between GPUs, on the CPU: the same calls, with a way for the bytes that needs no device."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vime.config.run_config import RunConfig

NUM_GPUS = 0

pytestmark = pytest.mark.e2e

BACKEND = "handed_over"


def register_backend() -> type[Any]:
    """A transfer engine for either side that hands the tensors over as they are. Returns how a trainer asks for it."""
    from vllm.distributed.weight_transfer import base, factory
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    @dataclasses.dataclass
    class InitInfo(base.WeightTransferInitInfo):
        rank_offset: int

    @dataclasses.dataclass
    class UpdateInfo(base.WeightTransferUpdateInfo):
        weights: list[tuple[str, Any]]

    class Receiver(base.WeightTransferEngine[InitInfo, UpdateInfo]):
        init_info_cls, update_info_cls = InitInfo, UpdateInfo

        def init_transfer_engine(self, init_info: InitInfo) -> None:
            assert init_info.rank_offset == 1

        def start_weight_update(self) -> None:
            initialize_layerwise_reload(self.model)

        def finish_weight_update(self) -> None:
            finalize_layerwise_reload(self.model, self.model_config)

        def update_weights(self, update_info: dict[str, Any]) -> None:
            self.receive_weights(self.parse_update_info(update_info))

        def receive_weights(self, update_info: UpdateInfo) -> None:
            model: Any = self.model
            model.load_weights(update_info.weights)

        def shutdown(self) -> None:
            pass

    @dataclasses.dataclass
    class TrainerInfo(base.TrainerInitInfo):
        backend = BACKEND

    class Sender(base.TrainerWeightTransferEngine[TrainerInfo]):
        init_info_cls = TrainerInfo

        @classmethod
        def trainer_init(cls, init_info: TrainerInfo, *, client: Any, source: Any = None) -> Sender:
            client.init_weight_transfer_engine({"rank_offset": 1})
            return cls(client=client, source=source, is_sender=init_info.is_sender)

        def send_weights(self) -> None:
            assert self.source is not None
            metadata, weights = self.source.metadata(), list(self.source)
            assert [(meta.name, meta.shape) for meta in metadata] == [(name, tuple(tensor.shape)) for name, tensor in weights]
            self.client.start_weight_update()
            for pair in weights:
                self.client.update_weights({"weights": [pair]})
            self.client.finish_weight_update()

    factory.WeightTransferEngineFactory.register_engine(BACKEND, Receiver)
    factory.WeightTransferTrainerFactory.register_engine(BACKEND, Sender)
    return TrainerInfo


@dataclasses.dataclass
class Setup:
    """An engine, and a model in the place of the trainer."""

    engine: Any
    model: Any
    calls: list[str]
    client: Any
    sender: Any

    def named_weights(self) -> Iterator[tuple[str, Any]]:
        return ((name, tensor.detach()) for name, tensor in self.model.named_parameters())

    def call(self, engine: int, method: str, arguments: dict[str, Any]) -> None:
        self.calls.append(method)
        self.engine.transfer(method, arguments)

    def worst(self) -> float:
        """The largest difference of log-probs between engine and model."""
        import torch

        ids = [3 + (7 * n) % 60 for n in range(40)]
        with torch.no_grad():
            expected = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return max(abs(expected[n, ids[n + 1]].item() - score) for n, score in enumerate(self.engine.score([ids])[0]))

    def change(self) -> None:
        import torch

        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(0.1 * parameter.std().nan_to_num(1.0) * torch.randn_like(parameter))


@pytest.fixture(scope="module")
def setup(model_factory: Callable[[bool], Path]) -> Iterator[Setup]:
    from transformers import AutoModelForCausalLM

    from vime.engine.local import LocalEngine
    from vime.engine.vllm_options import prepare_environment

    prepare_environment()
    info = register_backend()
    from vime.runtime.ray.transfer import EngineClient, connect

    path = str(model_factory(True))
    options = {"weight_transfer_config": {"backend": BACKEND}}
    config = RunConfig(hf_checkpoint=path, rollout_batch_size=2, n_samples_per_prompt=8, num_rollout=1, vllm_engine_args=options)
    engine = LocalEngine(config, path, dtype="float32", deterministic=False, concurrency=16)
    made = Setup(engine, AutoModelForCausalLM.from_pretrained(path), [], None, None)
    made.client = EngineClient(1, 1, made.call, list)
    made.sender = connect(made, info(rank=0), made.client)
    yield made
    engine.close()


def test_the_engine_holds_what_was_sent(setup: Setup) -> None:
    setup.change()
    assert setup.worst() > 1e-2
    setup.client.version = 3
    setup.sender.send_weights()
    assert setup.worst() < 1e-4
    assert setup.engine.weight_version == 3
    count = len(list(setup.named_weights()))
    assert setup.calls == ["init_weight_transfer_engine", "start_weight_update", *["update_weights"] * count, "finish_weight_update"]


def test_an_engine_that_sleeps_wakes_for_it(setup: Setup) -> None:
    setup.engine.sleep()
    setup.change()
    setup.sender.send_weights()
    assert setup.worst() < 1e-4


@pytest.mark.parametrize("keep", [False, True])
def test_requests_in_flight_end_or_go_on_and_those_that_come_meanwhile_wait(setup: Setup, keep: bool) -> None:
    async def run() -> list[Any]:
        ids = setup.engine.tokenizer.encode("1+")
        params = {"temperature": 1.0, "max_new_tokens": 200, "min_new_tokens": 200}
        before = [asyncio.ensure_future(setup.engine.generate(ids, {**params, "seed": seed})) for seed in range(8)]
        await asyncio.sleep(0.1)
        setup.client.keep_requests, setup.client.version = keep, setup.engine.weight_version + 1
        await asyncio.to_thread(setup.call, 0, "start_weight_update", {"keep_requests": keep})
        late = asyncio.ensure_future(setup.engine.generate(ids, {"max_new_tokens": 4}))
        await asyncio.sleep(0.2)
        assert not late.done()
        await asyncio.to_thread(setup.call, 0, "update_weights", {"update_info": {"weights": list(setup.named_weights())}})
        await asyncio.to_thread(setup.call, 0, "finish_weight_update", {"version": setup.client.version})
        return [await late, *await asyncio.gather(*before)]

    setup.change()
    late, *before = asyncio.run(run())
    assert late.weight_version == setup.engine.weight_version
    assert {answer.finish_reason for answer in before} == ({"length"} if keep else {"abort"})
    assert setup.worst() < 1e-4


def test_in_a_common_group_each_engine_has_ranks_of_its_own() -> None:
    from vime.runtime.ray.transfer import EngineClient

    sent: list[tuple[int, Any]] = []
    client = EngineClient(3, 2, lambda engine, method, arguments: sent.append((engine, arguments)), list)
    client.init_weight_transfer_engine({"rank_offset": 1, "world_size": 7})
    assert [(engine, info["init_info"]["rank_offset"]) for engine, info in sent] == [(0, 1), (1, 3), (2, 5)]
    assert all(info["init_info"]["world_size"] == 7 for _, info in sent)


def test_how_trainer_and_engines_meet_on_gpus() -> None:
    from vime.runtime.ray.transfer import init_info

    nccl: Any = init_info("nccl", 1, address="10.0.0.1", port=4711, processes=4)
    assert (nccl.backend, nccl.world_size, nccl.is_sender, nccl.packed) == ("nccl", 5, False, True)
    ipc: Any = init_info("ipc", 0, address="", port=0, processes=4)
    assert (ipc.backend, ipc.is_sender, ipc.packed) == ("ipc", True, True)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
