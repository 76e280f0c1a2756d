"""Checks of where and how a reward runs: threads, other processes, the event loop, many at once, and several instances."""

from __future__ import annotations

import asyncio
import linecache
import os
import random
import socket
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vime.errors import ContractError
from vime.isolation import IsolatedTimeout
from vime.plugins.loading import describe
from vime.plugins.manager import HookFunction
from vime.rollout.reward_worker import call_arguments
from vime.rollout.rewards import RewardScorer
from vime.sample import Sample
from vime.testing.checks.base import Bench, Check, fail, skip
from vime.testing.checks.loop_watch import Phase, Stalls, watch
from vime.testing.checks.reward_bench import ALONE, RewardBench, raised, require_deterministic, same
from vime.testing.checks.reward_inputs import Input
from vime.testing.checks.reward_places import RewardPlace
from vime.testing.checks.reward_spy import exceptions_in

AT_ONCE = 8
STALL_SECONDS = 0.04
"""What one call may keep the event loop for, asleep."""
WORK_SECONDS = 0.1
"""What one call may keep the event loop for, computing: processor time."""
TOGETHER_SECONDS = 0.08
"""What sixteen calls may keep the event loop for, asleep."""
WATCH_SECONDS = 8.0
LOOP_HINT = "await it (asyncio.sleep, an asynchronous client), or write a plain def: those run in worker processes"
WORK_HINT = "write a plain def, which runs in worker processes, or send the work to vime.api.IsolatedPool"
STATE_HINT = "keep nothing of a call: pass values on as arguments, in place of attributes, globals and caches"


def in_thread(bench: Bench) -> None:
    """The reward works in a thread that is not the main one: nothing in it needs the main thread."""
    with RewardBench(bench) as reward:
        one = reward.one()
    found: list[BaseException] = []

    def work() -> None:
        with RewardBench(bench) as other:
            for response in (one.response, "I do not know."):
                with exceptions_in(other.function.function) as seen:
                    try:
                        other.score(other.fresh(one.but(response=response)))
                    except Exception as error:  # noqa: BLE001 - looked at below
                        seen.append(error)
                found.extend(seen)

    thread = threading.Thread(target=work, name="vime-reward-thread")
    thread.start()
    thread.join()
    needing = [error for error in found if "main thread" in str(error)]
    if needing:
        fail(
            f"{reward.who} needs the main thread; in another one something in it raised {describe(needing[0])}",
            "limits by signal work in the main thread only: vime.api.IsolatedPool has limits that work everywhere",
        )


def in_process(bench: Bench) -> None:
    """The reward works in a spawned process, and gives the same value there."""
    with RewardBench(bench) as reward:
        one = reward.one()
        expected = reward.steady(one) if bench.deterministic else 0.0
        with RewardPlace(reward, workers=1) as place:
            if not place.importable:
                skip("another process cannot import it; --reward-isolation thread keeps it in this one")
            sample = reward.fresh(one)
            try:
                returned = reward.run(place.score(sample))
            except IsolatedTimeout:
                fail(f"{reward.who} takes longer than {reward.config.reward_timeout:g} s in a worker process, and not in this one")
            except Exception as error:  # noqa: BLE001 - whatever a reward raises
                fail(
                    f"{reward.who} {raised(error)} in a worker process, and not in this one",
                    "a worker imports the module and builds the plugin with its settings, and has nothing else of this process",
                )
            got = reward.number(reward.checked(returned, sample))
        if bench.deterministic and not same(got, expected):
            fail(f"{reward.who} gives {got:g} in a worker process, and {expected:g} in this one", STATE_HINT)


def event_loop(bench: Bench) -> None:
    """An asynchronous reward does not hold up the event loop, neither asleep nor at work."""
    with RewardBench(bench) as reward:
        if not reward.function.is_async:
            return  # runs in worker processes or threads
        one = reward.one()
    home = (getattr(reward.function.function, "__module__", None) or "").partition(".")[0]

    async def work(phase: Phase) -> None:
        fresh = RewardBench(bench)  # its own loop stays unused
        await _call(fresh, one)  # what is imported and built once does not count
        for number in range(3):
            phase(f"single {number}")
            await _call(fresh, one)
        phase("together")
        await asyncio.gather(*(_call(fresh, one) for _ in range(16)), return_exceptions=True)

    with _connections(home) as connections:
        phases = watch(work, home, limit=WATCH_SECONDS)
    if connections:
        fail(f"{reward.who} opens a connection and waits for it in the event loop: {connections[0]}", LOOP_HINT)
    together = phases.pop("together", Stalls())
    if together.asleep >= TOGETHER_SECONDS:
        where, line = together.place
        fail(f"{reward.who} holds up the event loop: it waits at {where}", f"{line}: {LOOP_HINT}")
    for stalls in sorted(phases.values(), key=lambda stalls: stalls.asleep)[len(phases) // 2 :][:1]:
        if stalls.asleep >= STALL_SECONDS:
            where, line = stalls.place
            fail(f"{reward.who} holds up the event loop: it waits at {where}", f"{line}: {LOOP_HINT}")
    for stalls in sorted(phases.values(), key=lambda stalls: stalls.working)[len(phases) // 2 :][:1]:
        if stalls.working >= WORK_SECONDS:
            where, line = stalls.place
            fail(f"{reward.who} holds up the event loop: it computes in {where.rpartition(' in ')[2]}", f"{line}: {WORK_HINT}")


@contextmanager
def _connections(home: str) -> Generator[list[str]]:
    """Collect, for code of the package `home`, where a socket that blocks is connected in a thread with a running event loop."""
    found: list[str] = []

    def connect(self: socket.socket, address: Any) -> None:
        if self.gettimeout() != 0.0 and asyncio._get_running_loop() is not None:
            frame: Any = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] != home:
                frame = frame.f_back
            if frame is not None:
                line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
                found.append(f"`{line}` in {frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})")
        super(socket.socket, self).connect(address)

    setattr(socket.socket, "connect", connect)  # noqa: B010 - it is inherited, and goes back to that below
    try:
        yield found
    finally:
        delattr(socket.socket, "connect")


def cancellation(bench: Bench) -> None:
    """An asynchronous reward that is cancelled ends, and gives no reward."""
    with RewardBench(bench) as reward:
        if not reward.function.is_async:
            skip("it is synchronous: what takes too long is ended with its worker process")
        one = reward.one()
        if not reward.run(_cancelled(reward, one)):
            skip("it never waits for anything")


async def _cancelled(reward: RewardBench, one: Input) -> bool:
    """Cancel a call in its first wait, and fail unless it ends so; False where it does not wait."""
    task = asyncio.ensure_future(_call(reward, one))
    await asyncio.sleep(0)
    if task.done() or not task.cancel():
        await asyncio.wait([task])
        return False
    await asyncio.wait([task], timeout=2.0)
    if not task.done():
        fail(f"{reward.who} goes on after it was cancelled", CANCEL_HINT)
    if not task.cancelled():
        error = task.exception()
        what = f"returned {task.result()!r}" if error is None else raised(error)
        fail(f"{reward.who} {what} when it was cancelled", CANCEL_HINT)
    return True


def process(bench: Bench) -> None:
    """A call leaves the process as it is: its directory, its sockets' timeout, and the random numbers of others."""
    with RewardBench(bench) as reward:
        one = reward.one()
        was, drawn = (Path.cwd(), socket.getdefaulttimeout(), random.getstate()), list[float]()
        with tempfile.TemporaryDirectory() as folder:
            try:
                os.chdir(folder)  # other checks have called it before: only a place of this check's own can be left
                socket.setdefaulttimeout(4321.0)
                for seed in (1, 2):
                    random.seed(seed)
                    reward.value(one)
                    drawn.append(random.random())
                directory, timeout = Path.cwd(), socket.getdefaulttimeout()
            finally:
                os.chdir(was[0])
                socket.setdefaulttimeout(was[1])
                random.setstate(was[2])
            if directory != Path(folder).resolve():
                fail(f"{reward.who} changes the working directory to {directory}", "use absolute paths, or subprocess.run(..., cwd=folder)")
        if drawn[0] == drawn[1]:
            fail(f"{reward.who} seeds the random numbers of the module `random`", "use a generator of your own: random.Random(seed)")
        if timeout != 4321.0:
            fail(f"{reward.who} sets the default timeout of all sockets to {timeout}", "give each request its own timeout")


def at_once(bench: Bench) -> None:
    """Samples that are scored at the same time get what each of them gets alone."""
    require_deterministic(bench)
    with RewardBench(bench) as reward:
        gold, wrong = reward.pair()
        expected = [reward.steady(gold), reward.steady(wrong)] * (AT_ONCE // 2)
        interval = sys.getswitchinterval()
        try:
            sys.setswitchinterval(1e-5)  # threads that share something meet sooner
            for _ in range(3):
                reward.still()
                samples = [reward.fresh(one, group_index=0) for one in [gold, wrong] * (AT_ONCE // 2)]
                try:
                    _score_as_the_run(reward, samples)
                except ContractError:
                    skip("it returned something that is no reward")
                except Exception as error:  # noqa: BLE001 - whatever a reward raises
                    if "event loop" in str(error):
                        skip("its module keeps something that belongs to the event loop of an earlier check")
                    fail(f"{reward.who} {raised(error)} when {AT_ONCE} samples are scored at once, and not alone", STATE_HINT)
                got = [reward.number(sample.reward) for sample in samples if sample.reward is not None]
                for one, other in zip(got, expected, strict=True):
                    if not same(one, other):
                        fail(f"{reward.who} gives a sample {one:g} among others that are scored at once, and {other:g} alone", STATE_HINT)
        finally:
            sys.setswitchinterval(interval)


def no_shared_state(bench: Bench) -> None:
    """Nothing of one sample shows in the reward of the next, neither in one instance nor in two."""
    require_deterministic(bench)
    with RewardBench(bench) as reward:
        if any(callable(getattr(plugin.obj, "state_dict", None)) for plugin in reward.manager.plugins):
            skip("it declares a state: state_dict")
        gold, wrong = reward.pair()
        right, worse = reward.steady(gold), reward.steady(wrong)
        other_label = gold.but(label="something else" if isinstance(gold.label, str) else gold.label)
        prompt = gold.prompt
        sequence = [(gold, right), (wrong.but(prompt=prompt), worse), (gold, right), (wrong.but(prompt=prompt), worse)]
        first, second = (bench.function(bench.load(reward.config)) for _ in range(2))
        for function in (first, None):
            for number, (one, expected) in enumerate(sequence):
                reward.still()
                chosen = function or (first, second)[number % 2]
                got = _again(reward, one, chosen)
                if not same(got, expected):
                    fail(
                        f"{reward.who} gives {got:g} for a sample that follows another one with the same index and prompt, "
                        f"and {expected:g} for it alone",
                        STATE_HINT,
                    )
        _refuse_cache_by_response(reward, gold, right)
        alone = _maybe(reward, other_label, bench.function(bench.load(reward.config)))
        function = bench.function(bench.load(reward.config))
        _again(reward, gold, function)
        after = _maybe(reward, other_label, function)
        if alone is not None and after is not None and not same(alone, after):
            fail(f"{reward.who} gives {after:g} for a response that it has seen with another label, and {alone:g} for it alone", STATE_HINT)


def _refuse_cache_by_response(reward: RewardBench, gold: Input, right: float) -> None:
    """Fail where a response gets the reward that it got with another label; every text here is one that nothing has seen."""
    if not isinstance(gold.label, str) or not isinstance(gold.prompt, str):
        return
    first, second = (gold.but(response=f"{blank}{gold.response}", prompt=f"{gold.prompt}{blank}") for blank in ("\n\n\n", "\n\n\n\n"))
    alone = _maybe(reward, first.but(label="something else"), reward.function)
    seen = _maybe(reward, second, reward.function)
    after = _maybe(reward, second.but(label="something else", prompt="Another question."), reward.function)
    if alone is None or seen is None or after is None or not same(seen, right) or same(alone, after):
        return
    fail(f"{reward.who} gives {after:g} for a response that it has seen with another label, and {alone:g} for it alone", STATE_HINT)


def _again(reward: RewardBench, one: Input, function: HookFunction) -> float:
    """The reward of a sample that has the index of all others of this check."""
    return reward.number(reward.score(one.sample(0), function=function))


def _maybe(reward: RewardBench, one: Input, function: HookFunction) -> float | None:
    try:
        return _again(reward, one, function)
    except Exception:  # noqa: BLE001 - a label that it refuses
        return None


def _score_as_the_run(reward: RewardBench, samples: list[Sample]) -> None:
    """Score samples through the core's scorer, in this process: asynchronous rewards in one loop, others in threads."""
    config = reward.bench.config(
        group_rm=reward.grouped,
        n_samples_per_prompt=2 if reward.grouped else 1,
        reward_isolation="thread",
        reward_key=reward.key,
        **ALONE,
    )
    scorer = RewardScorer(config, reward.manager)
    try:
        if reward.grouped:
            reward.run(_groups(scorer, [reward.shown(sample) for sample in samples]))
        else:
            reward.run(scorer.score(samples))
    finally:
        scorer.close()


async def _groups(scorer: RewardScorer, groups: list[list[Sample]]) -> None:
    await asyncio.gather(*(scorer.score_group(group) for group in groups))


async def _call(reward: RewardBench, one: Input) -> Any:
    shown = reward.shown(reward.fresh(one))
    return await reward.function.acall(**call_arguments(reward.config, reward.function, shown, reward.grouped))


CANCEL_HINT = "let asyncio.CancelledError through after cleaning up: catch Exception, not BaseException"
CHECKS: tuple[Check, ...] = (
    Check("reward-in-thread", "custom_rm", in_thread),
    Check("reward-in-process", "custom_rm", in_process),
    Check("reward-event-loop", "custom_rm", event_loop),
    Check("reward-cancellation", "custom_rm", cancellation),
    Check("reward-process", "custom_rm", process),
    Check("reward-at-once", "custom_rm", at_once),
    Check("reward-no-shared-state", "custom_rm", no_shared_state),
)
