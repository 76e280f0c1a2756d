"""The checks of rollout functions: sound ones pass, each wrong one fails in its check, and the run refuses what it can tell."""

from __future__ import annotations

import re
from typing import Any

import pytest

from vime.errors import VimeError
from vime.testing.checks import rollout
from vime.testing.checks.base import Bench
from vime.testing.checks.rollout_stage import Stage
from vime.testing.runner import check
from vime.testing.subject import find_subject
from zoo import rollout as loud
from zoo import rollout_quiet
from zoo.base import Wrong, unbroken

NUM_GPUS = 0

ZOO = (*loud.WRONG, *rollout_quiet.WRONG)
SLOW = {"rollout-blocking"}
"""It blocks in every check: the others would only take their time."""


@pytest.mark.parametrize("target", [*loud.SOUND, "sft"], ids=lambda target: getattr(target, "__name__", target))
def test_sound_rollouts_pass(target: Any) -> None:
    report = check(target, hook=None if isinstance(target, type | str) else loud.HOOK)
    assert report.failures == []
    assert report["rollout-train"].status == "pass"


@pytest.mark.parametrize("entry", ZOO, ids=lambda entry: entry.name)
def test_a_wrong_rollout_fails_in_its_check(entry: Wrong) -> None:
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
    assert unbroken(rollout.CHECKS, ZOO) == []


def test_a_refused_configuration_is_a_skip_that_says_what_to_give() -> None:
    report = check("sft", args={"loss_type": "policy_loss"})
    assert report.passed
    assert report["rollout-train"].status == "skip"
    assert "plugin 'sft' gives every sample the reward 0" in report["rollout-train"].message
    assert report["rollout-train"].message.endswith("give one that it takes as args")


def test_the_author_chooses_the_batch_shape() -> None:
    report = check(loud.sound, hook=loud.HOOK, args={"rollout_batch_size": 5, "n_samples_per_prompt": 3})
    assert report.passed


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
