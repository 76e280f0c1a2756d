"""What a configuration would place where: trainer ranks and engines on the machines that there are. Imports nothing heavy.

Ray carries a plan out as one placement group. On GPUs a bundle is what has to stay together (a rank; an engine; under
--colocate an engine with the ranks whose GPUs it shares), on CPUs it is all that a machine gets, since there the actors
share the cores. Among machines that are alike Ray has the last word on which one takes which bundle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime.errors import ConfigError

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig

GIB = 1024**3


@dataclass(frozen=True)
class Node:
    """A machine and what it offers."""

    name: str
    cpus: float
    gpus: int = 0
    memory_gib: float = 0.0
    devices: str | None = None
    """Name of its GPUs. Example: "H200"."""


@dataclass(frozen=True)
class Place:
    """Where one actor goes, and what it gets there."""

    bundle: int
    """Index of the placement group's bundle."""
    node: str
    cpus: float
    """What Ray is asked for (num_cpus), a fraction where actors share cores."""
    gpus: float
    """What Ray is asked for (num_gpus): 0 on CPUs, and for an engine that uses the GPUs of `shares`."""
    threads: int
    """OpenMP threads of each of its processes."""
    shares: tuple[int, ...] = ()
    """Under --colocate on GPUs: the ranks whose devices this engine uses. They hold them; the engine, to which Ray gives none, is told
    their ids. A fraction for each would not do: Ray puts two ranks of half a GPU on one, and knows no engine of 2 halves on two."""


@dataclass(frozen=True)
class Plan:
    """The bundles of the placement group, and each actor's place in them, in the order of ranks and of engines."""

    bundles: list[dict[str, float]]
    strategy: str
    ranks: list[Place]
    engines: list[Place]
    colocated: bool
    """Whether engines and ranks use the same devices, in turns."""

    @property
    def needs(self) -> dict[str, float]:
        """CPUs and GPUs of all bundles together."""
        return {kind: round(sum(bundle.get(kind, 0.0) for bundle in self.bundles), 4) for kind in ("CPU", "GPU")}


def node_of(entry: Mapping[str, Any]) -> Node:
    """A machine out of an entry of `ray.nodes()`."""
    resources: Mapping[str, float] = entry.get("Resources", {})
    kinds = [key.partition(":")[2] for key in resources if key.startswith("accelerator_type:")]
    return Node(
        name=entry.get("NodeName") or entry["NodeManagerAddress"],
        cpus=resources.get("CPU", 0.0),
        gpus=int(resources.get("GPU", 0)),
        memory_gib=resources.get("memory", 0.0) / GIB,
        devices=kinds[0] if kinds else None,
    )


def plan(config: RunConfig, nodes: Sequence[Node], *, trainer: bool | None = None, engine: bool | None = None) -> Plan:
    """Place the ranks and engines of `config` on `nodes`; on their GPUs where any has one.

    `trainer` and `engine` say whether the run has one; without them the debug modes do. Raises ConfigError for what does
    not fit, with the numbers.
    """
    has_trainer = not config.debug_rollout_only if trainer is None else trainer
    has_engine = not config.debug_train_only if engine is None else engine
    ranks = config.trainer_ranks if has_trainer else 0
    engines = config.engines if has_engine else 0
    if any(node.gpus for node in nodes):
        return _on_gpus(config, [node for node in nodes if node.gpus], ranks, engines)
    usable = [node for node in nodes if node.cpus > 0]
    if not usable:
        names = ", ".join(node.name for node in nodes)
        raise ConfigError(
            f"the cluster offers neither CPUs nor GPUs ({len(nodes)} nodes{': ' + names if names else ''})",
            hint="start Ray on a machine with --num-cpus above 0, or leave --ray-address out to use this one",
        )
    return _on_cpus(config, usable, ranks, engines)


def _on_cpus(config: RunConfig, nodes: Sequence[Node], ranks: int, engines: int) -> Plan:
    """Spread both kinds of actors over the machines by their cores; where they take turns (sync), each kind for itself."""
    turns = config.pipeline == "sync"
    tp = config.engine_tp
    cpus = [node.cpus for node in nodes]
    n_ranks = _spread(cpus, [0] * len(nodes), ranks, 1)
    n_engines = _spread(cpus, [0] * len(nodes) if turns else n_ranks, engines, tp)
    bundles: list[dict[str, float]] = []
    rank_places: list[Place] = []
    engine_places: list[Place] = []
    for node, n, m in zip(nodes, n_ranks, n_engines, strict=True):
        if not n + m:
            continue
        processes = n + m * tp
        share = _whole_above_one(node.cpus / processes)
        rank = Place(len(bundles), node.name, share, 0.0, _threads(node.cpus, n if turns else processes))
        engine = Place(len(bundles), node.name, _whole_above_one(share * tp), 0.0, _threads(node.cpus, m * tp if turns else processes))
        bundles.append({"CPU": round(rank.cpus * n + engine.cpus * m, 4)})
        rank_places += [rank] * n
        engine_places += [engine] * m
    return Plan(bundles, "PACK" if len(bundles) == 1 else "STRICT_SPREAD", rank_places, engine_places, config.colocate)


def _spread(cpus: Sequence[float], busy: Sequence[int], actors: int, processes: int) -> list[int]:
    """How many of `actors` each machine gets: one after the other goes where its processes have the most cores for themselves."""
    counts = [0] * len(cpus)
    for _ in range(actors):
        rooms = [have / (taken + (count + 1) * processes) for have, taken, count in zip(cpus, busy, counts, strict=True)]
        counts[rooms.index(max(rooms))] += 1
    return counts


def _threads(cpus: float, processes: int) -> int:
    return max(1, int(cpus // processes)) if processes else 1


def _whole_above_one(amount: float) -> float:
    """Rounded down to what Ray takes: ten-thousandths, and above 1 whole numbers."""
    return float(int(amount)) if amount > 1 else math.floor(amount * 10_000 + 1e-6) / 10_000


def _on_gpus(config: RunConfig, nodes: Sequence[Node], ranks: int, engines: int) -> Plan:
    _refuse_too_few(config, nodes, ranks, engines)
    shared = config.colocate and ranks > 0 and engines > 0
    tp = config.engine_tp
    free = [node.gpus for node in nodes]
    engine_nodes = [_take(free, tp) for _ in range(engines)]
    if None in engine_nodes:
        placed = engine_nodes.index(None)
        raise ConfigError(
            f"an engine's GPUs have to be on one node: {engines} engines x {tp} GPUs do not fit, "
            f"{'none has' if not placed else f'after {placed} of them no node has'} {tp} free ({_gpus_by_node(nodes)})",
            hint=f"choose an --engine-tp that divides the {max(node.gpus for node in nodes)} GPUs of a node, or fewer --engines",
        )
    homes = [index for index in engine_nodes if index is not None]
    rank_nodes = [index for index in homes for _ in range(tp)] if shared else [_first(_take(free, 1)) for _ in range(ranks)]
    rank_nodes.sort()
    return _gpu_bundles(nodes, rank_nodes, sorted(homes), tp, shared)


def _take(free: list[int], gpus: int) -> int | None:
    """The first machine with that many free GPUs, which it then has less."""
    for index, have in enumerate(free):
        if have >= gpus:
            free[index] -= gpus
            return index
    return None


def _first(index: int | None) -> int:
    assert index is not None, "the total was checked, and a rank fits where one GPU is free"
    return index


def _gpu_bundles(nodes: Sequence[Node], rank_nodes: list[int], engine_nodes: list[int], tp: int, shared: bool) -> Plan:
    """A bundle for each engine, and each rank that shares none's GPUs. `rank_nodes` and `engine_nodes` are indices into `nodes`."""
    bundles: list[dict[str, float]] = []
    rank_places: list[Place] = []
    engine_places: list[Place] = []
    crowd = [rank_nodes.count(index) + engine_nodes.count(index) for index in range(len(nodes))]
    cpus = [_whole_above_one(min(1.0, node.cpus / max(1, actors))) for node, actors in zip(nodes, crowd, strict=True)]
    for home in engine_nodes:
        name, threads = nodes[home].name, _threads(nodes[home].cpus, crowd[home])
        bundle, first = len(bundles), len(rank_places)
        sharers = range(first, first + tp) if shared else range(0)
        rank_places += [Place(bundle, name, cpus[home], 1.0, threads) for _ in sharers]
        engine_places.append(Place(bundle, name, cpus[home], 0.0 if shared else float(tp), threads, tuple(sharers)))
        bundles.append({"GPU": float(tp), "CPU": round(cpus[home] * (1 + len(sharers)), 4)})
    for home in [] if shared else rank_nodes:
        rank_places.append(Place(len(bundles), nodes[home].name, cpus[home], 1.0, _threads(nodes[home].cpus, crowd[home])))
        bundles.append({"GPU": 1.0, "CPU": cpus[home]})
    return Plan(bundles, "PACK", rank_places, engine_places, shared)


def _refuse_too_few(config: RunConfig, nodes: Sequence[Node], ranks: int, engines: int) -> None:
    """Raise ConfigError where the GPUs are fewer than the run needs, or ranks and engines cannot share them."""
    tp, have = config.engine_tp, sum(node.gpus for node in nodes)
    of_engines = f"{_counted(engines, 'engine')} x {tp}"
    if config.colocate and ranks and engines and ranks != engines * tp:
        raise ConfigError(
            f"--colocate puts a rank on each GPU of the engines: {_counted(ranks, 'rank')} are not {of_engines} = {engines * tp}",
            hint=f"set --trainer-ranks {engines * tp}, or leave --colocate out",
        )
    largest = max(node.gpus for node in nodes)
    if engines and tp > largest:
        raise ConfigError(
            f"an engine's GPUs have to be on one node: --engine-tp is {tp}, the largest node has {largest} ({_gpus_by_node(nodes)})",
            hint=f"set --engine-tp to {largest} or less",
        )
    shared = config.colocate and ranks > 0 and engines > 0
    needs = ranks if shared else ranks + engines * tp
    if needs <= have:
        return
    parts = [*([_counted(ranks, "rank")] if ranks else []), *([of_engines] if engines else [])]
    hints = ["fewer --trainer-ranks or --engines, or more machines in the cluster"]
    if not shared and ranks == engines * tp <= have:
        hints.insert(0, f"--colocate needs {ranks}")
    raise ConfigError(
        f"needs {needs} GPUs ({'the same for ' if shared else ''}{' + '.join(parts)}), the cluster has {have} ({_gpus_by_node(nodes)})",
        hint="; or ".join(hints),
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _gpus_by_node(nodes: Sequence[Node]) -> str:
    return ", ".join(f"{node.name}: {node.gpus}" for node in nodes)
