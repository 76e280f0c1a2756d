"""A group counts by rollouts, without what failed."""

import pytest

from vime.api import ContractError, Sample, Status
from vime.config.run_config import RunConfig
from vime_filters_basic.verdicts import finished_rollouts, rewards

NUM_GPUS = 0


def test_siblings_are_one_rollout_and_failed_samples_are_none():
    first, second, third = Sample(rollout_id=0), Sample(rollout_id=0, status=Status.FAILED), Sample(rollout_id=1)
    alone, failed = Sample(), Sample(status=Status.FAILED)
    assert finished_rollouts([first, second, third, alone, failed]) == [[first], [third], [alone]]
    assert finished_rollouts([]) == finished_rollouts([failed]) == []


def test_one_reward_for_each_rollout():
    siblings = [Sample(reward=None, rollout_id=0), Sample(reward=2.0, rollout_id=0)]
    assert rewards(RunConfig(), [*siblings, Sample(reward=True), Sample(reward=None), Sample(reward=5.0, status=Status.FAILED)]) == [
        2.0,
        1.0,
    ]


def test_dict_rewards_by_their_key():
    group = [Sample(reward={"acc": 1, "len": 9}), Sample(reward={"acc": 0, "len": 7}), Sample(reward=None, status=Status.FAILED)]
    assert rewards(RunConfig(reward_key="len"), group) == [9.0, 7.0]
    with pytest.raises(ContractError, match="no reward key"):
        rewards(RunConfig(), group)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
