"""Who steps an engine, and what happens between two steps. The engine here is a counter; vLLM is in tests/e2e."""

import asyncio
import contextvars
import signal
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from vime.engine.stepping import Stepper
from vime.errors import EngineDeadError, EngineError
from vime.runtime.event_loop import RunLoop
from vime.runtime.interrupts import Interrupted, Interrupts

NUM_GPUS = 0


class Counter:
    """Each request takes three steps; a request named "bad" fails in the first."""

    def __init__(self, *, own_thread: bool) -> None:
        self.left: dict[str, int] = {}
        self.futures: dict[str, Future[str]] = {}
        self.threads: set[threading.Thread] = set()
        self.failures: list[BaseException] = []
        self.stepper = Stepper(self.step, lambda: bool(self.left), self.fail, own_thread=own_thread)

    def ask(self, name: str) -> Future[str]:
        future: Future[str] = Future()
        self.futures[name] = future
        self.stepper.post(lambda: self.left.update({name: 3}))
        return future

    def step(self) -> None:
        self.threads.add(threading.current_thread())
        if "bad" in self.left:
            raise ValueError("a bad request")
        for name in list(self.left):
            self.left[name] -= 1
            if not self.left[name]:
                del self.left[name]
                self.futures[name].set_result(name)

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)
        for name in list(self.left):
            del self.left[name]
            self.futures[name].set_exception(error)

    def end(self) -> None:
        self.fail(EngineDeadError("closed"))


class SteppedCounter(Counter):
    def __init__(self) -> None:
        super().__init__(own_thread=False)

    def work_for(self, begin):
        return self.stepper.work_for(begin)

    async def generate(self, name: str) -> str:
        return await asyncio.wrap_future(self.ask(name))


@pytest.fixture(params=[True, False], ids=["own thread", "the caller's"])
def counter(request):
    made = Counter(own_thread=request.param)
    yield made
    made.stepper.close(made.end)


def result(counter: Counter, future: Future):
    """What a caller of either kind does to wait."""
    if counter.stepper._thread is None:
        return counter.stepper.work_for(lambda: future)
    return future.result(timeout=10.0)


def test_requests_are_stepped_to_their_end(counter):
    futures = [counter.ask(name) for name in "abc"]
    assert [result(counter, future) for future in futures] == ["a", "b", "c"]


def test_the_thread_that_waits_is_the_one_that_steps():
    counter = Counter(own_thread=False)
    result(counter, counter.ask("a"))
    assert counter.threads == {threading.current_thread()}


def test_a_call_comes_after_what_was_posted(counter):
    seen = []
    counter.stepper.post(lambda: seen.append("posted"))
    assert counter.stepper.call(lambda: [*seen, "called"]) == ["posted", "called"]


def test_a_step_that_fails_fails_its_requests_and_the_next_ones_are_served(counter):
    with pytest.raises(ValueError, match="a bad request"):
        result(counter, counter.ask("bad"))
    assert result(counter, counter.ask("good")) == "good"


def test_an_action_that_fails_does_not_take_those_behind_it_along(counter):
    """All posted before anything is done, so that one turn takes them all."""

    def post_all() -> Future[str]:
        counter.stepper.post(lambda: 1 / 0)
        return counter.ask("a")

    assert result(counter, post_all()) == "a"


def test_what_a_call_raises_reaches_its_caller(counter):
    with pytest.raises(ZeroDivisionError):
        counter.stepper.call(lambda: 1 / 0)
    assert result(counter, counter.ask("a")) == "a"


def test_closing_ends_what_runs_and_refuses_what_comes(counter):
    future = counter.ask("a")
    counter.stepper.close(counter.end)
    if not future.done() or future.exception() is None:
        assert result(counter, future) == "a"  # a thread may have been quicker
    with pytest.raises(EngineDeadError, match="closed"):
        counter.stepper.post(lambda: None)
    with pytest.raises(EngineDeadError, match="closed"):
        counter.stepper.call(lambda: None)


def test_an_interrupt_in_a_step_reaches_the_thread_that_waits():
    class Stop(BaseException): ...

    def step() -> None:
        raise Stop

    failures = []
    stepper = Stepper(step, lambda: not failures, failures.append, own_thread=False)
    with pytest.raises(Stop):
        stepper.work_for(Future)
    assert len(failures) == 1


def test_a_step_waits_for_other_threads_only_as_long_as_somebody_waits_for_it():
    """Whoever waits may be content before all that a step wants to see has happened."""
    done: Future[str] = Future()
    steps = []

    def step() -> None:
        steps.append(1)
        done.set_result("enough")
        stepper.wait_until(lambda: False, seconds=1e6)

    stepper = Stepper(step, lambda: not steps, lambda error: None, own_thread=False)
    assert stepper.work_for(lambda: done) == "enough"


def test_without_a_thread_nothing_is_asked_while_nobody_steps(counter):
    if counter.stepper._thread is None:
        with pytest.raises(EngineError, match="at this moment it does not"):
            counter.stepper.check_at_work()
    else:
        counter.stepper.check_at_work()


def test_a_call_that_nobody_waits_for_any_more_is_made_and_harms_nothing(counter):
    made = threading.Event()

    async def give_up() -> None:
        calling = asyncio.ensure_future(counter.stepper.calling(made.set))
        await asyncio.sleep(0)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)

    asyncio.run(give_up())
    assert result(counter, counter.ask("a")) == "a"
    assert made.is_set()
    assert not counter.failures


# --- with the event loop of a run --------------------------------------------------------------------------------


@pytest.fixture
def run_loop():
    with Interrupts() as interrupts:
        loop = RunLoop(interrupts)
        counter: Any = SteppedCounter()
        loop.engine = counter
        yield loop
        loop.close()


def test_the_main_thread_steps_while_another_turns_the_loop(run_loop):
    async def rollout():
        results = await asyncio.gather(run_loop.engine.generate("a"), run_loop.engine.generate("b"))
        return results, threading.current_thread()

    results, turner = run_loop.run(rollout())
    assert results == ["a", "b"]
    assert turner is not threading.current_thread()
    assert run_loop.engine.threads == {threading.current_thread()}
    assert run_loop.run(rollout())[1] is turner, "thread-local state of a hook must outlive a rollout"


def test_the_loop_stands_still_while_nobody_waits(run_loop):
    run_loop.run(asyncio.sleep(0))
    assert not run_loop.loop.is_running()


def test_an_error_of_a_rollout_comes_out_and_the_next_one_works(run_loop):
    with pytest.raises(ValueError, match="a bad request"):
        run_loop.run(run_loop.engine.generate("bad"))
    assert run_loop.run(run_loop.engine.generate("a")) == "a"


def test_hooks_see_the_context_of_the_main_thread(run_loop):
    variable = contextvars.ContextVar("variable", default="default")
    variable.set("set in the main thread")

    async def hook():
        return variable.get(), await asyncio.gather(asyncio.create_task(inner()))

    async def inner():
        return variable.get()

    assert run_loop.run(hook()) == ("set in the main thread", ["set in the main thread"])


def test_an_interrupt_of_the_main_thread_ends_what_it_waited_for(run_loop):
    """As Ctrl-C does in the closing of a run: what goes on in the loop would wait for an engine that nobody steps."""
    ended = threading.Event()

    async def rollout():
        run_loop.engine.ask("a")
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.set()

    class Stop(BaseException): ...

    def step() -> None:
        raise Stop

    run_loop.engine.stepper._step = step
    with pytest.raises(Stop):
        run_loop.complete(rollout())
    assert ended.wait(timeout=60.0)


def test_a_signal_that_a_hook_raises_interrupts_the_run(run_loop):
    async def hook():
        signal.raise_signal(signal.SIGTERM)  # to this thread, which does not handle signals
        await asyncio.sleep(1e6)

    with run_loop._interrupts.deferred(), pytest.raises(Interrupted):
        run_loop.run(hook())


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
