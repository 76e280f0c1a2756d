"""One callable implementation of one hook, with its name on every error and its time on record."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NoReturn, cast

from vime.errors import ContractError
from vime.plugins.loading import describe

if TYPE_CHECKING:
    from vime.plugins.reference import HookReference


class HookTimes:
    """Seconds spent in hooks since the last `take`, by `<plugin>/<hook>`. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self.trace: Callable[[str, float], None] | None = None
        """Called with `<plugin>/<hook>` and the seconds of each call, where set (--trace-hooks)."""

    def add(self, key: str, seconds: float) -> None:
        with self._lock:
            self._seconds[key] = self._seconds.get(key, 0.0) + seconds
        if self.trace is not None:
            self.trace(key, seconds)

    def take(self) -> dict[str, float]:
        """Milliseconds by `<plugin>/<hook>_ms`; starts again at zero."""
        with self._lock:
            seconds, self._seconds = self._seconds, {}
        return {f"{key}_ms": 1000.0 * value for key, value in seconds.items()}


class HookFunction:
    """A plugin's function, or a path function, for one hook.

    `call`, `acall` and `run` take the hook's arguments by name, whatever the function itself declares. An exception of
    the function keeps its type and traceback and gets a note that names plugin and hook; only what would mean something
    else to the code around it (SystemExit, StopIteration, a CancelledError that nobody asked for) becomes a ContractError.
    """

    __slots__ = (
        "_key",
        "_keywords",
        "_order",
        "_times",
        "by_path",
        "function",
        "hook",
        "is_async",
        "label",
        "params",
        "plugin",
        "reference",
    )

    def __init__(
        self,
        *,
        plugin: str,
        label: str,
        hook: str,
        function: Callable[..., Any],
        order: tuple[str, ...],
        keywords: tuple[str, ...] = (),
        times: HookTimes | None = None,
        reference: HookReference | None = None,
    ) -> None:
        self.plugin = plugin
        self.label = label
        self.hook = hook
        self.function = function
        self.params = order + keywords
        """The spec parameters that it takes."""
        self.is_async = is_async_callable(function)
        self.reference = reference
        """How another process finds this function; None for plugins that were handed over as objects."""
        self.by_path = plugin.startswith("path:")
        self._order = order
        self._keywords = keywords
        self._times = times or HookTimes()
        self._key = f"{plugin}/{hook}"

    def __repr__(self) -> str:
        return f"<{self.hook} of {self.label}>"

    def call(self, **spec_kwargs: Any) -> Any:
        """Call the function with what it takes of these arguments; the coroutine of an `async def` is returned unawaited."""
        start = time.perf_counter()
        try:
            result = self._invoke(spec_kwargs)
        except BaseException as error:  # noqa: BLE001 - raised again, with a name on it
            self._times.add(self._key, time.perf_counter() - start)
            self._raise(error)
        if self.is_async:
            return self._watch(result)  # which counts it
        self._times.add(self._key, time.perf_counter() - start)
        return result

    async def acall(self, **spec_kwargs: Any) -> Any:
        """Call the function and await what it returns where that is awaitable. Synchronous functions run inline."""
        result = self.call(**spec_kwargs)
        if inspect.isawaitable(result):
            return await (result if self.is_async else self._watch(result))
        return result

    def run(self, **spec_kwargs: Any) -> Any:
        """Call the function from synchronous code; what is awaitable runs to its end in an event loop of its own thread."""
        result = self.call(**spec_kwargs)
        if not inspect.isawaitable(result):
            return result
        coroutine = cast("Coroutine[Any, Any, Any]", result if self.is_async else self._watch(result))
        context = contextvars.copy_context()
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(context.run, asyncio.run, coroutine).result()

    def add_time(self, seconds: float) -> None:
        """Record time that was spent in `function` outside `call`, such as in a worker process."""
        self._times.add(self._key, seconds)

    def _invoke(self, spec_kwargs: dict[str, Any]) -> Any:
        if self.hook == "custom_rm":
            spec_kwargs = self._either_sample_or_group(spec_kwargs)
        positional = [spec_kwargs[name] for name in self._order]
        if self._keywords:
            return self.function(*positional, **{name: spec_kwargs[name] for name in self._keywords})
        return self.function(*positional)

    def _either_sample_or_group(self, given: dict[str, Any]) -> dict[str, Any]:
        """Rewards are called with a sample or with a group. A path function gets the one there is in the same place."""
        sample, samples = given.get("sample"), given.get("samples")
        if self.by_path and sample is None:
            sample = samples
        return {"args": given["args"], "sample": sample, "samples": samples}

    async def _watch(self, awaitable: Awaitable[Any]) -> Any:
        start = time.perf_counter()
        try:
            return await awaitable
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and (task := asyncio.current_task()) is not None and task.cancelling():
                raise  # the run stops what it no longer needs: no fault of the function
            self._raise(error)
        finally:
            self._times.add(self._key, time.perf_counter() - start)

    def _raise(self, error: BaseException) -> NoReturn:
        """Raise what the function raised, with its name on it."""
        for kind, hint in _MEANINGS.items():
            if isinstance(error, kind):
                raise ContractError(f"{self.label}: {self.hook} raised {describe(error)}", hint=hint) from error
        note = f"in {self.hook} of {self.label}"
        if note not in getattr(error, "__notes__", ()):  # an exception object may be raised more than once
            error.add_note(note)
            if isinstance(error, RuntimeError) and "running event loop" in str(error):
                error.add_note("this hook is called inside an event loop: make it `async def` and await there, or do without asyncio.run")
        raise error


_MEANINGS: dict[type[BaseException], str] = {
    SystemExit: "raise an error that says what is wrong; a hook does not end the process",
    StopIteration: "next(iterator) found nothing: give it a default, next(iterator, None)",
    StopAsyncIteration: "anext(iterator) found nothing: give it a default, anext(iterator, None)",
    asyncio.CancelledError: "nothing asked this call to stop: catch the CancelledError of a task that the hook itself has cancelled",
}
"""Exceptions that Python, asyncio or the command line would take for something else than an error, with what to do."""


def is_async_callable(function: Callable[..., Any]) -> bool:
    """Whether calling this function gives a coroutine: an `async def`, also behind partial, a method or `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
