"""Whoever is told of failed rewards: the first of each kind as a line, and the reasons of what was dropped for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vime.errors import ContractError, EngineError
from vime.rollout.reward_failures import RewardFailures
from vime.sample import Sample

NUM_GPUS = 0


async def fails(args: Any, sample: Sample) -> float:
    raise KeyError("answer")


def test_the_first_failure_of_each_kind_is_told_once() -> None:
    failures = RewardFailures("zero")
    sample = Sample(index=4, group_index=1)
    for error in (KeyError("answer"), KeyError("other"), ValueError("a\nb")):
        failures.add("judge", error, sample, evaluation=False)
    first, second = failures.take_notices()
    assert first == (
        "the reward 'judge' failed (KeyError) for sample 4 (group 1): 'answer'; "
        "such samples get 0, and are counted in rollout/reward_errors/judge/KeyError"
    )
    assert "(ValueError) for sample 4 (group 1): a b;" in second
    failures.add("judge", KeyError("again"), sample, evaluation=True)
    assert failures.take_notices() == []
    assert failures.take_counts() == {"reward_errors/judge/KeyError": 2.0, "reward_errors/judge/ValueError": 1.0}
    assert failures.take_counts() == {}
    assert failures.take_counts(evaluation=True) == {"reward_errors/judge/KeyError": 1.0}


def test_a_rollout_that_gives_up_names_the_reward_and_not_a_filter(setup_run: Callable[..., Any]) -> None:
    run = setup_run(reward=fails, on_reward_error="drop", dynamic_sampling_max_rounds=2)
    with pytest.raises(ContractError) as caught:
        run.train()
    assert "8 x the reward 'custom_rm-0' failed (KeyError)" in caught.value.message
    assert caught.value.hint is not None and caught.value.hint.startswith("see to what fails (--on-reward-error raise")


def test_an_evaluation_whose_rewards_all_fail_counts_as_wrong_and_is_told(setup_run: Callable[..., Any]) -> None:
    run = setup_run(reward=fails, on_reward_error="drop")
    _, metrics, _ = run.evaluate()
    assert metrics["held-out"] == 0.0 and metrics["held-out/failed_samples"] == 4
    assert metrics["reward_errors/custom_rm-0/KeyError"] == 4.0
    (notice,) = run.runner.context.scorer.failures.take_notices()
    assert "'answer'; such samples count as wrong, and are counted in eval/reward_errors/custom_rm-0/KeyError" in notice


def test_an_evaluation_that_cannot_generate_at_all_is_an_error(setup_run: Callable[..., Any]) -> None:
    with pytest.raises(EngineError, match="all 4 samples failed"):
        setup_run(failure_rate=1.0).evaluate()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
