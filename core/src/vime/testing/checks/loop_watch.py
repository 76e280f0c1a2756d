"""Whether code holds up an event loop: a thread beside it looks where the loop's thread is, again and again.

A coroutine that waits is not on the stack of its thread. So a plugin's frame that stays on the stack is at work or asleep
there, and nothing else in the loop runs meanwhile. A busy machine cannot look like that: time asleep counts only while
the thread stands at one instruction and does not want the processor, and work counts by the thread's own processor time.
"""

from __future__ import annotations

import asyncio
import linecache
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

PERIOD = 0.002
"""Seconds between two looks."""
CONCLUSIVE = 0.5
"""Seconds of one stall after which no more is waited for."""


@dataclass
class Stalls:
    """How long the loop was held up, in seconds, and where."""

    asleep: float = 0.0
    working: float = 0.0
    """Of processor time, in the longest stretch."""
    places: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """(where, file:line) of the plugin's innermost frame, by how often it was seen."""

    @property
    def place(self) -> tuple[str, str]:
        """Where it stood most often: `time.sleep(1)` in judge, and (reward.py:12)."""
        return self.places.most_common(1)[0][0]


Phase = Callable[[str], None]
"""What the watched work calls to say that another phase begins; what comes before the first one is not watched."""


def watch(work: Callable[[Phase], Coroutine[Any, Any, Any]], home: str, *, limit: float) -> dict[str, Stalls]:
    """Run `work(phase)` in an event loop of a thread of its own; by phase, how long code of the package `home` held it up.

    Ends after `limit` seconds, or earlier where a stall is beyond doubt; what still runs then is left to itself. What
    `work` raises does not matter here.
    """
    state, ended, looked = _Watched(home), threading.Event(), threading.Event()
    thread = threading.Thread(target=_run, args=(lambda: work(state.begin), ended, looked), name="vime-watched-loop", daemon=True)
    thread.start()
    deadline = time.monotonic() + limit
    while not ended.is_set() and time.monotonic() < deadline and not state.conclusive:
        state.look(thread)
        ended.wait(PERIOD)
    looked.set()
    return state.phases


def _run(work: Callable[[], Coroutine[Any, Any, Any]], ended: threading.Event, looked: threading.Event) -> None:
    """Run `work()`, and live on until nobody looks any more: only the clock of a live thread can be read."""
    try:
        asyncio.run(work())
    except BaseException:  # noqa: BLE001 - other checks report what a plugin raises
        return
    finally:
        ended.set()
        looked.wait()


class _Watched:
    """What the last look showed, and the sums."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.phases: dict[str, Stalls] = {}
        self._stalls: Stalls | None = None
        self._last: tuple[int, int] | None = None
        self._seen = 0.0
        self._stretch_began: float | None = None

    @property
    def conclusive(self) -> bool:
        return self._stalls is not None and max(self._stalls.asleep, self._stalls.working) >= CONCLUSIVE

    def begin(self, phase: str) -> None:
        """Count what comes under this name."""
        self._stretch_began = None
        self._stalls = self.phases.setdefault(phase, Stalls())

    def look(self, thread: threading.Thread) -> None:
        """One look at the thread's stack."""
        now, used, stalls = time.monotonic(), _processor_time(thread), self._stalls
        frame = sys._current_frames().get(thread.ident or 0)  # pyright: ignore[reportPrivateUsage]
        own, innermost = self._own_frame(frame)
        if stalls is None or own is None or innermost is None:
            self._last = self._stretch_began = None
            return
        at = (id(innermost), innermost.f_lasti)
        if at == self._last and _sleeps(thread):
            stalls.asleep += now - self._seen
            _note(stalls, own)
        if self._stretch_began is None:
            self._stretch_began = used
        elif used - self._stretch_began > stalls.working:
            stalls.working = used - self._stretch_began
            _note(stalls, own)
        self._last, self._seen = at, now

    def _own_frame(self, frame: FrameType | None) -> tuple[FrameType | None, FrameType | None]:
        """The innermost frame of the plugin, and of all; nothing while a module is being imported."""
        innermost, own = frame, None
        while frame is not None:
            name: str = frame.f_globals.get("__name__") or ""
            if name.startswith("importlib"):
                return None, None
            if own is None and name.partition(".")[0] == self.home:
                own = frame
            frame = frame.f_back
        return own, innermost


def _note(stalls: Stalls, frame: FrameType) -> None:
    source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    stalls.places[f"`{source}` in {frame.f_code.co_name}", f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"] += 1


def _sleeps(thread: threading.Thread) -> bool:
    """Whether the thread waits in the kernel rather than for the processor. True where the system does not say."""
    try:
        text = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] in "SD"


def _processor_time(thread: threading.Thread) -> float:
    """Processor time of a live thread in seconds; 0.0 where the system does not say."""
    if thread.ident is None or not hasattr(time, "pthread_getcpuclockid"):
        return 0.0
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
