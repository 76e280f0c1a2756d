"""Engines as Ray actors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime.engine.host import Description, EngineHost
from vime.errors import EngineDeadError
from vime.runtime.ray.actors import Surroundings, settle
from vime.runtime.ray.calls import as_future

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig


@dataclass(frozen=True)
class EngineSettings:
    """All that an engine is made of."""

    config: RunConfig
    model_path: str
    dtype: str
    concurrency: int
    around: Surroundings


class EngineActor:
    """The process of one engine: an `EngineHost` around vLLM.

    Why there is no engine is raised by `describe`: errors of the constructor Ray would report as the death of the actor.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._failure: Exception | None = None
        try:
            self._build(settings)
        except Exception as error:  # noqa: BLE001 - raised by describe
            self._failure = error

    def _build(self, settings: EngineSettings) -> None:
        settle(settings.around, settings.config)
        from vime.engine.local import LocalEngine

        engine = LocalEngine(
            settings.config, settings.model_path, dtype=settings.dtype, deterministic=False, concurrency=settings.concurrency
        )
        self.engine, self.node = engine, settings.around.node
        self.host = EngineHost(engine, unpack_references)

    async def describe(self) -> Description:
        if self._failure is not None:
            raise self._failure
        return Description(os.getpid(), self.node, self.engine.max_model_len, self.engine.weight_version)

    async def call(self, method: str, *args: Any) -> Any:
        return await getattr(self.host, method)(*args)


class EngineActorHandle:
    """The way to an engine in an actor (`EngineHandle`)."""

    def __init__(self, index: int, actor: Any, description: Description) -> None:
        self.index, self.actor = index, actor
        self.description = description
        self.label = f"engine {index} (process {description.pid} on node {description.node})"

    def call(self, method: str, *args: Any) -> Future[Any]:
        return as_future(self.actor.call.remote(method, *args), EngineDeadError)

    def kill(self) -> None:
        import ray

        ray.kill(self.actor)


def put_weights(named_tensors: Iterable[tuple[str, Any]]) -> list[Any]:
    """The weights in the object store: one copy on each node, whatever the number of engines there."""
    import ray

    from vime.train.buckets import pack

    return [ray.put(bucket) for bucket in pack(named_tensors)]


def unpack_references(references: list[Any]) -> Iterator[tuple[str, Any]]:
    """The tensors behind references to buckets, as views of the object store's memory."""
    import ray

    from vime.train.buckets import unpack

    for reference in references:
        yield from unpack(ray.get(reference))
