"""Where reward functions run: asynchronous ones on the event loop, synchronous ones in worker processes or threads."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib.util
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

from vime.errors import PluginError, VimeError
from vime.isolation.limits import reward_limit
from vime.plugins.validation import is_marked
from vime.rollout.reward_guard import RewardTimeoutError, discard, where
from vime.rollout.unchanged import watched
from vime.sample import Sample

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.isolation import IsolatedPool
    from vime.plugins.manager import HookFunction, PluginManager
    from vime.plugins.reference import HookReference
    from vime.rollout.reward_resolver import ResolvedReward

MAX_THREADS = 16
"""Synchronous rewards that run in threads at once, without `--reward-workers`."""
MEMORY_MIB = 8192
"""Address space of a reward worker: enough to import a machine-learning library, too little to take the machine down."""
HEAVY_FIELDS = frozenset({"tokens", "loss_mask", "rollout_log_probs", "teacher_log_probs", "multimodal_inputs", "reward"})
"""What a reward that runs in another process cannot change in the sample; everything else is carried back."""


class RewardSetupError(PluginError):
    """A worker process could not load the reward. Ends the run whatever `--on-reward-error` says."""


class WorkerError(RuntimeError):
    """Stands for an exception of a worker process that cannot travel; counted under the name of that exception."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind

    def __str__(self) -> str:
        return ": ".join(self.args)


@dataclass
class Outcome:
    """What a call in a worker process came to: a value or an exception, its time, and what it changed in each sample."""

    value: Any
    error: Exception | None
    seconds: float
    changes: list[dict[str, Any]]


class BusyTime:
    """Wall-clock seconds in which at least one `with` block of this object is open; blocks that overlap count once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._since = 0.0
        self._seconds = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if self._open == 0:
                self._since = time.perf_counter()
            self._open += 1

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self._seconds += time.perf_counter() - self._since

    def take(self) -> float:
        """The seconds since the last call."""
        with self._lock:
            now = time.perf_counter()
            seconds = self._seconds + (now - self._since if self._open else 0.0)
            self._seconds, self._since = 0.0, now
        return seconds


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
            arguments = call_arguments(self.config, function, samples, group)
            try:
                async with asyncio.timeout(self.config.reward_timeout) as limit:
                    reward_limit.set(limit)
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
        importable = function.reference is not None and getattr(function.function, "__module__", None) != "__main__"
        if not importable and isolation == "process":
            raise RewardSetupError(
                f"{function.label}: its custom_rm cannot be imported in a worker process",
                hint="install its package or move it into a module of its own, or use --reward-isolation thread",
            )
        plugin = self.plugins.get(function.plugin)
        return importable and (isolation == "process" or not hasattr(getattr(plugin, "obj", None), "state_dict"))

    def close(self) -> None:
        """End the worker processes."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    async def _in_process(self, reward: ResolvedReward, samples: list[Sample], group: bool) -> Any:
        from vime.isolation import IsolatedTimeout

        function = reward.function
        pool = self._started_pool(function)
        try:
            payload = pickle.dumps(samples)
        except Exception as error:
            raise RewardSetupError(
                f"{function.label}: {where(samples[0])} cannot be sent to a worker process: {error}",
                hint="keep plain data in sample.metadata, or use --reward-isolation thread",
            ) from error
        try:
            answer = await pool.acall(
                call_in_worker, function.reference, self._config_bytes, payload, group, timeout=self.config.reward_timeout
            )
        except IsolatedTimeout:
            function.add_time(self.config.reward_timeout)
            raise self._timeout(function, samples) from None
        outcome: Outcome = pickle.loads(answer)
        function.add_time(outcome.seconds)
        for sample, changes in zip(samples, outcome.changes, strict=True):
            for name, value in changes.items():
                setattr(sample, name, value)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def _started_pool(self, function: HookFunction) -> IsolatedPool:
        """The pool, made at the first call. Its fork server imports what the rewards need once, before any limit runs."""
        if self._pool is None:
            from vime.isolation import IsolatedPool

            functions = [*self.plugins.implementations("custom_rm"), function]
            modules = dict.fromkeys(getattr(each.function, "__module__", "") for each in functions)
            preload = [__name__, "vime.plugins.manager", "vime.config.run_config", *filter(_findable, modules)]
            self._config_bytes = pickle.dumps(self.config)
            self._pool = IsolatedPool(self._processes, memory_mib=MEMORY_MIB, preload=preload)
        return self._pool

    def _timeout(self, function: HookFunction, samples: list[Sample]) -> RewardTimeoutError:
        what = where(samples[0]) if len(samples) == 1 else f"group {samples[0].group_index} ({len(samples)} samples)"
        return RewardTimeoutError(
            f"{function.label}: custom_rm took longer than {self.config.reward_timeout:g} s for {what}",
            hint="raise --reward-timeout, or choose --on-reward-error drop|zero",
        )


def carry_back(shown: list[Sample], samples: list[Sample]) -> None:
    """Give the samples what a reward set on the copies that it was shown (with another response)."""
    for copy, sample in zip(shown, samples, strict=True):
        for name, value in vars(copy).items():
            if name != "response" and name not in HEAVY_FIELDS and vars(sample).get(name) is not value:
                setattr(sample, name, value)


def takes_group(function: HookFunction) -> bool:
    """Whether it scores a whole group under `--group-rm`: a plugin's function by what it declares, a path function always."""
    return "samples" in function.params or _positional(function)


def call_arguments(config: RunConfig, function: HookFunction, samples: list[Sample], group: bool) -> dict[str, Any]:
    """The arguments of custom_rm. A path function gets the group in the place of the sample, as upstream calls it."""
    if group:
        return {"args": config, "sample": samples if _positional(function) else None, "samples": samples}
    return {"args": config, "sample": samples[0], "samples": None}


def _positional(function: HookFunction) -> bool:
    """A path function in upstream's style: called with (args, sample or group), whatever it calls them."""
    return function.by_path and not is_marked(function.function)


async def _in_daemon_thread(call: Callable[[], Any]) -> Any:
    """Run `call` in a thread of its own, which never keeps the interpreter from exiting, in this task's context."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def finish(value: Any, error: BaseException | None) -> None:
        if done.done():  # the call was given up
            discard(value)
        else:
            done.set_result((value, error))

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(call)
        except BaseException as raised:  # noqa: BLE001 - handed over to the awaiting task, whatever it is
            error = raised
        try:
            loop.call_soon_threadsafe(finish, value, error)
        except RuntimeError:  # the loop was closed meanwhile
            discard(value)

    threading.Thread(target=work, name="vime-reward", daemon=True).start()
    value, error = await done
    if error is not None:
        raise error
    return value


def _findable(module: str) -> bool:
    try:
        return module != "__main__" and importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a module without a spec, such as one that was loaded from a file
        return False


# ---------------------------------------------------------------- in the worker process


def call_in_worker(reference: HookReference, config_bytes: bytes, payload: bytes, group: bool) -> bytes:
    """Score the pickled samples with a plugin's or a path function; a pickled Outcome."""
    function, config = _load(reference), _config(config_bytes)
    samples: list[Sample] = pickle.loads(payload)
    before = [_light_fields(sample) for sample in samples]
    value, error = None, None
    start = time.perf_counter()
    try:
        with watched(config, function, samples):
            value = function.call(**call_arguments(config, function, samples, group))
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


@functools.lru_cache(maxsize=4)
def _config(config_bytes: bytes) -> RunConfig:
    return pickle.loads(config_bytes)


def _load(reference: HookReference) -> HookFunction:
    try:
        return reference.load()
    except VimeError as error:
        raise RewardSetupError(
            f"a reward worker process cannot load the reward: {error.message}", hint=error.hint or "use --reward-isolation thread"
        ) from error


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _light_fields(sample: Sample) -> dict[str, bytes]:
    return {name: pickle.dumps(value) for name, value in vars(sample).items() if name not in HEAVY_FIELDS}


def _changes(sample: Sample, before: dict[str, bytes]) -> dict[str, Any]:
    """The attributes that the reward changed."""
    after = vars(sample)
    return {name: after[name] for name in after if name not in HEAVY_FIELDS and pickle.dumps(after[name]) != before.get(name)}


def _portable(error: Exception) -> Exception:
    """The exception itself where it survives the way back, else a WorkerError that says the same; with its traceback as a note."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever a foreign exception's pickling raises
        copy = WorkerError(type(error).__name__, str(error))
        for note in getattr(error, "__notes__", []):
            copy.add_note(note)
    copy.add_note(f"in a reward worker process:\n{trace}")
    return copy
