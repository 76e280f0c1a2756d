"""Which way the weights take from the ranks to the engines, and when engines sleep. Nothing is started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vime.config.run_config import RunConfig
from vime.runtime.ray import placement as placement_module
from vime.runtime.ray.placement import RayPlacement
from vime.runtime.ray.plan import Node, plan

NUM_GPUS = 0


class Recorder:
    """Takes the place of the trainer's ranks and of the pool, and remembers what they were asked, in order."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.handles = [SimpleNamespace(actor=f"actor {number}") for number in range(2)]

    def publish(self) -> list[str]:
        return ["weights"]

    def connect_engines(self, *args: Any) -> None:
        self.calls.append(("connect", *args))

    def send_weights(self, version: int, keep_requests: bool) -> None:
        self.calls.append(("send", version, keep_requests))

    def sleep(self) -> None:
        self.calls.append("sleep")

    def update_packed(self, weights: Any, version: int, *, keep_requests: bool) -> None:
        self.calls.append(("packed", weights, version, keep_requests))

    def update_by(self, send: Any, renew: Any, version: int) -> None:
        assert renew() == ["weights"]
        send(self.handles)
        self.calls.append(("acknowledged", version))


def placed(monkeypatch: pytest.MonkeyPatch, *, gpus: int, **options: Any) -> tuple[RayPlacement, Recorder]:
    monkeypatch.setattr(placement_module, "_free_port", lambda name: f"tcp://{name}:4711")
    config = RunConfig(hf_checkpoint="m", num_rollout=1, rollout_batch_size=2, n_samples_per_prompt=2, runtime="ray", **options)
    made, recorder = RayPlacement(None), Recorder()
    parts: dict[str, Any] = {
        "_needs": SimpleNamespace(config=config),
        "_plan": plan(config, [Node("host", 8.0, gpus)], trainer=True, engine=True),
        "_trainer": recorder,
        "_engine": recorder,
    }
    for name, part in parts.items():
        monkeypatch.setattr(made, name, part, raising=False)
    return made, recorder


def test_on_cpus_they_go_through_the_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    placement, recorder = placed(monkeypatch, gpus=0, engines=2)
    placement.push_weights(3)
    assert recorder.calls == [("packed", ["weights"], 3, False)]


@pytest.mark.parametrize(
    ("options", "backend"), [({"engines": 2, "trainer_ranks": 2}, "nccl"), ({"engines": 2, "trainer_ranks": 2, "colocate": True}, "ipc")]
)
def test_on_gpus_by_vllms_transfer_to_engines_that_were_met_once(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], backend: str
) -> None:
    placement, recorder = placed(monkeypatch, gpus=4, **options)
    placement.push_weights(3)
    placement.push_weights(4)
    assert recorder.calls == [
        ("connect", backend, ["actor 0", "actor 1"], "host", 4711),
        ("send", 3, False),
        ("acknowledged", 3),
        ("send", 4, False),
        ("acknowledged", 4),
    ]
    recorder.calls.clear()
    recorder.handles[1] = SimpleNamespace(actor="a new one")
    placement.push_weights(5)
    assert recorder.calls[:2] == [("connect", backend, ["actor 0", "a new one"], "host", 4711), ("send", 5, False)]


def test_requests_stay_in_flight_where_generation_never_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    placement, recorder = placed(monkeypatch, gpus=0, pipeline="continuous")
    placement.push_weights(3)
    assert recorder.calls == [("packed", ["weights"], 3, True)]


@pytest.mark.parametrize("gpus", [0, 2])
def test_engines_sleep_before_the_trainer_works_where_they_share_devices(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    placement, recorder = placed(monkeypatch, gpus=gpus, colocate=True)
    placement.before_training()
    assert recorder.calls == ["sleep"]


def test_engines_with_devices_of_their_own_stay_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    placement, recorder = placed(monkeypatch, gpus=2)
    placement.before_training()
    assert recorder.calls == []


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
