"""Checks of `post_process_rewards`: from the rewards of a batch to what becomes the advantages."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from vime.api import ConfigError, Sample, Status
from vime.rollout.unchanged import Snapshot
from vime.testing.checks.base import Bench, Check, CheckFailed, fail, skip
from vime.testing.factories import fan_out_group, finished_group
from vime.train.batch import build_train_batch

HOOK = "post_process_rewards"

Groups = list[list[Sample]]


def batch(sizes: Sequence[int] = (4, 4, 4), *, rewards: Sequence[float] = (1.0, 0.0, 0.25, 0.5, -1.0), seed: int = 0) -> Groups:
    """Finished groups of these sizes with rewards drawn from `rewards`, no group with one reward throughout."""
    rng, groups, first = random.Random(seed), Groups(), 0
    for number, size in enumerate(sizes):
        values = [rng.choice(rewards) for _ in range(size)]
        if size > 1 and len(set(rewards)) > 1 and len(set(values)) == 1:
            values[0] = next(reward for reward in rewards if reward != values[1])
        groups.append(finished_group(values, group_index=number, first_index=first))
        first += size
    return groups


def shaped(bench: Bench, groups: Groups, **options: Any) -> tuple[list[float], list[float]]:
    """(raw, shaped) rewards, as the run asks for them and checks them."""
    sizes = {"rollout_batch_size": len(groups), "n_samples_per_prompt": max(1, len(groups[0]))}
    config = bench.config(**(sizes | dict(bench.subject.args) | options))
    result = build_train_batch(config, bench.load(config), groups)
    return result.raw_rewards, result.rewards


def result(bench: Bench) -> None:
    """It returns (raw_rewards, rewards), two sequences with a finite number for each sample."""
    try:
        shaped(bench, batch())
    except ConfigError as error:
        skip(f"it refuses the configuration of the checks: {error.message}; give one that it takes as args")


def _works(bench: Bench) -> None:
    try:
        shaped(bench, batch())
    except (Exception, CheckFailed):  # noqa: BLE001 - reported by post-process-result
        skip("there is no result to look at, see post-process-result")


def raw(bench: Bench) -> None:
    """raw_rewards are the rewards of the samples, in their order: they are what is logged."""
    _works(bench)
    groups = batch()
    rewards = [(sample.index, sample.reward) for group in groups for sample in group]
    found, _ = shaped(bench, groups)
    for (index, reward), value in zip(rewards, found, strict=True):
        if value != reward:
            fail(
                f"raw_rewards has {value:g} for sample {index}, whose reward is {reward}",
                hint="return (raw_rewards, rewards): what the reward function gave, then what is trained on",
            )


def equal_rewards(bench: Bench) -> None:
    """Groups in which all rewards are equal, and groups of one sample, get finite numbers."""
    _works(bench)
    for value in (0.0, 1.0):
        shaped(bench, batch((4, 4), rewards=[value]))
    shaped(bench, batch((1, 1)))


def unequal_groups(bench: Bench) -> None:
    """Groups may differ in size: the samples of a group are those with its group_index."""
    _works(bench)
    groups = batch((3, 1, 4, 2, 2), seed=1)
    _check_order(bench, groups)
    groups = [fan_out_group((1.0, 0.0), group_index=0), finished_group((0.0, 1.0), group_index=1)]
    _check_order(bench, groups)


def _check_order(bench: Bench, groups: Groups) -> None:
    """A sample gets the same number wherever its group stands in the batch."""
    _, one = shaped(bench, groups)
    backwards = groups[::-1]
    _, other = shaped(bench, backwards)
    again = {id(sample): value for sample, value in zip((sample for group in backwards for sample in group), other, strict=True)}
    for sample, value in zip((sample for group in groups for sample in group), one, strict=True):
        if abs(value - again[id(sample)]) > 1e-6 * max(1.0, abs(value)):
            fail(
                f"with groups of {', '.join(str(len(group)) for group in groups)} samples, sample {sample.index} of group "
                f"{sample.group_index} gets {value:.4g}, and {again[id(sample)]:.4g} when the groups come in the opposite order",
                hint="gather the samples by sample.group_index; do not cut the flat list into equal parts",
            )


def failed(bench: Bench) -> None:
    """A failed sample, which has no reward, does not spoil the numbers of the others."""
    _works(bench)
    groups = batch((4, 4))
    groups[0][1].reward, groups[0][1].status = None, Status.FAILED
    try:
        shaped(bench, groups, on_reward_error="drop")
    except TypeError as error:
        skip(f"it does not take samples without a reward ({error}); they come with --on-reward-error drop only")


def dict_rewards(bench: Bench) -> None:
    """Dict rewards are read with the run's reward key."""
    _works(bench)
    groups = batch((4, 4))
    plain_numbers = shaped(bench, groups)[1]
    for group in groups:
        for sample in group:
            sample.reward = {"length": float(sample.index or 0), "accuracy": sample.reward}
    values = shaped(bench, groups, reward_key="accuracy")[1]
    if any(abs(one - other) > 1e-6 for one, other in zip(plain_numbers, values, strict=True)):
        fail("it gives other numbers for {'accuracy': r} with --reward-key accuracy than for r", hint="sample.get_reward_value(args)")


def pure(bench: Bench) -> None:
    """Samples and configuration stay as they are."""
    _works(bench)
    groups = batch()
    config = bench.config(**({"rollout_batch_size": 3, "n_samples_per_prompt": 4} | dict(bench.subject.args)))
    plugins = bench.load(config)
    before = Snapshot((sample for group in groups for sample in group), config)
    build_train_batch(config, plugins, groups)
    before.check(bench.function(plugins).label, HOOK)


CHECKS: tuple[Check, ...] = (
    Check("post-process-result", HOOK, result),
    Check("post-process-raw", HOOK, raw),
    Check("post-process-equal-rewards", HOOK, equal_rewards),
    Check("post-process-groups", HOOK, unequal_groups),
    Check("post-process-failed", HOOK, failed),
    Check("post-process-dict-rewards", HOOK, dict_rewards),
    Check("post-process-pure", HOOK, pure),
)
