"""A group of ranks: whose error the run sees, who is named when one is lost, and what comes back. The ranks here train nothing."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from vime.errors import ConfigError, TrainerError
from vime.plugins.function import HookTimes

NUM_GPUS = 0

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

ray: Any = pytest.importorskip("ray")
torch: Any = pytest.importorskip("torch")


class Rank:
    """Does what `begin` is given for it: a list with an entry for each rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def start(self) -> Any:
        from vime.runtime.ray.trainers import RankDescription

        return RankDescription(os.getpid(), 100, 64, False, 1e-3, [f"a warning of rank {self.rank}"])

    def ping(self) -> None:
        pass

    def begin(self, batch: Any) -> Any:
        deed = batch.deeds[self.rank]
        if isinstance(deed, Exception):
            raise deed
        if deed == "die":
            time.sleep(0.5)  # the others notice before Ray does
            os.kill(os.getpid(), signal.SIGKILL)
        if deed == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if deed == "wait":
            time.sleep(600)
        if deed == "work":
            time.sleep(25)
            return trained()
        return deed


@pytest.fixture(scope="module")
def cluster():
    from ray._private.runtime_env import uv_runtime_env_hook

    from vime.runtime.ray.cluster import Cluster

    with pytest.MonkeyPatch.context() as patch:  # as if `uv run` had started this process: workers must not be started by it too
        patch.setattr(uv_runtime_env_hook, "_get_uv_run_cmdline", lambda: ["uv", "run", "nothing"])
        yield from a_cluster(Cluster(None))


def a_cluster(cluster):
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the actors cannot import this file
    cluster.open(lambda what: None)
    yield cluster
    cluster.close()


@pytest.fixture
def make_group(cluster):
    from vime.runtime.ray.trainers import LIFE, TrainerGroup

    groups: list[Any] = []

    def make(ranks: int = 2, timeout: float = 100.0) -> Any:
        actor = ray.remote(concurrency_groups={LIFE: 1})(Rank).options(num_cpus=0)
        config = SimpleNamespace(trainer_timeout=timeout)
        settings: Any = [
            SimpleNamespace(rank=rank, config=config, around=SimpleNamespace(node="here", name=f"trainer-rank-{rank}", logs="logs"))
            for rank in range(ranks)
        ]
        warned: list[str] = []
        group = TrainerGroup([actor.remote(rank) for rank in range(ranks)], settings, warned.append, HookTimes())
        group.wait()
        assert warned == ["a warning of rank 0"], "the ranks say the same: once is enough"
        groups.append(group)
        return group

    yield make
    for group in groups:
        group.close()


def trained(rows: list[Any] | None = None, seen: dict[int, Any] | None = None, **changes: Any) -> Any:
    from vime.runtime.ray.trainers import Trained

    values = {"metrics": {"loss": 1.0}, "weight_version": 3, "applied_steps": 4, "hook_milliseconds": {}}
    return Trained(rows=rows or [], seen=seen or {}, **(values | changes))


def batch_of(*deeds: Any) -> Any:
    return SimpleNamespace(deeds=list(deeds), tokens=[[1, 2, 3], [4, 5], [6, 7]], rows=[])


def failure(group: Any, *deeds: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        group.train(batch_of(*deeds))
    return caught.value


def all_are_gone(group: Any) -> bool:
    for actor in group._actors:
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(actor.start.remote(), timeout=60)
    return True


def test_rows_are_put_together_from_what_each_rank_saw(make_group):
    from vime.train.microbatch import Row

    def row(index: int, seen: Any = None) -> Row:
        return Row([], [1], index, True, torch.tensor([0.5 * index]), seen_log_probs_M=seen)

    group = make_group()
    batch = batch_of(
        trained([row(0, torch.tensor([-1.0])), row(1), row(2)], hook_milliseconds={"a/policy_loss_ms": 2.0}),
        trained(seen={1: torch.tensor([-2.0])}, hook_milliseconds={"a/policy_loss_ms": 5.0}),
    )
    assert group.train(batch) == {"loss": 1.0}
    assert (group.weight_version, group.applied_steps) == (3, 4)
    assert [found.tokens for found in batch.rows] == batch.tokens
    assert [found.seen_log_probs_M for found in batch.rows] == [torch.tensor([-1.0]), torch.tensor([-2.0]), None]
    assert group._times.take() == {"a/policy_loss_ms": 5.0}


def test_an_error_of_one_rank_ends_those_that_wait_for_it(make_group):
    group = make_group()
    error = failure(group, "wait", ConfigError("no such loss", hint="another"))
    assert isinstance(error, ConfigError) and str(error) == "no such loss\n  hint: another"
    assert all_are_gone(group)


def test_a_lost_rank_is_named_though_another_complained_first(make_group):
    group = make_group()
    pid = ray.get(group._actors[1].start.remote()).pid
    error = failure(group, RuntimeError("Connection closed by peer"), "die")
    assert isinstance(error, TrainerError)
    assert error.message == (
        f"trainer rank 1 (process {pid} on node here) has died (killed, out of memory, or crashed); the other ranks were ended"
    )
    assert error.hint == "go on from the last checkpoint: --load auto; its last words: logs/trainer-rank-1.log"


def test_a_complaint_without_a_loss_is_the_error(make_group):
    error = failure(make_group(), RuntimeError("shapes do not match"), trained())
    assert type(error) is RuntimeError and str(error) == "shapes do not match"
    assert error.__notes__[0].startswith("raised at ray/test_trainers.py:")


def test_a_rank_that_hangs_is_named_where_another_waited_in_vain(make_group):
    error = failure(make_group(), RuntimeError("timed out waiting for a peer"), "stop")
    assert isinstance(error, TrainerError)
    assert error.message.startswith("trainer rank 1 (process ") and error.message.endswith("hangs: no sign of life; all ranks were ended")


def test_a_rank_that_hangs_is_named_where_all_wait(make_group):
    error = failure(make_group(ranks=3, timeout=20.0), "wait", "stop", "stop")
    assert isinstance(error, TrainerError)
    assert error.message.startswith("trainer rank 1 (process ") and " and trainer rank 2 (process " in error.message


def test_a_rank_that_works_for_long_does_not_hang(make_group):
    group = make_group(timeout=20.0)
    assert group.train(batch_of("work", trained())) == {"loss": 1.0}


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
