"""One callable implementation of one hook, with its name on every error and its time on record."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any


class HookTimes:
    """Seconds spent in hooks since the last `take`, by `<plugin>/<hook>`. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}

    def add(self, key: str, seconds: float) -> None:
        with self._lock:
            self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """Milliseconds by `<plugin>/<hook>_ms`; starts again at zero."""
        with self._lock:
            seconds, self._seconds = self._seconds, {}
        return {f"{key}_ms": 1000.0 * value for key, value in seconds.items()}


class HookFunction:
    """A plugin's function, or a path function, for one hook.

    `call` and `acall` take the hook's arguments by name, whatever the function itself declares. An exception of the
    function keeps its type and traceback and gets a note that names plugin and hook.
    """

    __slots__ = ("_key", "_order", "_keywords", "_times", "function", "hook", "is_async", "label", "params", "plugin")

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
    ) -> None:
        self.plugin = plugin
        self.label = label
        self.hook = hook
        self.function = function
        self.params = order + keywords
        self.is_async = is_async_callable(function)
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
        except BaseException as error:
            self._note(error)
            raise
        finally:
            self._times.add(self._key, time.perf_counter() - start)
        return self._watch(result) if self.is_async else result

    async def acall(self, **spec_kwargs: Any) -> Any:
        """Call the function and await what it returns where that is awaitable. Synchronous functions run inline."""
        result = self.call(**spec_kwargs)
        if inspect.isawaitable(result):
            return await (result if self.is_async else self._watch(result))
        return result

    def add_time(self, seconds: float) -> None:
        """Record time that was spent in `function` outside `call`, such as in a worker process."""
        self._times.add(self._key, seconds)

    def _invoke(self, spec_kwargs: dict[str, Any]) -> Any:
        positional = [spec_kwargs[name] for name in self._order]
        if self._keywords:
            return self.function(*positional, **{name: spec_kwargs[name] for name in self._keywords})
        return self.function(*positional)

    async def _watch(self, awaitable: Awaitable[Any] | Coroutine[Any, Any, Any]) -> Any:
        start = time.perf_counter()
        try:
            return await awaitable
        except BaseException as error:
            self._note(error)
            raise
        finally:
            self._times.add(self._key, time.perf_counter() - start)

    def _note(self, error: BaseException) -> None:
        error.add_note(f"in {self.hook} of {self.label}")


def is_async_callable(function: Callable[..., Any]) -> bool:
    """Whether calling this function gives a coroutine: an `async def`, also behind partial, a method or `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
