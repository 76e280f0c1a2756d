"""The runner ends whatever the plugin does, and says how each check ended."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
import warnings

import pytest

from vime.api import hookimpl
from vime.errors import ConfigError, ContractError, PluginError
from vime.testing import check
from vime.testing.checks.base import Bench, Check, CheckFailed, fail, skip
from vime.testing.runner import Session
from vime.testing.subject import find_subject

NUM_GPUS = 0


class Plugin:
    """A plugin with two hooks."""

    @hookimpl
    def custom_rm(self, sample):
        return 1.0

    @hookimpl
    def rollout_sample_filter(self, samples):
        return None


class Broken:
    """A plugin that cannot be built."""

    def __init__(self):
        raise OSError("no words")

    @hookimpl
    def custom_rm(self, sample):
        return 1.0


def session(*checks: Check, target: object = Plugin, **options) -> Session:
    return Session(find_subject(target), known=checks, **options)


def result(body, **options):
    """How one check with this body ends."""
    made = session(Check("reward-it", "custom_rm", body), **options)
    return made.run(made.checks[0])


def passes(bench: Bench) -> None:
    """It passes."""


def fails(bench: Bench) -> None:
    """It fails."""
    fail("expected 1, got 2", "return 1")


def test_a_check_that_returns_passes() -> None:
    assert (result(passes).status, result(passes).message) == ("pass", "")


def test_fail_and_skip_end_a_check_with_their_words() -> None:
    failed = result(fails)
    assert (failed.status, failed.message, failed.hint) == ("fail", "expected 1, got 2", "return 1")
    skipped = result(lambda bench: skip("no cases were given"))
    assert (skipped.status, skipped.message) == ("skip", "no cases were given")


def test_an_error_of_the_core_keeps_its_message_and_hint() -> None:
    def body(bench):
        raise ContractError("plugin 'x': None is not a reward", hint="return a number")

    assert result(body).message == "plugin 'x': None is not a reward"
    assert result(body).hint == "return a number"


@pytest.mark.parametrize("kind", [TypeError, SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
def test_whatever_a_plugin_raises_is_a_failure_with_its_place(kind) -> None:
    def body(bench):
        raise kind("boom")

    line = body.__code__.co_firstlineno + 1
    assert result(body).status == "fail"
    assert result(body).message == f"raised {kind.__name__}: boom (test_runner.py:{line})"


def test_the_place_is_the_last_line_of_the_plugin_itself() -> None:
    def body(bench):
        json.loads("{")

    assert result(body).message.endswith(f"(test_runner.py:{body.__code__.co_firstlineno + 1})")


def test_of_a_group_of_exceptions_the_first_is_shown() -> None:
    def body(bench):
        try:
            fail("the first")
        except CheckFailed as error:
            raise ExceptionGroup("two", [error, ValueError()]) from None

    assert result(body).message == "the first"


def test_a_hang_fails_in_time_says_where_and_spares_the_rest_of_the_hook() -> None:
    def hangs(bench):
        while True:
            time.sleep(0.01)

    made = session(
        Check("package-it", None, passes),
        Check("reward-hangs", "custom_rm", hangs),
        Check("reward-later", "custom_rm", passes),
        Check("sample-filter-it", "rollout_sample_filter", passes),
        timeout=0.3,
    )
    results = [made.run(each) for each in made.checks]
    assert [each.status for each in results] == ["pass", "fail", "skip", "pass"]
    assert results[1].message.startswith("did not end within 0.3 s; it is at test_runner.py:")
    assert results[1].message.endswith("in hangs")
    assert results[2].message == "not run, because reward-hangs did not end"


def test_a_hang_in_an_executor_does_not_keep_python_from_its_exit() -> None:
    code = """
import asyncio, time
from vime.api import hookimpl
from vime.testing.checks.base import Check
from vime.testing.runner import Session
from vime.testing.subject import find_subject

class Plugin:
    @hookimpl
    async def custom_rm(self, sample):
        return 1.0

def hangs(bench):
    asyncio.run(asyncio.wait_for(asyncio.to_thread(time.sleep, 3600), None))

session = Session(find_subject(Plugin), known=(Check("reward-it", "custom_rm", hangs),), timeout=0.3)
print(session.run(session.checks[0]).message)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.startswith("did not end within 0.3 s")


def test_an_expected_failure_is_no_failure_and_must_fail() -> None:
    expected = {"reward-it": "the judge is down"}
    assert result(fails, expected_failures=expected).status == "xfail"
    assert result(fails, expected_failures=expected).message == "expected: the judge is down (expected 1, got 2)"
    assert result(lambda bench: skip("no"), expected_failures=expected).status == "skip"
    passed = result(passes, expected_failures=expected)
    assert (passed.status, passed.message) == ("fail", "expected to fail because 'the judge is down', but passed")
    assert passed.hint == "remove it from expected_failures"


@pytest.mark.parametrize("option", ["expected_failures", "only"])
def test_an_id_that_does_not_exist_is_refused_with_the_nearest(option) -> None:
    given = {"reward-if": "why"} if option == "expected_failures" else ["reward-if"]
    with pytest.raises(ConfigError, match="has no check 'reward-if'") as caught:
        session(Check("reward-it", "custom_rm", passes), **{option: given})
    assert caught.value.hint == "did you mean 'reward-it'?"


def test_a_check_of_a_hook_that_is_not_there_cannot_be_expected_to_fail() -> None:
    checks = (Check("package-it", None, passes), Check("rollout-it", "generate_rollout", passes))
    with pytest.raises(ConfigError, match="has no check 'rollout-it'"):
        session(*checks, expected_failures={"rollout-it": "why"})


def test_only_the_checks_of_the_hooks_that_are_asked_for() -> None:
    checks = (Check("package-it", None, passes), Check("reward-it", "custom_rm", passes), Check("log-it", "log_rollout_data", passes))
    assert [each.id for each in session(*checks).checks] == ["package-it", "reward-it"]
    assert [each.id for each in session(*checks, only=["reward-it"]).checks] == ["reward-it"]
    assert [each.id for each in session(*checks, hooks=("rollout_sample_filter",)).checks] == ["package-it"]
    with pytest.raises(PluginError, match="Plugin does not implement log_rollout_data"):
        session(*checks, hooks=("log_rollout_data",))


def test_hook_checks_of_a_plugin_that_cannot_be_loaded_are_not_run() -> None:
    made = session(Check("package-it", None, passes), Check("reward-it", "custom_rm", fails), target=Broken, hooks=("custom_rm",))
    results = [made.run(each) for each in made.checks]
    assert [each.status for each in results] == ["pass", "skip"]
    assert results[1].message == "not run: plugin 'Broken': building Broken raised OSError: no words"


def test_what_a_plugin_writes_is_kept_and_shown_with_a_failure(capsys) -> None:
    def body(bench):
        sys.stdout.write("to stdout\n")
        sys.stderr.write("to stderr\n")
        logging.getLogger("zoo").warning("to the log")
        fail("no")

    handlers = list(logging.root.handlers)
    output = result(body).output
    assert "to stdout" in output and "to stderr" in output
    assert result(lambda bench: sys.stdout.write("noise")).output == ""
    assert capsys.readouterr() == ("", "")
    assert logging.root.handlers == handlers


def test_a_plugin_that_configures_the_log_does_not_configure_ours() -> None:
    handlers, level = list(logging.root.handlers), logging.root.level
    result(lambda bench: (logging.root.addHandler(logging.StreamHandler()), logging.root.setLevel(logging.DEBUG)))
    assert (logging.root.handlers, logging.root.level) == (handlers, level)


def test_warnings_of_a_plugin_are_not_errors_of_ours() -> None:
    def body(bench):
        warnings.warn("old", DeprecationWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert result(body).status == "pass"


def test_a_coroutine_that_nobody_awaits_warns_inside_the_check() -> None:
    async def never():
        pass

    def body(bench):
        bench.stray = never()  # frozen: raises after the coroutine was made

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert result(body).status == "fail"


def test_each_check_gets_a_plugin_of_its_own() -> None:
    seen = []

    def body(bench):
        seen.append(bench.load().plugins[0].obj)

    made = session(Check("reward-a", "custom_rm", body), Check("reward-b", "custom_rm", body))
    for each in made.checks:
        made.run(each)
    assert seen[0] is not seen[1]


def test_a_report_has_the_public_form() -> None:
    report = check(Plugin, only=["package-hooks"])
    assert report.passed and report["package-hooks"].status == "pass"
    assert report.to_json() == {
        "target": "Plugin",
        "passed": True,
        "checks": [{"id": "package-hooks", "status": "pass", "message": "", "hint": ""}],
    }
    with pytest.raises(KeyError, match="the checks were package-hooks"):
        report["package-hoks"]


def test_an_installed_plugin_that_hangs_while_it_is_built_is_refused_in_time(install) -> None:
    install(
        "hangs",
        """
        import time
        from vime.api import hookimpl
        class Plugin:
            def __init__(self):
                time.sleep(3600)
            @hookimpl
            def custom_rm(self, sample):
                return 1.0
        """,
        entry="{module}:Plugin",
    )
    report = check("hangs", hook="custom_rm", only=["package-builds"], timeout=5)
    assert report["package-builds"].message.startswith("did not end within 5 s; it is at kit_hangs.py:6 in __init__")


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
