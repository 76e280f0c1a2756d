"""The watch beside an event loop: sleep and work on the loop are seen and placed, waiting in it is not."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from vime.testing.checks.loop_watch import Phase, watch

NUM_GPUS = 0

HOME = __name__.partition(".")[0]


async def sleeps(phase: Phase) -> None:
    phase("one")
    time.sleep(0.1)  # noqa: ASYNC251


async def works(phase: Phase) -> None:
    phase("one")
    started = time.thread_time()
    while time.thread_time() - started < 0.1:
        pass


async def waits(phase: Phase) -> None:
    phase("one")
    await asyncio.sleep(0.1)


async def sleeps_before(phase: Phase) -> None:
    time.sleep(0.1)  # noqa: ASYNC251
    phase("one")
    await asyncio.sleep(0.01)


async def hangs(phase: Phase) -> None:
    phase("one")
    time.sleep(60)  # noqa: ASYNC251


def test_sleep_on_the_loop_is_seen_with_its_line() -> None:
    stalls = watch(sleeps, HOME, limit=10.0)["one"]
    assert stalls.asleep > 0.04
    where, line = stalls.place
    assert where == "`time.sleep(0.1)  # noqa: ASYNC251` in sleeps"
    assert line.startswith("test_loop_watch.py:")


def test_work_on_the_loop_counts_by_processor_time() -> None:
    stalls = watch(works, HOME, limit=10.0)["one"]
    assert stalls.working > 0.05
    assert stalls.asleep < 0.04


@pytest.mark.parametrize("work", [waits, sleeps_before])
def test_waiting_and_what_comes_before_the_first_phase_do_not_count(work: Any) -> None:
    stalls = watch(work, HOME, limit=10.0)["one"]
    assert stalls.asleep < 0.04
    assert stalls.working < 0.05


def test_a_loop_that_hangs_is_left_behind() -> None:
    assert watch(hangs, HOME, limit=30.0)["one"].asleep >= 0.5


def test_code_of_other_packages_does_not_count() -> None:
    assert watch(sleeps, "another_package", limit=10.0)["one"].asleep == 0.0


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
