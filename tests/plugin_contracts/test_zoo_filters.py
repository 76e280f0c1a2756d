"""Every wrong filter, shaping and sample hook of the zoo is refused by the kit, word for word, and by the run where it can tell."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vime.errors import VimeError
from vime.rollout.buffer import take_with_filter
from vime.rollout.context import RolloutContext
from vime.rollout.dynamic_sampling import judge
from vime.rollout.rewards import RewardScorer
from vime.rollout.runner import RolloutRunner
from vime.testing.checks import all_samples, buffer_filter, filters, sample_filter, sample_hook, shape_reward
from vime.testing.factories import finished_group, finished_groups
from vime.testing.fakes import FakeEngine
from vime.testing.runner import check
from vime.testing.subject import find_subject
from zoo import buffer_filters, sample_filters, shaping, sound_filters
from zoo import filters as zoo_filters
from zoo.base import Wrong, unbroken

NUM_GPUS = 0

ZOO = zoo_filters.ZOO + sample_filters.ZOO + buffer_filters.ZOO + shaping.ZOO
CHECKS = filters.CHECKS + sample_filter.CHECKS + buffer_filter.CHECKS + shape_reward.CHECKS + sample_hook.CHECKS + all_samples.CHECKS


@pytest.mark.parametrize("entry", ZOO, ids=lambda entry: f"{entry.name} ({entry.check})")
def test_the_kit_refuses_it_in_exactly_one_way(entry: Wrong) -> None:
    entry.assert_refused()


def as_the_run_calls(entry: Wrong) -> None:
    """Show the hook what a run would show it, with the run's own checks."""
    hook = entry.hook or next(each.hook for each in CHECKS if each.id == entry.check)
    subject = find_subject(entry.target, hook=entry.hook, args=entry.args)
    config = subject.config(rm_type=None)
    manager = subject.load(config)
    function: Any = manager.implementations(hook or "")[0]
    group = finished_group([1.0, 0.0, 1.0, 0.0], label="4")
    if hook == "dynamic_sampling_filter":
        asyncio.run(judge([function], config, group))
    elif hook == "buffer_filter":
        take_with_filter(function, config, 1, finished_groups(5), 0 if "zero" in entry.name else 2)
    elif hook == "rollout_sample_filter":
        context: Any = RolloutContext(config, FakeEngine(), manager, None, deterministic=True)
        built_in: Any = None
        asyncio.run(RolloutRunner(context, built_in)._filter_samples(sample_filter.batch()))
    else:
        manager.add(Scorer, name="scorer")
        for sample in group:
            sample.reward = None
            sample.status = sample.Status.TRUNCATED
        scorer = RewardScorer(config, manager)
        asyncio.run(scorer.score(group))


class Scorer:
    """A reward for hooks that come before and after one."""

    from vime.api import hookimpl

    @hookimpl
    async def custom_rm(self, sample: Any) -> float:
        return 1.0


@pytest.mark.parametrize("entry", [entry for entry in ZOO if entry.core], ids=lambda entry: entry.name)
def test_the_run_refuses_it_too(entry: Wrong) -> None:
    with pytest.raises(VimeError) as caught:
        as_the_run_calls(entry)
    assert caught.value.message == entry.core


@pytest.mark.parametrize("checks", [CHECKS])
def test_every_check_of_these_hooks_is_broken_by_an_entry(checks: tuple[Any, ...]) -> None:
    assert unbroken(checks, ZOO) == []


SOUND: list[tuple[Any, dict[str, Any]]] = [
    ("nonzero-std", {}),
    ("truncated", {}),
    ("vime_filters_basic.nonzero_std:check_reward_nonzero_std", {"hook": "dynamic_sampling_filter"}),
    ("vime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std_with_fallback", {"hook": "dynamic_sampling_filter"}),
    (sound_filters.solved, {"hook": "dynamic_sampling_filter"}),
    (sound_filters.varied, {"hook": "dynamic_sampling_filter"}),
    (sound_filters.NeedsSamples, {}),
    (sound_filters.OncePerPrompt, {}),
    (sound_filters.too_long, {"hook": "rollout_sample_filter"}),
    (sound_filters.WorstHalf, {}),
    (sound_filters.pop_first, {"hook": "buffer_filter"}),
    (sound_filters.FinishedFirst, {}),
    (sound_filters.SeededShuffle, {}),
    (sound_filters.Brevity, {}),
    (sound_filters.Punishment, {}),
    (sound_filters.MarksThinking, {}),
    (sound_filters.as_a_copy, {"hook": "rollout_sample_hook"}),
    (sound_filters.Counter, {}),
]


@pytest.mark.parametrize(("target", "options"), SOUND, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_sound_plugin_fails_no_check(target: Any, options: dict[str, Any]) -> None:
    report = check(target, **options)
    assert [(result.id, result.message) for result in report.failures] == []


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
