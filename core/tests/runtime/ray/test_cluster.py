"""A cluster that is not there: said at once, and not after the minutes that Ray tries."""

from __future__ import annotations

import signal
import socket

import pytest

from vime.errors import ConfigError

NUM_GPUS = 0

pytestmark = pytest.mark.ray

pytest.importorskip("ray")


def test_an_address_without_a_cluster_is_refused_before_ray_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from vime.runtime.ray.cluster import Cluster

    def never(**_: object) -> None:
        raise AssertionError("ray.init would try for minutes")

    monkeypatch.setattr(ray, "init", never)
    with socket.socket() as taken:  # bound, and nothing listens
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--ray-address 127\.0\.0\.1:{port}: no cluster answers ") as refused:
            Cluster(f"127.0.0.1:{port}").open(lambda _: None)
    assert refused.value.hint is not None and "ray start --head" in refused.value.hint
    with pytest.raises(ConfigError, match="--ray-address nonsense: Invalid address format: nonsense"):
        Cluster("nonsense").open(lambda _: None)


def test_a_signal_waits_until_ray_is_there() -> None:
    from vime.runtime.ray.cluster import _signals_held

    started: list[str] = []

    def start() -> None:
        with _signals_held():
            signal.raise_signal(signal.SIGINT)
            started.append("Ray")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert started == ["Ray"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
