"""Every wrong reward of the zoo is refused by the kit, by name and word for word, and by the run where it can tell."""

from __future__ import annotations

import asyncio

import pytest
from zoo.base import Wrong, unbroken
from zoo.reward import ZOO, BusyJudge

from vime.errors import VimeError
from vime.rollout.rewards import RewardScorer
from vime.testing.checks import reward
from vime.testing.checks.reward_inputs import Input
from vime.testing.runner import check
from vime.testing.subject import find_subject

NUM_GPUS = 0

IN_WORKERS = {"reward-hostile-text", "reward-in-process"}
"""Checks that start worker processes: run where they matter to the entry, and for the good rewards."""
QUICK = [each.id for each in reward.CHECKS if each.id not in IN_WORKERS]


@pytest.mark.parametrize("entry", ZOO, ids=lambda entry: entry.name)
def test_the_kit_refuses_it_in_exactly_one_way(entry: Wrong) -> None:
    concerned = {entry.check, *entry.also} & IN_WORKERS
    report = entry.report(only=None if concerned else QUICK)
    failed = {result.id: result.message for result in report.failures}
    assert failed.get(entry.check) == entry.message, failed
    assert set(failed) == {entry.check, *entry.also}, failed


def as_the_run_scores(entry: Wrong) -> None:
    """Score right, wrong and senseless samples through the core's scorer."""
    subject = find_subject(entry.target, hook=entry.hook, settings=entry.settings, args=entry.args)
    config = subject.config(reward_isolation="thread")
    responses = ["4", "I do not know.", "", "9" * 400, "4"]
    group = [Input(response, "4").sample(index) for index, response in enumerate(responses)]
    scorer = RewardScorer(config, subject.load(config))
    try:
        asyncio.run(scorer.score_group(group) if config.group_rm else scorer.score(group))
    finally:
        scorer.close()


@pytest.mark.parametrize("entry", [entry for entry in ZOO if entry.core], ids=lambda entry: entry.name)
@pytest.mark.filterwarnings(
    "ignore:coroutine:RuntimeWarning", "ignore:divide by zero:RuntimeWarning", "ignore:invalid value:RuntimeWarning"
)
def test_the_run_refuses_it_too(entry: Wrong) -> None:
    with pytest.raises(VimeError) as caught:
        as_the_run_scores(entry)
    assert caught.value.message == entry.core


def test_every_check_of_rewards_is_broken_by_an_entry() -> None:
    assert unbroken(reward.CHECKS, ZOO) == []


def test_heavy_work_on_the_event_loop_is_told_by_processor_time() -> None:
    result = check(BusyJudge, only=["reward-event-loop"])["reward-event-loop"]
    assert result.message == "plugin 'BusyJudge': custom_rm holds up the event loop: it computes in compare"
    assert "reward.py:" in result.hint


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
