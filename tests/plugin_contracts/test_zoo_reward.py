"""Every wrong reward of the zoo is refused by the kit, by name and word for word, and by the run where it can tell."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from vime.errors import VimeError
from vime.rollout.rewards import RewardScorer
from vime.testing.checks import reward
from vime.testing.checks.base import RewardCase
from vime.testing.checks.reward_inputs import Input
from vime.testing.runner import check
from vime.testing.subject import find_subject
from zoo import reward as zoo_reward
from zoo import reward_data, reward_groups, reward_runs, sound_rewards
from zoo.base import Wrong, unbroken

NUM_GPUS = 0

ZOO = zoo_reward.ZOO + reward_data.ZOO + reward_runs.ZOO + reward_groups.ZOO
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
        gc.collect()  # a coroutine that nobody closed warns here


@pytest.mark.parametrize("entry", [entry for entry in ZOO if entry.core], ids=lambda entry: entry.name)
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_the_run_refuses_it_too(entry: Wrong) -> None:
    with pytest.raises(VimeError) as caught:
        as_the_run_scores(entry)
    assert entry.core is not None and entry.core in caught.value.message


def test_every_check_of_rewards_is_broken_by_an_entry() -> None:
    assert unbroken(reward.CHECKS, ZOO) == []


def test_heavy_work_on_the_event_loop_is_told_by_processor_time() -> None:
    result = check(reward_runs.BusyJudge, only=["reward-event-loop"])["reward-event-loop"]
    assert result.message == "plugin 'BusyJudge': custom_rm holds up the event loop: it computes in compare"
    assert "reward_runs.py:" in result.hint


GOLD = RewardCase("What is 2 + 2?", "4", "4", 1.0)
WRONG = RewardCase("What is 2 + 3?", "4", "5", 0.0)
SOUND: list[tuple[Any, dict[str, Any]]] = [
    ("math", {"cases": [RewardCase("What is 2 + 2?", r"\boxed{4}", "4", 1.0), RewardCase("What is 2 + 2?", "5", "4", 0.0)]}),
    (sound_rewards.exact, {"hook": "custom_rm", "cases": [GOLD, WRONG]}),
    (sound_rewards.boxed, {"hook": "custom_rm"}),
    (sound_rewards.batched, {"hook": "custom_rm"}),
    (sound_rewards.batched, {"hook": "custom_rm", "args": {"group_rm": True}}),
    (sound_rewards.scores_both, {"hook": "custom_rm"}),
    (sound_rewards.scores_both, {"hook": "custom_rm", "args": {"group_rm": True}}),
    (sound_rewards.with_few_slots, {"hook": "custom_rm", "cases": [GOLD]}),
    (sound_rewards.Judge, {"deterministic": False}),
    (sound_rewards.Parts, {"args": {"reward_key": "acc"}}),
    (sound_rewards.Parts, {"cases": [RewardCase("2 + 2?", "4", "4", {"acc": 1.0}), RewardCase("2 + 2?", "5", "4", 0.0)]}),
    (sound_rewards.Rank, {}),
    (sound_rewards.Whitened, {"args": {"group_rm": True}}),
    (sound_rewards.Both, {}),
    (sound_rewards.Words, {"cases": sound_rewards.WORDS}),
    (sound_rewards.LengthPenalty, {"settings": {"most": 40}}),
    (sound_rewards.LengthPenalty, {"cases": [RewardCase("Write.", "a word", None, 0.0)]}),
    (sound_rewards.Overlap, {"cases": [RewardCase("Capital of France?", "it is Paris", "Paris", 0.5)]}),
    (sound_rewards.ValidJson, {}),
    (sound_rewards.Tolerance, {"cases": [GOLD, WRONG]}),
    (sound_rewards.NumberOrText, {}),
    (sound_rewards.Curriculum, {"deterministic": False}),
    (sound_rewards.Verbose, {"cases": [GOLD, WRONG]}),
]


@pytest.mark.parametrize(("target", "options"), SOUND, ids=lambda value: getattr(value, "__name__", None))
def test_a_sound_reward_fails_no_check(target: Any, options: dict[str, Any]) -> None:
    report = check(target, **options)
    assert [(result.id, result.message) for result in report.failures] == []
    assert len(report.checks) >= len(reward.CHECKS)


def test_a_reward_that_waits_for_a_second_does_not_hold_up_the_loop() -> None:
    report = check(sound_rewards.SlowJudge, only=["reward-event-loop"])
    assert [(result.id, result.message) for result in report.failures] == []


def test_a_reward_that_needs_metadata_asks_for_a_case() -> None:
    report = check(sound_rewards.Words)
    (failure,) = report.failures
    assert failure.id == "reward-scores"
    assert failure.message.endswith("['keywords'] has to be a list of words, got None for every sample that was tried")
    assert "RewardCase(prompt, response, label, reward)" in failure.hint
    assert "give a known case" in report["reward-hostile-text"].message


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
