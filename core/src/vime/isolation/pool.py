"""The main process's side of `vime.isolation`."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from vime.isolation import worker
from vime.isolation.limits import reward_limit_paused

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

_AHEAD = 2
"""Calls of one event loop that are with a worker or next in line for it; the others wait for their turn."""


class IsolatedTimeout(TimeoutError):
    """A call ran past its limit; its worker was killed. `limit` is in seconds, `function` the name of what ran, and `kind`
    the time that was limited: "wall-clock" or "processor"."""

    def __init__(self, function: str, limit: float, kind: str = "wall-clock") -> None:
        super().__init__(function, limit, kind)
        self.function = function
        self.limit = limit
        self.kind = kind

    def __str__(self) -> str:
        return f"{self.function} was stopped after its limit of {self.limit:g} s ({self.kind} time)"


class IsolatedError(RuntimeError):
    """A call ended without a value or an exception of its own: its worker died, or its exception cannot travel."""


class IsolatedPool:
    """A pool of `workers` processes that runs importable functions, one call at a time in each.

    Args:
        workers: number of processes. They start with the first call, or with `warm_up`.
        timeout: limit in seconds of wall-clock time for a call, from its start in a worker: neither waiting for a free
            worker nor the start of one counts. `call` and `acall` may give another limit.
        processor_timeout: limit in seconds of processor time for a call, None for none. On a busy machine a call that
            computes gets as far as on an idle one, so that the outcome does not depend on what else runs.
        memory_mib: address space of a worker in MiB, None for no limit. A call that exceeds it gets a MemoryError. Where
            earlier calls had kept much of it, which is not for this one to pay, the worker is replaced and the call is made
            once more.
        preload: modules that are imported once, before the workers are forked, so that no call waits for them.

    Functions, arguments and results are pickled. A function must live at the top level of a module; the main script is
    not run again in a worker, so a function of its own cannot be sent. Workers have one OpenMP thread, ignore SIGINT,
    and end with the process that owns the pool, however that ends. After a fork, the child starts workers of its own.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        timeout: float = 10.0,
        processor_timeout: float | None = None,
        memory_mib: int | None = 2048,
        preload: Sequence[str] = (),
    ) -> None:
        if workers < 1:
            raise ValueError(f"IsolatedPool needs at least one worker, got workers={workers}")
        if min(timeout, timeout if processor_timeout is None else processor_timeout) <= 0:
            raise ValueError(f"IsolatedPool needs limits above 0 seconds, got timeout={timeout}, processor_timeout={processor_timeout}")
        self.workers = workers
        self.timeout = timeout
        self.processor_timeout = processor_timeout
        self.memory_mib = memory_mib
        self.preload = tuple(preload)
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._closed = False
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()

    def call(self, function: Callable[..., T], /, *args: Any, timeout: float | None = None) -> T:
        """Run `function(*args)` in a worker and return its value.

        Raises what the function raised, with the worker's traceback as a note; IsolatedTimeout past the limit;
        IsolatedError when the worker died; TypeError for a function or arguments that cannot be sent.
        """
        request, limit = _pack(function, args, self.processor_timeout), self._limit(timeout)
        outcome: worker.Outcome | None = None
        while outcome is None:
            running = self._ensure_running()
            future = running.schedule(request, limit)
            try:
                outcome = future.result()
            except _POOL_FAILURES as error:
                self._after_failure(error, running, function, limit)
                request = replace(request, again=True)
            except BaseException:
                future.cancel()
                raise
        return _unpack(outcome, function)

    async def acall(self, function: Callable[..., T], /, *args: Any, timeout: float | None = None) -> T:  # noqa: ASYNC109 (a limit that kills)
        """`call` for event loops: never blocks the loop. Cancelling it kills the worker that runs the call.

        In a reward, --reward-timeout stands still while the call waits for its turn or for the workers to start.
        """
        import asyncio

        request, limit = _pack(function, args, self.processor_timeout), self._limit(timeout)
        turns = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_AHEAD * self.workers))
        with reward_limit_paused():
            await turns.acquire()
        try:
            outcome: worker.Outcome | None = None
            while outcome is None:
                running = self._running
                if running is None or not running.usable:
                    with reward_limit_paused():
                        running = await asyncio.to_thread(self._ensure_running)
                try:
                    outcome = await asyncio.wrap_future(running.schedule(request, limit))
                except _POOL_FAILURES as error:
                    self._after_failure(error, running, function, limit)
                    request = replace(request, again=True)
        finally:
            turns.release()
        return _unpack(outcome, function)

    def warm_up(self) -> None:
        """Start the workers and wait until one answers, imports included. Optional: the first call does it too."""
        self.call(worker.ready, timeout=max(self.timeout, 60.0))

    def close(self) -> None:
        """End the workers. Calls that still run fail with IsolatedError, as do later ones."""
        with self._lock:
            running, self._running, self._closed = self._running, None, True
        if running is not None:
            running.stop()

    def __enter__(self) -> IsolatedPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.workers, self.timeout, self.processor_timeout, self.memory_mib, self.preload)

    def _limit(self, timeout: float | None) -> float:
        limit = self.timeout if timeout is None else timeout
        if limit <= 0:
            raise ValueError(f"the timeout of a call must be above 0 seconds, got {limit}")
        return limit

    def _ensure_running(self) -> _Running:
        running = self._running
        if running is not None and running.usable:
            return running
        if running is not None and running.owner != os.getpid():
            self._lock = threading.Lock()  # the fork may have copied it locked
        with self._lock:
            if self._closed:
                raise IsolatedError("this IsolatedPool is closed")
            if self._running is None or not self._running.usable:
                self._discard(self._running)
                self._running = _Running(self.workers, self.memory_mib, self.preload)
                weakref.finalize(self, self._running.stop)
            return self._running

    def _discard(self, running: _Running | None) -> None:
        if running is not None and running.owner == os.getpid():
            running.stop()

    def _after_failure(self, error: BaseException, running: _Running, function: Callable[..., Any], limit: float) -> None:
        """Raise what the caller should see, or return to have the call made again on fresh workers."""
        name = _name(function)
        if isinstance(error, TimeoutError):
            raise IsolatedTimeout(name, limit) from None
        if isinstance(error, _Closed) or self._closed:
            raise IsolatedError(f"{name}: the pool was closed before the call ended") from None
        if not isinstance(error, BrokenProcessPool):  # pebble's ProcessExpired
            code = getattr(error, "exitcode", 0)
            if code == worker.FULL:
                return
            if code == -signal.SIGPROF and self.processor_timeout is not None:
                raise IsolatedTimeout(name, self.processor_timeout, "processor") from None
            raise IsolatedError(f"the worker process that ran {name} died (exit code {code}){_death(code)}") from None
        # A worker without a call was killed from outside, which pebble takes as the end of the whole pool.
        if running.completed == 0:
            raise IsolatedError(f"{name}: the worker processes die before they can run anything ({error})") from error
        running.usable = False


class _Closed(Exception):
    """The pool was closed while a call was on its way."""


class _Running:
    """The started state of a pool: pebble's pool, its fork server, and the calls that are on their way."""

    def __init__(self, workers: int, memory_mib: int | None, preload: tuple[str, ...]) -> None:
        from pebble import ProcessPool

        from vime.isolation.process import Server, WorkerContext

        self.owner = os.getpid()
        self.server = Server(preload)
        self.pool = ProcessPool(
            workers,
            initializer=worker.start_worker,
            initargs=(memory_mib, preload),
            context=WorkerContext(self.server),
        )
        self.calls: set[Future[worker.Outcome]] = set()
        self.completed = 0
        self.lock = threading.RLock()
        self._usable = True
        self._stopped = False
        try:
            self.pool.active  # noqa: B018 (asking starts the workers)
        except BrokenProcessPool as error:
            raise IsolatedError(f"no worker process could be started; does a preloaded module fail to import? {list(preload)}") from error

    @property
    def usable(self) -> bool:
        return self._usable and self.owner == os.getpid()

    @usable.setter
    def usable(self, value: bool) -> None:
        self._usable = value

    def schedule(self, request: worker.Call, limit: float) -> Future[worker.Outcome]:
        try:
            future = self.pool.schedule(worker.run_call, args=(request,), timeout=limit)
        except RuntimeError as error:  # pebble's pool is broken or was stopped
            future = Future[worker.Outcome]()
            future.set_exception(BrokenProcessPool(str(error)) if self._usable else _Closed())
            return future
        with self.lock:
            self.calls.add(future)
        future.add_done_callback(self._forget)
        return future

    def stop(self) -> None:
        """Kill the workers, end the server, and fail the calls that have no result. In a forked child, does nothing."""
        with self.lock:
            if self.owner != os.getpid() or self._stopped:
                return
            self._stopped, self._usable = True, False
        self.pool.stop()
        self.pool.join()
        with contextlib.suppress(FileNotFoundError):  # its socket, where the interpreter's exit was first to remove the folder
            self.server.stop()
        with self.lock:
            unfinished = list(self.calls)
        for future in unfinished:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(_Closed())

    def _forget(self, future: Future[worker.Outcome]) -> None:
        with self.lock:
            self.calls.discard(future)
            self.completed += not future.cancelled() and future.exception() is None


_POOL_FAILURES = (TimeoutError, BrokenProcessPool, OSError, _Closed)


def _rebuild(
    workers: int, timeout: float, processor_timeout: float | None, memory_mib: int | None, preload: tuple[str, ...]
) -> IsolatedPool:
    return IsolatedPool(workers, timeout=timeout, processor_timeout=processor_timeout, memory_mib=memory_mib, preload=preload)


def _pack(function: Callable[..., Any], args: tuple[Any, ...], processor_limit: float | None) -> worker.Call:
    name = _name(function)
    module = getattr(function, "__module__", None) or type(function).__module__
    if module == "__main__":
        raise TypeError(f"{name} is defined in the main script, which worker processes do not run again; move it into a module of its own")
    try:
        pickled = pickle.dumps((function, args))
    except Exception as error:
        raise TypeError(
            f"{name} and its arguments cannot be sent to a worker process ({type(error).__name__}: {error}); "
            "use a function at the top level of a module, and plain data"
        ) from error
    return worker.Call(pickled, module, getattr(sys.modules.get(module), "__file__", None), processor_limit)


def _unpack(outcome: worker.Outcome, function: Callable[..., Any]) -> Any:
    if outcome.value is not None:
        return pickle.loads(outcome.value)
    name = _name(function)
    error: BaseException | None = None
    if outcome.error is not None:
        with contextlib.suppress(Exception):
            error = pickle.loads(outcome.error)
    if error is None:
        error = IsolatedError(f"{name} raised {outcome.error_type}: {outcome.error_text}")
    error.add_note(f"raised in a worker process by {name}:\n{outcome.trace}")
    raise error


def _name(function: Callable[..., Any]) -> str:
    function = getattr(function, "func", function)
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _death(exit_code: int) -> str:
    if exit_code == -9:
        return ": killed from outside, for example because the machine ran out of memory"
    return ": crashed" if exit_code < 0 else ": it left the process"
