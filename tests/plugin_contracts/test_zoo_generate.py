"""The checks of generate functions: sound ones pass, each wrong one fails in its check, and the run refuses what it can tell."""

from __future__ import annotations

import re
from typing import Any

import pytest

from vime.errors import VimeError
from vime.testing.checks import generate
from vime.testing.checks.base import Bench
from vime.testing.checks.rollout_stage import Stage
from vime.testing.runner import check
from vime.testing.subject import find_subject
from zoo import generate as loud
from zoo import generate_leftovers, generate_quiet
from zoo.base import Wrong, unbroken

NUM_GPUS = 0

ZOO = (*loud.WRONG, *generate_quiet.WRONG, *generate_leftovers.WRONG)
SLOW = {"generate-blocking"}
"""It blocks in every check: the others would only take their time."""


@pytest.mark.parametrize("target", loud.SOUND, ids=lambda target: target.__name__)
def test_sound_functions_pass(target: Any) -> None:
    report = check(target, hook=None if isinstance(target, type) else loud.HOOK)
    assert report.failures == []
    assert report["generate-tokens"].status == "pass"


@pytest.mark.parametrize("entry", ZOO, ids=lambda entry: entry.name)
def test_a_wrong_function_fails_in_its_check(entry: Wrong) -> None:
    if entry.check in SLOW:
        assert entry.report(only={entry.check})[entry.check].message == entry.message
    else:
        entry.assert_refused()


@pytest.mark.parametrize("entry", [entry for entry in ZOO if entry.core], ids=lambda entry: entry.name)
def test_the_run_refuses_it_too(entry: Wrong) -> None:
    assert entry.core is not None
    bench = Bench(find_subject(entry.target, hook=entry.hook, args=entry.args), loud.HOOK)
    with Stage(bench) as stage, pytest.raises(VimeError, match=re.escape(entry.core)):
        run(stage)


def run(stage: Stage) -> None:
    """Two rollouts and an evaluation."""
    stage.train(0)
    stage.train(1)
    stage.evaluate()


def test_every_check_is_broken_by_an_entry() -> None:
    assert unbroken(generate.CHECKS, ZOO) == []


def test_continuing_is_asked_of_those_who_use_it() -> None:
    result = check(generate_quiet.begins_again, hook=loud.HOOK, only={"generate-partial"})["generate-partial"]
    assert result.status == "skip"
    assert result.message.endswith("use it without --partial-rollout")


def test_a_function_for_chat_messages_alone_is_checked_with_them() -> None:
    report = check(chat_only, hook=loud.HOOK)
    assert report.failures == []
    assert report["generate-tokens"].status == "pass"


async def chat_only(args: Any, sample: Any, sampling_params: Any, engine: Any = None) -> Any:
    if isinstance(sample.prompt, str):
        raise TypeError("a list of messages is expected")
    return await loud.plain(args, sample, sampling_params, engine)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
