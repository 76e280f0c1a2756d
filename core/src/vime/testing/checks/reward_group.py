"""Checks of rewards that score a whole group: one reward per sample, in order, for groups of any size."""

from __future__ import annotations

from vime.errors import VimeError
from vime.rollout.rewards import RewardScorer
from vime.sample import Sample, Status
from vime.testing.checks.base import Bench, Check, fail, skip
from vime.testing.checks.reward_bench import ALONE, RewardBench, compare, raised, require_deterministic, require_groups, short
from vime.testing.checks.reward_inputs import NEED_CASE, Input

ORDER_HINT = "return the rewards in the order of `samples`: the first reward belongs to the first sample"


def group_shape(bench: Bench) -> None:
    """For a group the reward is a list of valid rewards, one for each sample, whatever the size of the group."""
    with RewardBench(bench) as reward:
        require_groups(reward)
        found = reward.survey()
        if not found.valid and not found.misshapen:
            skip(f"no sample was found that this reward can score; {NEED_CASE}")
        one = found.gold or (found.valid[0][0] if found.valid else Input("4", "4"))
        for size in (4, 1, 2, 3, 8):
            reward.still()
            group = _group(reward, one, size)
            try:
                _score_group(reward, group, size)
            except Exception as error:
                if isinstance(error, VimeError):
                    raise
                fail(f"{reward.who} {raised(error)} for a group of {size}", "a group may have any size; one of 1 has no deviation")
        if found.misshapen:
            raise found.misshapen[0]


def group_order(bench: Bench) -> None:
    """The rewards of a group are in the order of its samples: the group in another order gets the same ones, in that order."""
    require_deterministic(bench)
    with RewardBench(bench) as reward:
        require_groups(reward)
        one = reward.one()
        found = reward.survey()
        pair = [found.gold, found.wrong] if found.gold and found.wrong else [one, one.but(response="I do not know.")]
        shown = [*pair, one.but(response="maybe"), one.but(response="a longer answer that says nothing")]
        for inputs in (shown[:2], shown):
            forward = reward.group_values([reward.fresh(each, group_index=0) for each in inputs])
            backward = reward.group_values([reward.fresh(each, group_index=0) for each in reversed(inputs)])
            compare(
                backward[::-1],
                forward,
                f"{reward.who} gives a sample {{got:g}} in the reversed group, and {{expected:g}} in the group as it was",
                ORDER_HINT,
            )


def group_agrees(bench: Bench) -> None:
    """A reward that scores both single samples and groups gives the same either way."""
    require_deterministic(bench)
    with RewardBench(bench) as reward:
        require_groups(reward)
        if reward.grouped:
            return
        one = reward.one()
        found = reward.survey()
        inputs = [found.gold, found.wrong] if found.gold and found.wrong else [one]
        inputs += [one.but(response="maybe")]
        singly = [reward.value(each) for each in inputs]
        together = reward.group_values([reward.fresh(each, group_index=0) for each in inputs])
        for each, got, expected in zip(inputs, together, singly, strict=True):
            compare(
                [got],
                [expected],
                f"{reward.who} gives {{got:g}} for the response {short(each.response)} in a group, and {{expected:g}} on its own",
                "score each sample by the same function in both modes",
            )


def group_with_failed(bench: Bench) -> None:
    """A group from which failed samples were left out gets its rewards, and the failed samples none."""
    with RewardBench(bench) as reward:
        require_groups(reward)
        group = _group(reward, reward.one(), 4)
        group[1].status, group[3].status = Status.FAILED, Status.TRUNCATED
        try:
            _score_group(reward, group, 4)
        except Exception as error:
            if isinstance(error, VimeError):
                raise
            fail(f"{reward.who} {raised(error)} for a group of 4 of which one failed", "take the size from len(samples)")


def _group(reward: RewardBench, one: Input, size: int) -> list[Sample]:
    responses = [one.response, "I do not know.", "", "maybe", one.response, "a", "b", "c"]
    return [reward.fresh(one.but(response=response), group_index=0) for response in responses[:size]]


def _score_group(reward: RewardBench, group: list[Sample], size: int) -> None:
    """Score the group as a run does under --group-rm, in this process."""
    config = reward.bench.config(group_rm=True, reward_isolation="thread", reward_key=reward.key, n_samples_per_prompt=size, **ALONE)
    scorer = RewardScorer(config, reward.manager)
    try:
        reward.run(scorer.score_group(group))
    finally:
        scorer.close()


CHECKS: tuple[Check, ...] = (
    Check("reward-group-shape", "custom_rm", group_shape),
    Check("reward-group-order", "custom_rm", group_order),
    Check("reward-group-agrees", "custom_rm", group_agrees),
    Check("reward-group-with-failed", "custom_rm", group_with_failed),
)
