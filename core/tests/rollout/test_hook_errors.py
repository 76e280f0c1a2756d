"""A hook that raises, whatever it raises: the plugin and the hook are named, the exit code is 1, and there is no traceback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from vime.api import Sample, hookimpl
from vime.cli.render import report
from vime.errors import ContractError
from vime.plugins.manager import PluginManager

NUM_GPUS = 0

Run = Callable[..., Any]


class OwnError(BaseException):
    """Not an Exception, as some libraries' are."""


def raising(error: Callable[[], BaseException], *, is_async: bool, parameter: str = "args") -> Any:
    source = f"{'async ' if is_async else ''}def hook({parameter}):\n    raise error()\n"
    scope = {"error": error}
    exec(source, scope)
    return scope["hook"]


HOOKS = {
    "custom_generate": "sample",
    "rollout_sample_hook": "sample",
    "custom_rm": "sample",
    "shape_reward": "sample",
    "dynamic_sampling_filter": "samples",
    "rollout_sample_filter": "samples",
    "process_all_samples": "all_samples",
    "log_rollout_data": "samples",
    "generate_rollout": "args",
    "buffer_filter": "buffer",
    "make_data_source": "args",
}


def failure_of(setup_run: Run, hook: str, function: Any) -> BaseException:
    with pytest.raises(BaseException) as caught:
        start(setup_run, hook, function)
    return caught.value


def start(setup_run: Run, hook: str, function: Any) -> None:
    run = setup_run(**{"reward" if hook == "custom_rm" else hook: function})
    if hook == "buffer_filter":
        run.source.add_samples(run.source.get_samples(1))
    run.train()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("hook", HOOKS)
def test_one_line_with_the_plugin_and_the_hook(setup_run: Run, capsys: Any, hook: str, is_async: bool) -> None:
    function = raising(lambda: ValueError("no such file"), is_async=is_async, parameter=HOOKS[hook])
    error = failure_of(setup_run, hook, function)
    assert type(error) is ValueError
    assert report(error) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error: ValueError: no such file (at ")
    assert lines.count(f"  note: in {hook} of plugin '{hook}-0'") == 1
    assert len(lines) <= 5


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    ("error", "is_async", "hint"),
    [
        (SystemExit, False, "a hook does not end the process"),
        (SystemExit, True, "a hook does not end the process"),
        (StopIteration, False, "next(iterator, None)"),  # of a coroutine's, Python itself makes a RuntimeError
        (asyncio.CancelledError, False, "nothing asked this call to stop"),
        (asyncio.CancelledError, True, "nothing asked this call to stop"),
    ],
)
def test_what_would_mean_something_else_is_an_error(
    setup_run: Run, hook: str, is_async: bool, error: type[BaseException], hint: str
) -> None:
    caught = failure_of(setup_run, hook, raising(error, is_async=is_async, parameter=HOOKS[hook]))
    assert isinstance(caught, ContractError)
    assert caught.exit_code == 1
    assert f"plugin '{hook}-0': {hook} raised {error.__name__}" in caught.message
    assert hint in (caught.hint or "")
    assert type(caught.__cause__) is error


def test_an_exception_of_its_own_kind_keeps_it_and_is_named(setup_run: Run, capsys: Any) -> None:
    caught = failure_of(setup_run, "dynamic_sampling_filter", raising(lambda: OwnError("x"), is_async=False, parameter="samples"))
    assert type(caught) is OwnError
    assert report(caught) == 1
    assert "  note: in dynamic_sampling_filter of plugin 'dynamic_sampling_filter-0'" in capsys.readouterr().err


def test_an_interrupt_is_an_interrupt() -> None:
    class Interrupted:
        @hookimpl
        def shape_reward(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PluginManager().add(Interrupted, name="interrupted").hooks["shape_reward"].call()


def test_asyncio_run_inside_the_loop_gets_the_way_out(setup_run: Run) -> None:
    async def nothing() -> None: ...

    def dynamic_sampling_filter(samples: list[Sample]) -> Any:
        coroutine = nothing()
        try:
            return asyncio.run(coroutine)
        finally:
            coroutine.close()

    caught = failure_of(setup_run, "dynamic_sampling_filter", dynamic_sampling_filter)
    assert type(caught) is RuntimeError
    assert any("make it `async def` and await there" in note for note in caught.__notes__)


class Waiting:
    @hookimpl
    async def shape_reward(self) -> None:
        await asyncio.sleep(30)


def test_a_call_that_the_run_cancels_is_no_fault_of_the_hook() -> None:
    manager = PluginManager()
    hook = manager.add(Waiting, name="waiting").hooks["shape_reward"]

    async def main() -> None:
        task = asyncio.create_task(hook.acall())
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())


def test_an_exception_that_is_raised_again_and_again_has_one_note() -> None:
    error = ValueError("always this one")

    class Raising:
        @hookimpl
        def shape_reward(self) -> None:
            raise error

    hook = PluginManager().add(Raising, name="raising").hooks["shape_reward"]
    for _ in range(3):
        with pytest.raises(ValueError, match=r"^always this one"):
            hook.call()
    assert error.__notes__ == ["in shape_reward of plugin 'raising'"]


def test_calls_that_fail_have_their_time_counted() -> None:
    manager = PluginManager()

    class Raising:
        @hookimpl
        def shape_reward(self) -> None:
            raise ValueError("mine")

        @hookimpl
        async def dynamic_sampling_filter(self) -> None:
            raise ValueError("mine")

    hooks = manager.add(Raising, name="raising").hooks
    for hook in hooks.values():
        with pytest.raises(ValueError, match="mine"):
            asyncio.run(hook.acall())
    assert set(manager.take_timings()) == {"raising/shape_reward_ms", "raising/dynamic_sampling_filter_ms"}


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
