"""nonzero-std keeps a group only when its rollouts have different rewards."""

import math

import pytest

import vime_filters_basic.nonzero_std as module
from vime.api import ContractError, Sample, Status
from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager

NUM_GPUS = 0


def group(*rewards, **fields):
    return [Sample(index=index, reward=reward, status=Status.COMPLETED, **fields) for index, reward in enumerate(rewards)]


def verdict(samples, config=None, **settings):
    config = config or RunConfig(plugin=["nonzero-std"], plugin_settings={"nonzero-std": settings} if settings else {})
    (function,) = PluginManager.load(config).implementations("dynamic_sampling_filter")
    return function.call(args=config, samples=samples)


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ((0.5, 0.5, 0.5), "zero_std_0.5"),
        ((0.5, 0.5, 0.500001), "zero_std_0.5"),
        ((0.1 + 0.2, 0.3), "zero_std_0.3"),
        ((1.0, 1.0), "zero_std_1.0"),
        ((-0.0, -0.01e-6), "zero_std_0.0"),
    ],
)
def test_case_a7_equal_rewards_are_dropped_with_their_value(rewards, reason):
    output = verdict(group(*rewards))
    assert (output.keep, output.reason, output.keep_when_insufficient) == (False, reason, False)


@pytest.mark.parametrize("rewards", [(0.0, 1.0), (0.0, 0.0, 0.0, 1.0), (0.5, 0.6), (-1.0, 1.0)])
def test_different_rewards_are_kept(rewards):
    output = verdict(group(*rewards))
    assert output.keep and output.reason is None


def test_case_a4_a_group_of_one_is_dropped_as_such():
    output = verdict(group(1.0))
    assert (output.keep, output.reason) == (False, "single_sample")
    assert verdict(group(1.0), tolerance=-1.0).keep is False


@pytest.mark.parametrize(("last", "keep"), [(0.0, True), (1.0, False)])
def test_case_a5_a_rollout_of_several_samples_counts_once(last, keep):
    siblings = [Sample(reward=1.0, rollout_id=0), Sample(reward=1.0, rollout_id=0)]
    assert verdict([*siblings, Sample(reward=last, rollout_id=1)]).keep is keep
    assert verdict(siblings).reason == "single_sample"


def test_case_a6_dict_rewards_by_their_key():
    samples = group({"acc": 1, "len": 5}, {"acc": 0, "len": 5})
    assert verdict(samples, RunConfig(plugin=["nonzero-std"], reward_key="acc")).keep
    assert verdict(samples, RunConfig(plugin=["nonzero-std"], reward_key="len")).reason == "zero_std_5.0"
    with pytest.raises(ContractError, match="no reward key"):
        verdict(samples)


def test_failed_samples_have_no_reward():
    failed = Sample(index=9, status=Status.FAILED, reward=0.0)
    assert verdict([*group(1.0, 1.0), failed]).reason == "zero_std_1.0"
    assert verdict([*group(1.0), failed]).reason == "single_sample"
    assert verdict([failed, Sample(reward=None)]).reason == "no_reward"


def test_settings():
    assert not verdict(group(0.0, 0.1), tolerance=0.2).keep
    assert verdict(group(0.0, 0.1), tolerance=0.01).keep
    assert verdict(group(1.0, 1.0), keep_when_insufficient=True).keep_when_insufficient


def test_upstreams_import_path_gives_the_same_functions():
    from vime.rollout.filter_hub.dynamic_sampling_filters import check_reward_nonzero_std, check_reward_nonzero_std_with_fallback

    assert check_reward_nonzero_std is module.check_reward_nonzero_std
    assert check_reward_nonzero_std(RunConfig(), group(0.0, 1.0)).keep
    assert check_reward_nonzero_std_with_fallback(RunConfig(), group(1.0, 1.0)).keep_when_insufficient


def test_as_a_path_flag():
    path = "vime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std_with_fallback"
    output = verdict(group(math.pi, math.pi), RunConfig(dynamic_sampling_filter_path=path))
    assert (output.keep, output.reason, output.keep_when_insufficient) == (False, "zero_std_3.1", True)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
