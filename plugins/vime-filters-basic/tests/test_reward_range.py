"""reward-range keeps groups whose mean reward lies within the bounds."""

import pytest

from vime.api import PluginError, Sample, Status
from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager
from vime_filters_basic.reward_range import RewardRange

NUM_GPUS = 0

FAILED = Sample(reward=None, status=Status.FAILED)


def verdict(samples, config=None, **settings):
    plugin = PluginManager().add(RewardRange, name="reward-range", settings=settings)
    return plugin.hooks["dynamic_sampling_filter"].call(args=config or RunConfig(), samples=samples)


def group(*rewards):
    return [Sample(index=index, reward=reward, status=Status.COMPLETED) for index, reward in enumerate(rewards)]


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ((0.0, 0.0), "mean_below_range"),
        ((0.0,) * 15 + (1.0,), "mean_below_range"),  # 0.0625
        ((0.0,) * 9 + (1.0,), None),  # 0.1
        ((0.0, 1.0), None),
        ((1.0,) * 9 + (0.0,), None),  # 0.9
        ((1.0,) * 15 + (0.0,), "mean_above_range"),  # 0.9375
        ((1.0, 1.0), "mean_above_range"),
        ((0.5,), None),
        ((), "no_reward"),
    ],
)
def test_the_defaults_drop_the_extremes(rewards, reason):
    output = verdict(group(*rewards))
    assert (output.keep, output.reason, output.keep_when_insufficient) == (reason is None, reason, False)


@pytest.mark.parametrize(
    ("rewards", "keep"),
    [((0.1, 0.2, 0.3), True), ((0.2 - 9e-7,), True), ((0.2 + 9e-7,), True), ((0.2 - 2e-6,), False), ((0.2 + 2e-6,), False)],
)
def test_bounds_are_inclusive_up_to_rounding(rewards, keep):
    assert verdict(group(*rewards), low=0.2, high=0.2).keep is keep


def test_one_bound_alone():
    assert verdict(group(-5.0, -5.0), low=None).keep
    assert verdict(group(7.0, 7.0), high=None).keep
    assert verdict(group(-0.5, -0.7), low=-0.6, high=None).keep
    assert verdict(group(-0.5, -0.7), low=-0.59, high=None).reason == "mean_below_range"


def test_keep_when_insufficient():
    assert verdict(group(1.0), keep_when_insufficient=True).keep_when_insufficient
    assert verdict([], keep_when_insufficient=True).keep_when_insufficient


def test_a_rollout_of_several_samples_counts_once():
    """By samples the mean would be 0.75."""
    siblings = [Sample(reward=1.0, rollout_id=0) for _ in range(3)]
    assert verdict([*siblings, Sample(reward=0.0, rollout_id=1)], low=0.5, high=0.5).keep


def test_dict_rewards_by_their_key():
    samples = group({"acc": 1, "len": 5}, {"acc": 0, "len": 5})
    assert verdict(samples, RunConfig(reward_key="acc")).keep
    assert verdict(samples, RunConfig(reward_key="len")).reason == "mean_above_range"


def test_failed_samples_are_left_out_of_the_mean():
    assert verdict([*group(1.0, 0.0), FAILED, Sample(reward=1.0, status=Status.FAILED)], low=0.5, high=0.5).keep
    assert verdict([FAILED]).reason == "no_reward"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"low": 0.9, "high": 0.1}, r"plugin 'reward-range': .*low \(0.9\) is above high \(0.1\)"),
        ({"low": 0.95}, r"plugin 'reward-range': .*low \(0.95\) is above high \(0.9\)"),
        ({"low": float("nan")}, "plugin 'reward-range': setting 'low': .*finite"),
        ({"high": float("inf")}, "plugin 'reward-range': setting 'high': .*finite"),
        ({"lower": 0.1}, "plugin 'reward-range': unknown setting 'lower'"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(PluginError, match=message):
        PluginManager().add(RewardRange, name="reward-range", settings=settings)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
