"""Trainer ranks and engines as Ray actors, where the plan puts them."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vime.engine.pool import EnginePool
from vime.engine.routing import Router
from vime.engine.vllm_options import transfer_backend
from vime.errors import EXIT_FAILED, ConfigError, EngineDeadError
from vime.runtime.build import engine_dtype
from vime.runtime.placement import Needs, keeps_requests
from vime.runtime.ray.actors import Surroundings
from vime.runtime.ray.calls import as_future, signals_as_raised
from vime.runtime.ray.cluster import LOOPBACK, Cluster
from vime.runtime.ray.engines import EngineActor, EngineActorHandle, EngineSettings, put_weights
from vime.runtime.ray.nodes import check_nodes
from vime.runtime.ray.plan import Node, Place, Plan, node_of, plan
from vime.runtime.ray.trainers import LIFE, RankSettings, TrainerGroup, TrainerRank
from vime.train.base import Trainer

PLACE_SECONDS = 60.0
"""Seconds in which a cluster must hand out what it said that it has."""


class RayPlacement:
    """`--runtime ray` (`Placement`)."""

    def __init__(self, address: str | None) -> None:
        self.cluster = Cluster(address)
        self._trainer: TrainerGroup | None = None
        self._engine: EnginePool | None = None
        self._ranks: list[Any] = []
        self._engines: list[Any] = []
        self._group: Any = None
        self._met: list[Any] = []
        """Engines that the ranks are connected with for vLLM's weight transfer."""

    @signals_as_raised()
    def open(self, needs: Needs) -> None:
        self._needs = needs
        with needs.phase("starting Ray" if self.cluster.is_own else f"connecting to Ray at {self.cluster.address}"):
            self.cluster.open(self._lost)
        if not self.cluster.is_own:
            with needs.phase("asking the nodes for their plugins and versions"):
                check_nodes(needs.config, needs.plugins)
        with needs.phase("placing the run"):
            self._plan = plan(needs.config, cluster_nodes(), trainer=needs.trainer, engine=needs.engine)
            self._group = self._reserve(self._plan)
        for node, actors in _by_node(self._plan).items():
            needs.say(f"  {node}: {', '.join(actors)}")
        if needs.trainer:
            self._trainer = self._start_ranks(self._plan.ranks)
        if needs.engine:
            self._engines = [self._start_engine_actor(index) for index in range(len(self._plan.engines))]

    def _lost(self, what: str) -> None:
        """Ray itself is gone: nothing can be asked of anyone, so that the process ends here, with all that belongs to it."""
        message = f"error: {what} has died: the run ends here\n  hint: go on from the last checkpoint: --load auto\n"
        os.write(sys.stderr.fileno(), message.encode())
        self.cluster.end_all()
        os._exit(EXIT_FAILED)

    def _reserve(self, made: Plan) -> Any:
        import ray
        from ray.util.placement_group import placement_group

        group = placement_group(made.bundles, strategy=made.strategy)
        ready, _ = ray.wait([group.ready()], timeout=PLACE_SECONDS)
        if not ready:
            raise ConfigError(
                f"Ray has not handed out {made.bundles} in {PLACE_SECONDS:g} s: something else holds it",
                hint="wait for other runs of the cluster, or ask for less: vime doctor shows what is there",
            )
        return group

    def _options(self, place: Place) -> dict[str, Any]:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        environment = {"OMP_NUM_THREADS": str(place.threads), "OMP_WAIT_POLICY": "PASSIVE"}
        if self.cluster.is_own:
            environment |= {"GLOO_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": LOOPBACK}
        return {
            "num_cpus": place.cpus,
            "num_gpus": place.gpus,
            "runtime_env": {"env_vars": environment},
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=place.bundle),
        }

    # --- the trainer ------------------------------------------------------------------------------------------------

    def _start_ranks(self, places: Sequence[Place]) -> TrainerGroup:
        import ray

        needs, all_settings, on_node = self._needs, [], dict[str, int]()
        rendezvous = self._rendezvous(places)
        for rank, place in enumerate(places):
            local_rank = on_node.setdefault(place.node, 0)
            on_node[place.node] += 1
            around = self._around(f"trainer-rank-{rank}", place)
            settings = RankSettings(needs.config, needs.model_path, rank, len(places), local_rank, rendezvous, around)
            remote: Any = ray.remote
            actor = remote(concurrency_groups={LIFE: 1})(TrainerRank)
            self._ranks.append(actor.options(**self._options(place)).remote(settings))
            all_settings.append(settings)
        return TrainerGroup(self._ranks, all_settings, needs.warn, needs.plugins.times)

    def _around(self, name: str, place: Place) -> Surroundings:
        return Surroundings(name, place.node, self._needs.plugins.lock(), str(self._needs.logs.absolute()), str(Path.cwd()))

    def _rendezvous(self, places: Sequence[Place]) -> str:
        """On one node a file, which opens no port; between nodes a port of the first rank's."""
        nodes = {place.node for place in places}
        if len(nodes) == 1:
            return (self.cluster.make_folder() / "store").as_uri()
        return _free_port(places[0].node)

    @signals_as_raised()
    def start_trainer(self) -> Trainer:
        assert self._trainer is not None, "open has placed it"
        self._trainer.wait()
        return self._trainer

    # --- the engines ------------------------------------------------------------------------------------------------

    def _start_engine_actor(self, index: int) -> Any:
        import ray

        needs, place = self._needs, self._plan.engines[index]
        dtype = engine_dtype(needs.config, needs.model_path, on_cpu=not place.gpus and not place.shares)
        around = self._around(f"engine-{index}", place)
        settings = EngineSettings(needs.config, needs.model_path, dtype, needs.concurrency, around)
        options = self._options(place)
        if place.shares and self._ranks:
            devices = ray.get([self._ranks[rank].devices.options(concurrency_group=LIFE).remote() for rank in place.shares])
            options["runtime_env"]["env_vars"]["CUDA_VISIBLE_DEVICES"] = ",".join(itertools.chain.from_iterable(devices))
        return ray.remote(EngineActor).options(**options).remote(settings)

    def _described(self, index: int, actor: Any) -> EngineActorHandle:
        import ray

        found = as_future(actor.describe.remote(), lambda cause: EngineDeadError(f"engine {index} {cause}"))
        try:
            return EngineActorHandle(index, actor, found.result())
        except Exception:
            ray.kill(actor)  # one that has no engine keeps its place otherwise
            raise

    @signals_as_raised()
    def start_engine(self) -> EnginePool:
        from transformers import AutoTokenizer

        config = self._needs.config
        handles = [self._described(index, actor) for index, actor in enumerate(self._engines)]
        group_tokens = config.n_samples_per_prompt * (config.rollout_max_response_len + (config.rollout_max_prompt_len or 512))
        self._engine = EnginePool(
            handles,
            start=lambda index: self._described(index, self._start_engine_actor(index)),
            put=put_weights,
            tokenizer=AutoTokenizer.from_pretrained(self._needs.model_path),
            max_model_len=min(handle.description.max_model_len for handle in handles),
            router=Router(slack=group_tokens),
            max_restarts=config.max_engine_restarts,
            engine_timeout=config.engine_timeout,
            sync_timeout=config.sync_timeout,
            say=self._needs.warn,
        )
        return self._engine

    def before_training(self) -> None:
        if self._plan.colocated and self._engine is not None:
            self._engine.sleep()

    def push_weights(self, version: int) -> None:
        assert self._trainer is not None and self._engine is not None, "a run that syncs has both"
        keep = keeps_requests(self._needs.config)
        if any(place.gpus for place in self._plan.ranks):
            self._engine.update_by(lambda handles: self._send(handles, version, keep), self._trainer.publish, version)
        else:
            self._engine.update_packed(self._trainer.publish(), version, keep_requests=keep)

    def _send(self, handles: Sequence[Any], version: int, keep_requests: bool) -> None:
        """From GPU to GPU, by vLLM's weight transfer. Engines that are new since the last time are met first."""
        assert self._trainer is not None, "a run that syncs has one"
        actors, backend = [handle.actor for handle in handles], transfer_backend(self._needs.config)
        if actors != self._met:
            address = urlsplit(_free_port(self._plan.ranks[0].node))
            self._trainer.connect_engines(str(backend), actors, str(address.hostname), int(address.port or 0))
            self._met = actors
        self._trainer.send_weights(version, keep_requests)

    def close(self) -> None:
        self.cluster.close()


def _by_node(made: Plan) -> dict[str, list[str]]:
    """The actors of a plan by the node that they are on. Example: {"a": ["trainer ranks 0, 1", "engine 0"]}."""
    nodes: dict[str, list[str]] = {}
    for what, places in (("trainer rank", made.ranks), ("engine", made.engines)):
        for node in dict.fromkeys(place.node for place in places):
            numbers = [str(number) for number, place in enumerate(places) if place.node == node]
            nodes.setdefault(node, []).append(f"{what}{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}")
    return nodes


def cluster_nodes() -> list[Node]:
    """What the nodes of the cluster have, as Ray says."""
    import ray

    return [node_of(node) for node in ray.nodes() if node["Alive"]]


def _free_port(name: str) -> str:
    """An address on that node that nothing listens on now, as a torch.distributed init method."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = next(found for found in ray.nodes() if found["Alive"] and node_of(found).name == name)
    address = node["NodeManagerAddress"]

    def free() -> int:
        import socket

        with socket.socket() as probe:
            probe.bind((address, 0))
            return probe.getsockname()[1]

    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    return f"tcp://{address}:{ray.get(ray.remote(num_cpus=0)(free).options(scheduling_strategy=there).remote())}"
