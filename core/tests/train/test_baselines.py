"""Group baselines against numbers worked out by hand."""

import math

import pytest

from vime.train.baselines import group_baseline, leave_one_out, shape_rewards, standardise, subtract_mean

NUM_GPUS = 0


def test_grpo_divides_by_the_unbiased_std():
    # mean 0.25, deviations -.25 x 3 and .75; sum of squares .75; unbiased variance .25, std .5
    assert standardise([0.0, 0.0, 0.0, 1.0]) == pytest.approx([-0.5, -0.5, -0.5, 1.5], abs=1e-5)


def test_rloo_leaves_the_own_reward_out():
    # others' means: (2+6)/2, (1+6)/2, (1+2)/2
    assert leave_one_out([1.0, 2.0, 6.0]) == pytest.approx([1 - 4, 2 - 3.5, 6 - 1.5])


def test_dr_grpo_subtracts_the_mean():
    assert subtract_mean([1.0, 2.0, 6.0]) == pytest.approx([-2.0, -1.0, 3.0])


@pytest.mark.parametrize("estimator", ["reinforce_plus_plus", "ppo"])
def test_estimators_without_a_group_keep_the_rewards(estimator):
    assert group_baseline(estimator)([1.0, 2.0]) == [1.0, 2.0]


def test_std_normalization_can_be_switched_off():
    assert group_baseline("grpo", std_normalization=False)([0.0, 1.0]) == [-0.5, 0.5]


@pytest.mark.parametrize("estimator", ["grpo", "gspo", "cispo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"])
def test_a_group_of_one_has_advantage_zero(estimator):
    assert group_baseline(estimator)([5.0]) == [0.0]


def test_case_c1_groups_of_unequal_sizes_are_not_mixed():
    rewards = [0.0, 1.0, 0.0, 1.0, 5.0, 5.0, 5.0, 0.0, 0.0, 1.0, 0.0]
    shaped = shape_rewards(rewards, [7] * 4 + [3] * 3 + [9] * 4, list(range(11)), group_baseline("grpo"))
    assert shaped[4:7] == [0.0, 0.0, 0.0]
    assert shaped[:4] == pytest.approx([-0.866024, 0.866024, -0.866024, 0.866024], abs=1e-5)
    assert shaped[7:] == pytest.approx([-0.5, -0.5, 1.5, -0.5], abs=1e-5)


def test_a_group_is_found_by_its_number_not_by_its_place():
    shaped = shape_rewards([0.0, 10.0, 2.0, 14.0], [0, 1, 0, 1], [0, 1, 2, 3], subtract_mean)
    assert shaped == [-1.0, -2.0, 1.0, 2.0]


@pytest.mark.parametrize("rewards", [[1.0, None, None], [None, None, None]])
def test_case_b11_rows_without_a_reward_are_in_no_statistic(rewards):
    shaped = shape_rewards(rewards, [0, 0, 0], [0, 1, 2], group_baseline("grpo"))
    assert shaped == [0.0, 0.0, 0.0]
    assert shape_rewards([1.0, None, 3.0], [0, 0, 0], [0, 1, 2], subtract_mean) == [-1.0, 0.0, 1.0]


def test_siblings_count_once_in_the_baseline():
    # three rollouts with rewards 0, 0, 3; the last one has three rows
    shaped = shape_rewards([0.0, 0.0, 3.0, 3.0, 3.0], [0] * 5, [0, 1, 2, 2, 2], subtract_mean)
    assert shaped == [-1.0, -1.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize("baseline", [standardise, subtract_mean, leave_one_out])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e8 + 0.1])
def test_equal_rewards_are_exactly_zero_whatever_the_rounding(value, baseline):
    assert baseline([value] * 7) == [0.0] * 7


def test_an_unknown_estimator_is_a_key_error():
    with pytest.raises(KeyError):
        group_baseline("grop")


def test_results_are_finite_for_tiny_spreads():
    assert all(math.isfinite(value) for value in standardise([0.1 + 0.2, 0.3]))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
