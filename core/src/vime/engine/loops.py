"""Between event loops and threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def set_exception(future: asyncio.Future[Any], error: BaseException) -> None:
    """From any thread. Nobody is told where the loop was closed or the future is done."""

    def tell() -> None:
        if not future.done():
            future.set_exception(error)

    try:
        future.get_loop().call_soon_threadsafe(tell)
    except RuntimeError:  # the loop was closed by an interrupt: nobody waits any more
        return


def after_turns(loop: asyncio.AbstractEventLoop, turns: int, callback: Callable[[], Any]) -> None:
    """Call back after that many turns of the loop. In its thread."""
    if turns == 0:
        callback()
    else:
        loop.call_soon(after_turns, loop, turns - 1, callback)


def in_thread(action: Callable[..., Any], *args: Any) -> Future[Any]:
    """Run this in a thread of its own, which does not keep the process from ending where it never comes back."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(action(*args))
        except BaseException as error:  # noqa: BLE001 - whoever waits has it
            done.set_exception(error)

    threading.Thread(target=run, name=f"vime-{getattr(action, '__name__', 'call')}", daemon=True).start()
    return done
