"""Where reward functions run: asynchronous ones on the event loop, synchronous ones in worker processes or threads."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import os
import pickle
import threading
import time
import traceback
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime.errors import PluginError
from vime.rollout.reward_guard import RewardTimeoutError, where
from vime.sample import Sample

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.isolation import IsolatedPool
    from vime.plugins.manager import HookFunction, PluginManager
    from vime.rollout.reward_resolver import ResolvedReward

MAX_THREADS = 16
"""Synchronous rewards that run in threads at once, without `--reward-workers`."""
HEAVY_FIELDS = frozenset({"tokens", "loss_mask", "rollout_log_probs", "teacher_log_probs", "multimodal_inputs", "reward"})
"""What a reward that runs in another process cannot change in the sample; everything else is carried back."""


class RewardSetupError(PluginError):
    """A worker process could not load the reward. Ends the run whatever `--on-reward-error` says."""


@dataclass
class Outcome:
    """What a call in a worker process came to: a value or an exception, its time, and what it changed in each sample."""

    value: Any
    error: Exception | None
    seconds: float
    changes: list[dict[str, Any]]


class RewardRunner:
    """Runs reward functions within `--reward-timeout`. Owns the worker processes; `close` ends them.

    `--reward-workers` is the number of worker processes, and of threads at a time (a thread that was given up after its
    time no longer counts); `--reward-concurrency` bounds the asynchronous ones. The time a call waits for its turn does
    not count.
    """

    def __init__(self, config: RunConfig, plugins: PluginManager) -> None:
        self.config = config
        self.plugins = plugins
        self._processes = config.reward_workers or max(2, min(8, os.cpu_count() or 2))
        self._threads = config.reward_workers or MAX_THREADS
        self._pool: IsolatedPool | None = None
        self._config_bytes = b""
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[asyncio.Semaphore, asyncio.Semaphore]] = (
            weakref.WeakKeyDictionary()
        )

    async def run(self, reward: ResolvedReward, samples: list[Sample], *, group: bool) -> Any:
        """Call the reward for one sample, or for a group, and return what it returns.

        Raises what the function raises, RewardTimeoutError, or RewardSetupError where a worker cannot load it.
        """
        function = reward.function
        async_slots, thread_slots = self._slots.setdefault(
            asyncio.get_running_loop(), (asyncio.Semaphore(self.config.reward_concurrency), asyncio.Semaphore(self._threads))
        )
        if self.isolates(reward):
            return await self._in_process(reward, samples, group)
        async with async_slots if function.is_async else thread_slots:
            arguments = call_arguments(self.config, reward.path, samples, group)
            try:
                async with asyncio.timeout(self.config.reward_timeout or None) as limit:
                    if function.is_async:
                        return await function.acall(**arguments)
                    value = await _in_daemon_thread(functools.partial(function.call, **arguments))
                    return await value if inspect.isawaitable(value) else value
            except TimeoutError as error:
                if limit.expired():
                    raise self._timeout(function, samples) from None
                raise error

    def isolates(self, reward: ResolvedReward) -> bool:
        """Whether this function runs in a worker process.

        Never an asynchronous one. "auto" keeps those in this process that could not be imported in another, and plugins
        that have a state; "process" refuses the former with a RewardSetupError.
        """
        function, isolation = reward.function, self.config.reward_isolation
        if function.is_async or isolation == "thread":
            return False
        plugin = None if reward.path is not None else self.plugins.get(function.plugin)
        in_main = getattr(function.function, "__module__", None) == "__main__" or (reward.path or "").startswith("__main__")
        importable = not in_main and (reward.path is not None or (plugin is not None and plugin.distribution is not None))
        if not importable and isolation == "process":
            raise RewardSetupError(
                f"{function.label}: its custom_rm cannot be imported in a worker process",
                hint="install its package or move it into a module of its own, or use --reward-isolation thread",
            )
        return importable and (isolation == "process" or not hasattr(getattr(plugin, "obj", None), "state_dict"))

    def close(self) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    async def _in_process(self, reward: ResolvedReward, samples: list[Sample], group: bool) -> Any:
        from vime.isolation import IsolatedTimeout

        function = reward.function
        pool = self._started_pool()
        try:
            payload = pickle.dumps(samples)
        except Exception as error:
            raise RewardSetupError(
                f"{function.label}: {where(samples[0])} cannot be sent to a worker process: {error}",
                hint="keep plain data in sample.metadata, or use --reward-isolation thread",
            ) from error
        plugin = None if reward.path is not None else function.plugin
        try:
            answer = await pool.acall(
                call_in_worker, plugin, reward.path, self._config_bytes, payload, group, timeout=self.config.reward_timeout or None
            )
        except IsolatedTimeout:
            raise self._timeout(function, samples) from None
        outcome: Outcome = pickle.loads(answer)
        function.add_time(outcome.seconds)
        for sample, changes in zip(samples, outcome.changes, strict=True):
            for name, value in changes.items():
                setattr(sample, name, value)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def _started_pool(self) -> IsolatedPool:
        if self._pool is None:
            from vime.isolation import IsolatedPool

            self._config_bytes = pickle.dumps(self.config)
            self._pool = IsolatedPool(self._processes)
        return self._pool

    def _timeout(self, function: HookFunction, samples: list[Sample]) -> RewardTimeoutError:
        what = where(samples[0]) if len(samples) == 1 else f"group {samples[0].group_index} ({len(samples)} samples)"
        return RewardTimeoutError(
            f"{function.label}: custom_rm took longer than {self.config.reward_timeout:g} s for {what}",
            hint="raise --reward-timeout, or choose --on-reward-error drop|zero",
        )


def call_arguments(config: RunConfig, path: str | None, samples: list[Sample], group: bool) -> dict[str, Any]:
    """The arguments of custom_rm. A path function gets the group in the place of the sample, as upstream calls it."""
    if group:
        return {"args": config, "sample": samples if path is not None else None, "samples": samples}
    return {"args": config, "sample": samples[0], "samples": None}


async def _in_daemon_thread(call: Callable[[], Any]) -> Any:
    """Run `call` in a thread of its own, which never keeps the interpreter from exiting, in this task's context."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def finish(value: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((value, error))

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(call)
        except BaseException as raised:  # noqa: BLE001 - handed over to the awaiting task, whatever it is
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(finish, value, error)

    threading.Thread(target=work, name="vime-reward", daemon=True).start()
    value, error = await done
    if error is not None:
        raise error
    return value


# ---------------------------------------------------------------- in the worker process


def call_in_worker(plugin: str | None, path: str | None, config_bytes: bytes, payload: bytes, group: bool) -> bytes:
    """Score the pickled samples with the plugin or path function, loaded once per worker; a pickled Outcome."""
    function, config = _load(plugin, path, config_bytes)
    samples: list[Sample] = pickle.loads(payload)
    before = [_light_fields(sample) for sample in samples]
    value, error = None, None
    start = time.perf_counter()
    try:
        value = function.call(**call_arguments(config, path, samples, group))
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
    except Exception as raised:  # noqa: BLE001 - handed over to the caller
        error = _portable(raised)
    seconds = time.perf_counter() - start
    changes = [_changes(sample, fields) for sample, fields in zip(samples, before, strict=True)]
    try:
        return pickle.dumps(Outcome(value, error, seconds, changes))
    except Exception as raised:  # noqa: BLE001 - whatever a foreign object's pickling raises
        unsendable = TypeError(f"{function.label}: its reward or metadata cannot be sent back: {raised}")
        return pickle.dumps(Outcome(None, unsendable, seconds, [{}] * len(samples)))


@functools.lru_cache(maxsize=16)
def _load(plugin: str | None, path: str | None, config_bytes: bytes) -> tuple[HookFunction, RunConfig]:
    """The function, with only its own plugin loaded, and the run's whole configuration."""
    from vime.plugins.hookspecs import EVAL_PATH_FLAG, HOOKS
    from vime.plugins.manager import PluginManager

    config: RunConfig = pickle.loads(config_bytes)
    flags = [EVAL_PATH_FLAG, *(info.path_flag for info in HOOKS.values() if info.path_flag)]
    fields = type(config).model_fields
    alone: dict[str, Any] = {flag: fields[flag].get_default(call_default_factory=True) for flag in flags}
    alone["plugin"] = type(config.plugin)([plugin] if plugin else [])
    alone["plugin_settings"] = {name: value for name, value in config.plugin_settings.items() if _same(name, plugin)}
    manager = PluginManager.load(config.model_copy(update=alone))
    if path is not None:
        return manager.path_function(path, "custom_rm"), config
    functions = manager.implementations("custom_rm")
    if not functions:
        raise RewardSetupError(f"plugin {plugin!r} has no custom_rm in the worker process", hint="use --reward-isolation thread")
    return functions[0], config


def _same(name: str, plugin: str | None) -> bool:
    from vime.rollout.reward_resolver import canonical

    return plugin is not None and canonical(name) == canonical(plugin)


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _light_fields(sample: Sample) -> dict[str, bytes]:
    return {name: pickle.dumps(value) for name, value in vars(sample).items() if name not in HEAVY_FIELDS}


def _changes(sample: Sample, before: dict[str, bytes]) -> dict[str, Any]:
    """The attributes that the reward changed."""
    after = vars(sample)
    return {name: after[name] for name in after if name not in HEAVY_FIELDS and pickle.dumps(after[name]) != before.get(name)}


def _portable(error: Exception) -> Exception:
    """The exception itself where it survives the way back, else a RuntimeError that says the same; with its traceback as a note."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever a foreign exception's pickling raises
        copy = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", []):
            copy.add_note(note)
    copy.add_note(f"in a reward worker process:\n{trace}")
    return copy
