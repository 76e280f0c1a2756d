"""IsolatedPool: limits, deaths, threads, loops, forks, scripts, and that no process is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import multiprocessing
import operator
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from vime.isolation import IsolatedError, IsolatedPool, IsolatedTimeout, worker
from vime.isolation.limits import reward_limit

NUM_GPUS = 0


class Peculiar(Exception):
    """Pickles, but cannot be built again from its pickled arguments."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return Peculiar, self.args


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def hold_the_interpreter_lock() -> None:
    _ = 10 ** (10**10)


def raise_peculiar() -> NoReturn:
    raise Peculiar("nine lives", code=9)


def raise_unreadable() -> NoReturn:
    raise Unreadable


def say(text: str) -> str:
    return f"{text} from {os.getpid()}"


def leave(code: int) -> NoReturn:
    os._exit(code)


def own_timeout() -> NoReturn:
    raise TimeoutError("the function's own")


def return_lock() -> Any:
    return threading.Lock()


def environment_of_worker() -> tuple[str | None, Any, str]:
    return os.environ.get("OMP_NUM_THREADS"), signal.getsignal(signal.SIGINT), sys.modules["__main__"].__name__


@pytest.fixture
def pool() -> Iterator[IsolatedPool]:
    with IsolatedPool(2, timeout=20.0) as running:
        yield running


def wait_for_end(pids: list[int]) -> None:
    """Return when none of the processes exists any more."""
    for _ in range(400):
        if not any(alive(pid) for pid in pids):
            return
        time.sleep(0.05)
    raise AssertionError(f"still running: {[pid for pid in pids if alive(pid)]}")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def descendants(pid: int) -> list[int]:
    return [one for child in children(pid) for one in (child, *descendants(child))]


def test_call_returns_the_value(pool: IsolatedPool) -> None:
    assert pool.call(operator.add, 1, 2) == 3
    assert pool.call(say, "hello") != f"hello from {os.getpid()}"


def test_nothing_starts_before_the_first_call() -> None:
    before = descendants(os.getpid())
    IsolatedPool(2)
    assert descendants(os.getpid()) == before


@pytest.mark.parametrize("hanging", [(time.sleep, 1000), (hold_the_interpreter_lock,)], ids=["sleeping", "holding the interpreter lock"])
def test_four_hanging_calls_on_two_workers_time_out_and_the_pool_serves_the_next(pool: IsolatedPool, hanging: tuple[Any, ...]) -> None:
    pool.warm_up()

    def call(_: int) -> str:
        with pytest.raises(IsolatedTimeout) as caught:
            pool.call(*hanging, timeout=1.0)
        return str(caught.value)

    with ThreadPoolExecutor(4) as threads:
        messages = list(threads.map(call, range(4)))
    assert len(messages) == 4
    assert all("was stopped after its limit of 1 s" in message for message in messages)
    assert pool.call(operator.add, 2, 2) == 4


def test_the_wait_for_a_free_worker_does_not_count() -> None:
    with IsolatedPool(1) as pool, ThreadPoolExecutor(3) as threads:
        assert list(threads.map(lambda _: pool.call(time.sleep, 0.6, timeout=5.0), range(3))) == [None] * 3
        assert list(threads.map(lambda _: pool.call(time.sleep, 0.6, timeout=1.2), range(3))) == [None] * 3


def test_processor_time_is_limited_apart_from_wall_clock_time() -> None:
    with IsolatedPool(1, timeout=30.0, processor_timeout=0.5) as pool:
        assert pool.call(time.sleep, 1.0) is None
        with pytest.raises(IsolatedTimeout, match=r"limit of 0\.5 s \(processor time\)"):
            pool.call(hold_the_interpreter_lock)
        assert pool.call(operator.add, 2, 2) == 4


def test_preloaded_modules_do_not_count() -> None:
    with IsolatedPool(1, timeout=20, processor_timeout=0.2, preload=("sympy",)) as pool:
        assert str(pool.call(eval, "__import__('sympy').Integer(4)")) == "4"


def test_exceptions_keep_type_and_message(pool: IsolatedPool) -> None:
    with pytest.raises(ValueError, match="invalid literal") as caught:
        pool.call(int, "x")
    assert "raised in a worker process by builtins.int" in caught.value.__notes__[0]
    with pytest.raises(TimeoutError, match="the function's own") as own:
        pool.call(own_timeout)
    assert not isinstance(own.value, IsolatedTimeout)


def test_exceptions_that_cannot_travel_are_described(pool: IsolatedPool) -> None:
    with pytest.raises(IsolatedError, match=r"raise_peculiar raised .*Peculiar: nine lives"):
        pool.call(raise_peculiar)
    with pytest.raises(Unreadable):
        pool.call(raise_unreadable)
    with pytest.raises(IsolatedError, match=r"sys\.exit raised SystemExit: 3"):
        pool.call(sys.exit, 3)
    with pytest.raises(TypeError, match="cannot pickle"):
        pool.call(return_lock)


def test_what_cannot_be_sent_is_refused_by_name(pool: IsolatedPool) -> None:
    with pytest.raises(TypeError, match=r"<lambda> and its arguments cannot be sent to a worker process .*top level of a module"):
        pool.call(lambda: 1)
    with pytest.raises(TypeError, match="cannot be sent"):
        pool.call(operator.add, threading.Lock(), 1)


def test_a_worker_that_dies_costs_its_own_call_only(pool: IsolatedPool) -> None:
    with ThreadPoolExecutor(2) as threads:
        other = threads.submit(pool.call, time.sleep, 0.5)
        with pytest.raises(IsolatedError, match=r"leave died \(exit code 7\)"):
            pool.call(leave, 7)
        assert other.result() is None
    with pytest.raises(IsolatedError, match="crashed"):
        pool.call(os.abort)
    assert pool.call(operator.add, 2, 2) == 4


def test_killed_idle_workers_are_replaced(pool: IsolatedPool) -> None:
    pool.warm_up()
    for pid in {pool.call(os.getpid) for _ in range(30)}:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)
    assert pool.call(operator.add, 2, 2) == 4


def test_memory_beyond_the_limit_is_an_error_of_that_call() -> None:
    with IsolatedPool(1, memory_mib=512) as pool:
        with pytest.raises(MemoryError):
            pool.call(bytearray, 2**30)
        assert len(pool.call(bytes, 1000)) == 1000


kept: list[bytearray] = []


def keep(mebibytes: int) -> int:
    kept.append(bytearray(mebibytes * 2**20))
    return os.getpid()


def test_memory_that_a_call_keeps_is_not_paid_by_the_next() -> None:
    with IsolatedPool(1, memory_mib=512) as small:
        first = small.call(keep, 300)
        assert small.call(keep, 50) == first  # there is room for it, and what is loaded stays
        assert small.call(keep, 300) != first
        with pytest.raises(MemoryError):
            small.call(keep, 600)
        assert small.call(operator.add, 2, 2) == 4


class Left(BaseException):
    """In the place of the end of a worker process."""


def run_out() -> NoReturn:
    raise MemoryError


def test_a_call_is_given_back_once_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_instead(code: int) -> NoReturn:
        raise Left(code)

    monkeypatch.setattr(worker, "_memory", memory := worker._Memory())
    monkeypatch.setattr(worker.os, "_exit", leave_instead)
    call = worker.Call(pickle.dumps((run_out, ())), __name__, __file__)
    assert worker.run_call(call).error_type == "MemoryError"  # without a limit there is nobody to blame
    memory.start(2)
    with pytest.raises(Left):
        worker.run_call(call)
    assert worker.run_call(replace(call, again=True)).error_type == "MemoryError"


def many_at_once(pool: IsolatedPool, count: int) -> list[Any]:
    """What `count` calls from one event loop come to, every hundredth of which eats memory or dies."""

    async def run() -> list[Any]:
        return await asyncio.gather(*(one(number) for number in range(count)), return_exceptions=True)

    async def one(number: int) -> int:
        if number % 100 == 50:
            await pool.acall(bytearray, 2**40)
        if number % 100 == 99:
            await pool.acall(leave, 3)
        return await pool.acall(operator.add, number, 1)

    return asyncio.run(run())


def test_a_thousand_calls_at_once_from_several_loops_and_threads() -> None:
    with IsolatedPool(2, timeout=60.0) as pool, ThreadPoolExecutor(4) as threads:
        loops = [threads.submit(many_at_once, pool, 400) for _ in range(2)]
        plain = [threads.submit(lambda: [pool.call(operator.add, number, 1) for number in range(100)]) for _ in range(2)]
        assert [each.result() for each in plain] == [list(range(1, 101))] * 2
        for outcomes in (each.result() for each in loops):
            for number, outcome in enumerate(outcomes):
                expected = {50: MemoryError, 99: IsolatedError}.get(number % 100)
                assert type(outcome) is expected if expected else outcome == number + 1


def test_closing_ends_all_calls_that_are_on_their_way() -> None:
    async def run() -> list[Any]:
        pool = IsolatedPool(2, timeout=1000)
        await asyncio.to_thread(pool.warm_up)
        calls = [asyncio.create_task(pool.acall(time.sleep, 1000)) for _ in range(100)]
        await asyncio.sleep(0.2)
        await asyncio.to_thread(pool.close)
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)

    outcomes = asyncio.run(run())
    assert {type(outcome) for outcome in outcomes} == {IsolatedError}
    assert all("closed" in str(outcome) for outcome in outcomes)


def test_cancelling_calls_that_wait_costs_the_others_nothing(pool: IsolatedPool) -> None:
    async def run() -> list[Any]:
        calls = [asyncio.create_task(pool.acall(operator.add, number, 1)) for number in range(200)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        return await asyncio.gather(*calls, return_exceptions=True)

    pool.warm_up()
    outcomes = asyncio.run(run())
    assert outcomes[1::2] == [number + 1 for number in range(1, 200, 2)]
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[::2])
    assert pool.call(operator.add, 2, 2) == 4


def test_workers_have_one_thread_ignore_sigint_and_do_not_know_the_main_script(pool: IsolatedPool) -> None:
    assert pool.call(environment_of_worker)[:2] == ("1", signal.SIG_IGN)
    os.kill(pool.call(os.getpid), signal.SIGINT)
    assert pool.call(operator.add, 2, 2) == 4


def test_event_loops(pool: IsolatedPool) -> None:
    async def run() -> tuple[list[int], int]:
        beats = 0

        async def heart() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0.01)
                beats += 1

        beating = asyncio.create_task(heart())
        sums = await asyncio.gather(*(pool.acall(operator.add, i, i) for i in range(200)))
        with pytest.raises(IsolatedTimeout):
            await pool.acall(time.sleep, 100, timeout=0.5)
        beating.cancel()
        return sums, beats

    for _ in range(2):  # a second loop uses the same workers
        sums, beats = asyncio.run(run())
        assert sums == [2 * i for i in range(200)]
        assert beats > 5


def test_a_cancelled_call_frees_its_worker() -> None:
    async def run(pool: IsolatedPool) -> int:
        task = asyncio.create_task(pool.acall(time.sleep, 1000, timeout=2000))
        await asyncio.sleep(0.3)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return await pool.acall(operator.add, 2, 2)

    with IsolatedPool(1) as pool:
        pool.warm_up()
        assert asyncio.run(run(pool)) == 4


def test_close_ends_workers_and_fails_what_runs() -> None:
    pool = IsolatedPool(2)
    pool.warm_up()
    pids = descendants(os.getpid())
    worker = pool.call(os.getpid)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(pool.call, time.sleep, 1000, timeout=2000)
        time.sleep(0.3)
        pool.close()
        with pytest.raises(IsolatedError, match="closed"):
            running.result()
    assert worker in pids
    wait_for_end([worker])
    with pytest.raises(IsolatedError, match="closed"):
        pool.call(operator.add, 1, 1)
    pool.close()


def test_a_pool_travels_as_its_settings(pool: IsolatedPool) -> None:
    copy = pickle.loads(pickle.dumps(IsolatedPool(3, timeout=4.0, processor_timeout=2.0, memory_mib=None, preload=("json",))))
    assert (copy.workers, copy.timeout, copy.processor_timeout, copy.memory_mib, copy.preload) == (3, 4.0, 2.0, None, ("json",))


@pytest.mark.parametrize("settings", [{"workers": 0}, {"timeout": 0}, {"timeout": -1.0}, {"processor_timeout": 0}])
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="got"):
        IsolatedPool(**settings)


def _use_inherited_pool(pool: IsolatedPool, connection: Any) -> None:
    connection.send((pool.call(operator.add, 2, 3), pool.call(os.getppid)))
    connection.close()


def test_a_forked_daemonic_child_gets_workers_of_its_own(pool: IsolatedPool) -> None:
    mine = pool.call(os.getpid)
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    child = fork.Process(target=_use_inherited_pool, args=(pool, theirs), daemon=True)
    child.start()
    assert ours.poll(60)
    value, server = ours.recv()
    child.join(60)
    assert value == 5
    assert child.exitcode == 0
    wait_for_end([server])
    assert mine in {pool.call(os.getpid) for _ in range(50)}


SCRIPT = """
import os, signal, sys, time, threading, operator
from vime.isolation import IsolatedPool
pool = IsolatedPool(2, timeout=1000, preload=("json",))
print(pool.call(operator.add, 20, 22), flush=True)
"""


@pytest.mark.parametrize("how", ["file", "stdin", "-c"])
def test_scripts_without_a_main_guard(how: str, tmp_path: Path) -> None:
    source = SCRIPT + "assert __name__ == '__main__', 'the script ran again in a worker'\n"
    script = tmp_path / "script.py"
    script.write_text(source)
    command = {"file": [str(script)], "stdin": ["-"], "-c": ["-c", source]}[how]
    done = subprocess.run(
        [sys.executable, *command], check=False, input=source if how == "stdin" else "", capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")


def test_a_function_of_a_file_that_no_path_leads_to(pool: IsolatedPool, tmp_path: Path) -> None:
    file = tmp_path / "loose.py"
    file.write_text("def double(x):\n    return 2 * x\n")
    spec = importlib.util.spec_from_file_location("nowhere.inside.loose", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["nowhere.inside.loose"] = sys.modules["nowhere"] = module
    try:
        spec.loader.exec_module(module)
        assert pool.call(module.double, 21) == 42
    finally:
        del sys.modules["nowhere.inside.loose"], sys.modules["nowhere"]


def test_a_function_of_the_main_script_is_refused_with_the_reason(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "def mine():\n    pass\npool.call(mine)\n")
    done = subprocess.run([sys.executable, str(script)], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "TypeError: __main__.mine is defined in the main script" in done.stderr


@pytest.mark.parametrize(
    ("end", "busy"),
    [
        ("return", "idle"),
        ("return", "sleeping"),
        ("sys.exit(0)", "holding the interpreter lock"),
        ("os._exit(0)", "sleeping"),
        ("SIGTERM", "sleeping"),
        ("SIGKILL", "idle"),
        ("SIGKILL", "sleeping"),
        ("SIGKILL", "holding the interpreter lock"),
    ],
)
def test_no_process_is_left_behind(end: str, busy: str) -> None:
    work = {"idle": "", "sleeping": "time.sleep, 1000", "holding the interpreter lock": "pow, 10, 10**10"}[busy]
    source = SCRIPT
    if work:
        source += f"threading.Thread(target=lambda: pool.call({work}), daemon=True).start()\ntime.sleep(0.5)\n"
    source += "print('ready', flush=True)\nsys.stdin.readline()\n"
    source += end if end.startswith(("sys", "os")) else ""
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(source)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "42\n"
    assert process.stdout.readline() == "ready\n"
    family = descendants(process.pid)
    assert len(family) >= 3  # the server, two workers, the resource tracker
    if end.startswith("SIG"):
        process.send_signal(getattr(signal, end))
    else:
        process.stdin.write("\n")
        process.stdin.flush()
    process.wait(60)
    process.stdin.close()
    process.stdout.close()
    wait_for_end(family)


def test_importing_the_pool_is_light() -> None:
    source = "import sys, vime.isolation; print([m for m in ('pebble', 'torch', 'numpy', 'pydantic') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("waits_for", ["a turn", "the workers"])
def test_the_limit_of_a_reward_stands_still_while_it_waits(waits_for: str) -> None:
    async def reward(pool: IsolatedPool, seconds: float, allowed: float) -> None:
        async with asyncio.timeout(allowed) as limit:
            reward_limit.set(limit)
            await pool.acall(time.sleep, seconds)

    async def all_at_once() -> None:
        with IsolatedPool(1, timeout=30) as pool:
            if waits_for == "a turn":
                await asyncio.to_thread(pool.warm_up)
                # Twelve of 0.2 s, one after the other: each may take 1 s, and has at most one more before it in the worker.
                await asyncio.gather(*(asyncio.create_task(reward(pool, 0.2, 1.0)) for _ in range(12)))
            else:
                pool._ensure_running = slowly(pool._ensure_running)
                await reward(pool, 0.0, 1.0)
            with pytest.raises(TimeoutError):
                await asyncio.create_task(reward(pool, 20.0, 0.3))

    def slowly(start: Callable[[], Any]) -> Callable[[], Any]:
        def started() -> Any:
            time.sleep(1.5)
            return start()

        return started

    asyncio.run(all_at_once())


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
