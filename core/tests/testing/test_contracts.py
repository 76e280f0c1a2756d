"""The pytest classes: each check a test, strict about what a subclass may say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vime.api import hookimpl
from vime.testing.checks import ALL_CHECKS
from vime.testing.contracts import FilterContract, PluginContract, RewardContract

NUM_GPUS = 0

MODULE = """
from vime.api import hookimpl
from vime.testing.contracts import *

class Good:
    @hookimpl
    def rollout_sample_filter(self, samples):
        return None

class Bad:
    def __init__(self):
        print("on my way")
        raise OSError("no words")

    @hookimpl
    def rollout_sample_filter(self, samples):
        return None

class TestGood(SampleFilterContract):
    target = Good

    def test_of_my_own(self):
        assert True

class TestWhole(PluginContract):
    target = Good

class TestOtherHook(FilterContract):
    target = Good

class TestBad(SampleFilterContract):
    target = Bad

class TestExpected(SampleFilterContract):
    target = Bad
    expected_failures = {"package-builds": "words come later"}

class TestPassesAllTheSame(SampleFilterContract):
    target = Good
    expected_failures = {"package-builds": "words come later"}

class TestNothing(SampleFilterContract):
    timeout = 5

class TestUnknown(SampleFilterContract):
    plugin = "no-such-plugin"
"""


def outcomes(folder: Path, *options: str) -> tuple[dict[str, str], str]:
    """What a run of pytest in `folder` says: outcome by test, and its whole text."""
    command = [sys.executable, "-W", "error", "-m", "pytest", "-W", "error", "-rA", "-p", "no:cacheprovider", *options, str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ | {"COLUMNS": "200"}, check=False)
    found = re.findall(r"^(PASSED|FAILED|ERROR|XFAIL) \S+?::(\S+)", done.stdout, flags=re.MULTILINE)
    return {name: outcome for outcome, name in found}, done.stdout + done.stderr


@pytest.fixture(scope="module", params=["prepend", "importlib"])
def run(request, tmp_path_factory) -> tuple[dict[str, str], str]:
    folder = tmp_path_factory.mktemp("contracts")
    (folder / "test_contract.py").write_text(MODULE)
    return outcomes(folder, f"--import-mode={request.param}", "-o", "python_classes=Test* *Contract")


def test_each_check_is_a_test_and_tests_of_the_author_run_too(run) -> None:
    found, text = run
    assert found["TestGood::test_contract[package-hooks]"] == "PASSED", text
    assert found["TestGood::test_of_my_own"] == found["TestGood::test_declaration"] == "PASSED"
    assert "FAILED" not in {outcome for name, outcome in found.items() if name.startswith(("TestGood", "TestWhole"))}, text


def test_base_classes_are_not_collected(run) -> None:
    assert {name.partition("::")[0] for name in run[0]} <= set(re.findall(r"class (Test\w+)", MODULE))


def test_a_failure_is_the_sentence_the_message_and_what_was_printed_without_frames(run) -> None:
    found, text = run
    assert found["TestBad::test_contract[package-builds]"] == "FAILED"
    shown = text.partition("TestBad.test_contract[package-builds] _")[2].partition("\n____")[0]
    lines = shown.splitlines()[1:]
    assert lines[:2] == [
        "package-builds: It loads as in a run: the class is built with its settings and registered.",
        "  plugin 'Bad': building Bad raised OSError: no words",
    ]
    assert lines[-2:] == ["  it printed:", "    on my way"]


def test_expected_failures_are_strict(run) -> None:
    found, text = run
    assert found["TestExpected::test_contract[package-builds]"] == "XFAIL", text
    assert found["TestPassesAllTheSame::test_contract[package-builds]"] == "FAILED"
    assert "expected to fail because 'words come later', but passed" in text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("TestOtherHook", "Good does not implement dynamic_sampling_filter"),
        ("TestNothing", "it sets none of plugin, path and target"),
        ("TestUnknown", "there is no plugin 'no-such-plugin'"),
    ],
)
def test_a_class_that_cannot_run_fails(run, name, message) -> None:
    found, text = run
    assert found[f"{name}::test_declaration"] == "FAILED"
    assert [outcome for test, outcome in found.items() if test.startswith(f"{name}::test_contract")] == ["FAILED"], text
    assert f"{name}: {message}" in text


class Plugin:
    """A plugin."""

    @hookimpl
    def custom_rm(self, sample):
        return 1.0


def refusal(body: dict[str, object], base: type[PluginContract] = RewardContract, *mixins: type) -> str:
    with pytest.raises(pytest.fail.Exception) as caught:
        type("TestIt", (*mixins, base), {"__module__": __name__, "target": Plugin, **body})
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"expected_failure": {}}, "it sets 'expected_failure', which means nothing here; did you mean 'expected_failures'?"),
        ({"case": []}, "it sets 'case', which means nothing here; did you mean 'cases'?"),
        ({"colour": "red"}, "it sets 'colour', which means nothing here; there are plugin, path, target, settings"),
        ({"test_contract": lambda self: None}, "it overrides test_contract, which is the kit's own"),
        ({"test_declaration": lambda self: None}, "it overrides test_declaration, which is the kit's own"),
        ({"pytest_generate_tests": lambda self: None}, "it overrides pytest_generate_tests, which is the kit's own"),
        ({"hook": "custom_generate"}, "it overrides hook, which is the kit's own"),
        ({"test_package_hooks": lambda self: None}, "it overrides the check package-hooks; a check that cannot pass goes into"),
        ({"expected_failures": {"package-hoks": "x"}}, "names 'package-hoks', and there is no such check; did you mean 'package-hooks'?"),
    ],
)
def test_a_subclass_that_says_something_else_is_refused(body, message) -> None:
    assert message in refusal(body)


def test_a_mixin_cannot_override_either() -> None:
    class Mixin:
        def test_contract(self) -> None:
            pass

    assert "it overrides test_contract" in refusal({}, RewardContract, Mixin)


def test_an_expected_failure_of_another_hook_is_refused() -> None:
    other = next((each.id for each in ALL_CHECKS if each.hook == "custom_rm"), "reward-finite")
    assert f"expected_failures names {other!r}, and there is no such check" in refusal({"expected_failures": {other: "x"}}, FilterContract)


def by_a_mixin() -> None:
    class Mixin:
        def test_contract(self) -> None: ...

    type("X", (Mixin, FilterContract), {"path": "a:b", "__module__": "m"})


def by_a_mixin_that_keeps_the_hook_of_subclassing() -> None:
    class Mixin:
        def __init_subclass__(cls, **options: object) -> None: ...

    type("X", (Mixin, FilterContract), {"path": "a:b", "test_contract": None})


def afterwards() -> None:
    setattr(fresh(), "test_contract", None)  # noqa: B010


def by_hiding_the_class() -> None:
    setattr(fresh(), "__test__", False)  # noqa: B010


def by_a_skip_mark() -> None:
    pytest.mark.skip(reason="later")(fresh())


def by_an_xfail_mark_in_the_body() -> None:
    type("X", (FilterContract,), {"path": "a:b", "pytestmark": [pytest.mark.xfail]})


def for_all_plugins() -> None:
    setattr(FilterContract, "test_contract", None)  # noqa: B010


def fresh() -> type[FilterContract]:
    return type("X", (FilterContract,), {"path": "a:b"})


@pytest.mark.parametrize(
    "hide",
    [
        by_a_mixin,
        by_a_mixin_that_keeps_the_hook_of_subclassing,
        afterwards,
        by_hiding_the_class,
        by_a_skip_mark,
        by_an_xfail_mark_in_the_body,
        for_all_plugins,
    ],
)
def test_checks_cannot_be_hidden(hide: Callable[[], None]) -> None:
    with pytest.raises(pytest.fail.Exception, match="expected_failures"):
        hide()


def test_other_marks_are_welcome() -> None:
    marked = pytest.mark.timeout(60)(fresh())
    assert marked.__test__


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
