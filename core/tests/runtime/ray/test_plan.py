"""What a configuration would place where: counts, devices, threads, and the numbers in a refusal."""

import pytest

from vime.config.run_config import RunConfig
from vime.errors import ConfigError
from vime.runtime.ray.plan import Node, node_of, plan

NUM_GPUS = 0

SMALL = Node("here", cpus=2, memory_gib=24)
BOX = Node("box", cpus=64, gpus=8, memory_gib=1000, devices="H200")


def config(**values):
    return RunConfig(runtime="ray", **values)


@pytest.mark.parametrize(
    ("ranks", "engines", "cpus", "rank_threads", "engine_threads"),
    [(1, 1, 1.0, 2, 2), (2, 2, 0.5, 1, 1), (2, 1, 0.6666, 1, 2), (3, 4, 0.2857, 1, 1)],
)
def test_actors_on_cpus_share_the_cores(ranks, engines, cpus, rank_threads, engine_threads):
    placed = plan(config(trainer_ranks=ranks, engines=engines), [SMALL])
    assert [(place.bundle, place.node, place.cpus, place.gpus, place.threads) for place in placed.ranks] == [
        (0, "here", cpus, 0.0, rank_threads)
    ] * ranks
    assert [(place.cpus, place.threads) for place in placed.engines] == [(cpus, engine_threads)] * engines
    assert placed.bundles == [{"CPU": pytest.approx(cpus * (ranks + engines), abs=1e-9)}]
    assert placed.needs["CPU"] <= 2 and placed.needs["GPU"] == 0
    assert placed.strategy == "PACK"


@pytest.mark.parametrize("pipeline", ["async", "continuous"])
def test_where_both_kinds_work_at_once_they_divide_the_threads(pipeline):
    placed = plan(config(trainer_ranks=2, engines=2, pipeline=pipeline), [Node("here", cpus=9)])
    assert {place.threads for place in placed.ranks + placed.engines} == {2}
    assert {place.threads for place in plan(config(trainer_ranks=2, engines=2), [Node("here", cpus=9)]).ranks} == {4}


def test_an_engine_over_several_processes_has_cores_for_each():
    placed = plan(config(trainer_ranks=2, engines=1, engine_tp=2, pipeline="async"), [Node("here", cpus=8)])
    assert [(place.cpus, place.threads) for place in placed.ranks] == [(2.0, 2)] * 2
    assert [(place.cpus, place.threads) for place in placed.engines] == [(4.0, 2)]
    assert plan(config(engine_tp=2), [Node("here", cpus=8)]).engines[0].threads == 4, "all cores, when it is its turn"


def test_several_machines_without_gpus_share_the_work_by_their_cores():
    placed = plan(config(trainer_ranks=3, engines=2), [Node("big", cpus=8), Node("none", cpus=0), Node("small", cpus=4)])
    assert [(place.bundle, place.node, place.threads) for place in placed.ranks] == [(0, "big", 4), (0, "big", 4), (1, "small", 4)]
    assert [(place.bundle, place.node, place.threads) for place in placed.engines] == [(0, "big", 4), (0, "big", 4)]
    assert placed.bundles == [{"CPU": 8.0}, {"CPU": 4.0}] and placed.strategy == "STRICT_SPREAD"


def test_what_works_at_once_is_spread_together():
    placed = plan(config(trainer_ranks=1, engines=1, pipeline="async"), [Node("a", cpus=4), Node("b", cpus=4)])
    assert [place.node for place in placed.ranks + placed.engines] == ["a", "b"]


def test_gpus_go_to_ranks_and_engines_each_its_own():
    placed = plan(config(trainer_ranks=4, engines=2, engine_tp=2), [Node("head", cpus=8), BOX])
    assert placed.bundles == [{"GPU": 2.0, "CPU": 1.0}] * 2 + [{"GPU": 1.0, "CPU": 1.0}] * 4
    assert [(place.bundle, place.node, place.gpus, place.threads) for place in placed.engines] == [(0, "box", 2.0, 10), (1, "box", 2.0, 10)]
    assert [(place.bundle, place.gpus, place.shares) for place in placed.ranks] == [(index, 1.0, ()) for index in (2, 3, 4, 5)]
    assert placed.needs == {"CPU": 6.0, "GPU": 8.0} and not placed.colocated


def test_the_gpus_of_an_engine_are_on_one_node_and_ranks_take_what_is_left():
    nodes = [Node("a", cpus=16, gpus=3), Node("b", cpus=2, gpus=3)]
    placed = plan(config(trainer_ranks=2, engines=2, engine_tp=2), nodes)
    assert [place.node for place in placed.engines] == ["a", "b"]
    assert [(place.node, place.threads) for place in placed.ranks] == [("a", 8), ("b", 1)]
    with pytest.raises(ConfigError, match=r"3 engines x 2 GPUs do not fit, after 2 of them no node has 2 free \(a: 3, b: 3\)"):
        plan(config(engines=3, engine_tp=2), nodes, trainer=False)


def test_colocated_engines_use_the_gpus_of_their_ranks():
    placed = plan(config(trainer_ranks=8, engines=4, engine_tp=2, colocate=True), [Node("a", cpus=4, gpus=4), Node("b", cpus=4, gpus=4)])
    assert placed.colocated and placed.needs["GPU"] == 8
    assert [engine.shares for engine in placed.engines] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    for engine in placed.engines:
        assert {placed.ranks[rank].bundle for rank in engine.shares} == {engine.bundle} and engine.gpus == 0
        assert {placed.ranks[rank].gpus for rank in engine.shares} == {1.0}
    assert {place.cpus for place in placed.ranks} == {0.6666}, "6 actors on 4 CPUs"
    assert [engine.node for engine in placed.engines] == ["a", "a", "b", "b"]


def test_a_refusal_has_the_numbers_and_the_fix():
    six = [Node("a", cpus=8, gpus=6)]
    with pytest.raises(ConfigError) as caught:
        plan(config(trainer_ranks=4, engines=2, engine_tp=2), six)
    assert caught.value.message == "needs 8 GPUs (4 ranks + 2 engines x 2), the cluster has 6 (a: 6)"
    assert caught.value.hint.startswith("--colocate needs 4")
    with pytest.raises(ConfigError) as caught:
        plan(config(trainer_ranks=7, engines=1), six)
    assert "needs 8 GPUs (7 ranks + 1 engine x 1)" in caught.value.message and "--colocate" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"needs 8 GPUs \(the same for 8 ranks \+ 4 engines x 2\), the cluster has 6"):
        plan(config(trainer_ranks=8, engines=4, engine_tp=2, colocate=True), six)
    with pytest.raises(ConfigError, match=r"3 ranks are not 2 engines x 2 = 4") as caught:
        plan(config(trainer_ranks=3, engines=2, engine_tp=2, colocate=True), six)
    assert "--trainer-ranks 4" in str(caught.value)
    with pytest.raises(ConfigError, match=r"--engine-tp is 8, the largest node has 6 \(a: 6\)"):
        plan(config(engine_tp=8), six)


def test_a_cluster_without_anything_to_run_on_is_refused():
    with pytest.raises(ConfigError, match="neither CPUs nor GPUs"):
        plan(config(), [Node("head", cpus=0)])
    with pytest.raises(ConfigError, match="0 nodes"):
        plan(config(), [])


def test_the_debug_modes_need_one_kind_only():
    placed = plan(config(trainer_ranks=4, engines=2, debug_rollout_only=True), [Node("a", cpus=8, gpus=2)])
    assert placed.ranks == [] and len(placed.engines) == 2 and placed.needs["GPU"] == 2
    placed = plan(config(engines=4, load_debug_rollout_data="debug/{rollout_id}.parquet"), [SMALL])
    assert placed.engines == [] and placed.ranks[0].threads == 2 and placed.bundles == [{"CPU": 2.0}]


def test_a_node_of_ray():
    entry = {
        "NodeManagerAddress": "10.0.0.1",
        "NodeName": "10.0.0.1",
        "Resources": {"CPU": 16.0, "GPU": 2.0, "memory": 8.0 * 1024**3, "accelerator_type:H200": 1.0, "node:10.0.0.1": 1.0},
    }
    assert node_of(entry) == Node("10.0.0.1", cpus=16.0, gpus=2, memory_gib=8.0, devices="H200")
    assert node_of({"NodeManagerAddress": "10.0.0.2"}) == Node("10.0.0.2", cpus=0.0)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
