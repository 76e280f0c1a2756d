"""A reward in a worker process, by whatever way it can be found there: calls that can be killed."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import inspect
import json
import os
import pickle
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from vime.config.run_config import RunConfig
from vime.isolation import IsolatedPool
from vime.plugins import reference as loaded
from vime.plugins.manager import HookFunction, PluginManager
from vime.plugins.reference import HookReference
from vime.rollout.reward_worker import MEMORY_MIB, Outcome, call_arguments, call_in_worker
from vime.sample import Sample
from vime.testing.checks.reward_bench import RewardBench


@dataclass(frozen=True)
class ObjectReference:
    """A plugin class or module at hand, for another process: where it is, and its settings."""

    module: str
    qualname: str
    """Empty for the module itself."""
    name: str
    settings: str
    """As JSON."""


class RewardPlace:
    """Worker processes for one reward. `importable` says whether it can be found there."""

    def __init__(self, reward: RewardBench, *, workers: int) -> None:
        self.reward = reward
        self._workers = workers
        self._reference = _reference(reward)
        self._config = pickle.dumps(reward.config)
        module = getattr(reward.function.function, "__module__", None)
        preload = ["vime.rollout.reward_worker", "vime.plugins.manager", "vime.config.run_config", __name__]
        if module in sys.modules and getattr(sys.modules[module], "__spec__", None) is not None and not module.startswith("vime_file_"):
            preload.append(module)
        self._pool = IsolatedPool(workers, timeout=reward.config.reward_timeout, memory_mib=MEMORY_MIB, preload=preload)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.reward.run(self._wind_up())
        self._pool.close()

    async def _wind_up(self) -> None:
        """Let the plugins in the workers end what they have started, such as processes of their own."""
        await asyncio.gather(*(self._pool.acall(forget_plugins, timeout=5.0) for _ in range(self._workers)), return_exceptions=True)

    @property
    def importable(self) -> bool:
        """Whether another process can load this reward."""
        return self._reference is not None

    async def score(self, sample: Sample) -> Any:
        """What the reward returns for this sample in a worker process.

        Raises what the reward raises, IsolatedTimeout past `reward_timeout`, and IsolatedError where the worker dies.
        """
        group = self.reward.grouped
        payload = pickle.dumps(self.reward.shown(sample))
        answer = await self._pool.acall(call_quietly, self._reference, self._config, payload, group)
        outcome: Outcome = pickle.loads(answer)
        if outcome.error is not None:
            raise outcome.error
        value: Any = outcome.value
        return value[0] if group and isinstance(value, list | tuple) and value else value  # pyright: ignore[reportUnknownVariableType]


def call_quietly(reference: HookReference | ObjectReference, config_bytes: bytes, payload: bytes, group: bool) -> bytes:
    """`call_in_worker`, also for a plugin object that no entry point names; nothing that it prints is shown."""
    _silence()
    if isinstance(reference, HookReference):
        return call_in_worker(reference, config_bytes, payload, group)
    function = _load(reference)
    config: RunConfig = pickle.loads(config_bytes)
    value, error = None, None
    try:
        value = function.call(**call_arguments(config, function, pickle.loads(payload), group))
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
    except Exception as raised:  # noqa: BLE001 - handed over to the caller
        error = raised
    return pickle.dumps(Outcome(value, error, 0.0, []))


@functools.cache
def _silence() -> None:
    """Send what this process and its children write to their terminal nowhere, once."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


@functools.lru_cache(maxsize=1)
def _load(reference: ObjectReference) -> HookFunction:
    target: Any = importlib.import_module(reference.module)
    for part in filter(None, reference.qualname.split(".")):
        target = getattr(target, part)
    manager = PluginManager()
    manager.add(target, name=reference.name, settings=json.loads(reference.settings))
    (function,) = manager.implementations("custom_rm")
    return function


def forget_plugins() -> None:
    """Drop the plugins of this worker, so that their finalizers run."""
    _load.cache_clear()
    loaded._load.cache_clear()  # pyright: ignore[reportPrivateUsage]
    gc.collect()
    time.sleep(0.05)  # the next such call goes to another worker


async def _awaited(value: Any) -> Any:
    return await value


def _reference(reward: RewardBench) -> HookReference | ObjectReference | None:
    """How a worker process finds this reward; None where it cannot."""
    if getattr(reward.function.function, "__module__", None) == "__main__":
        return None
    if reward.function.reference is not None:
        return reward.function.reference
    obj = reward.bench.subject.obj
    settings = json.dumps(dict(reward.bench.subject.settings))
    if inspect.ismodule(obj):
        return ObjectReference(obj.__name__, "", reward.function.plugin, settings)
    qualname: str = getattr(obj, "__qualname__", "<>")
    return None if "<" in qualname else ObjectReference(obj.__module__, qualname, reward.function.plugin, settings)
