"""From groups to rows: masks, baselines, hooks and their guards."""

import pytest

from vime.errors import ContractError, TrainerError
from vime.plugins.function import HookFunction
from vime.sample import Sample, Status
from vime.train.batch import build_train_batch

NUM_GPUS = 0


class OneHook:
    """A plugin manager with a single claimed hook."""

    def __init__(self, hook, function, order):
        self._function = HookFunction(plugin="p", label="plugin 'p' (p 1.0)", hook=hook, function=function, order=order)

    def claimed(self, hook):
        return self._function if self._function.hook == hook else None

    def implementations(self, hook):
        return [self._function] if self._function.hook == hook else []


def rewards_hook(function):
    return OneHook("post_process_rewards", function, ("args", "samples"))


def convert_hook(function):
    return OneHook("convert_samples_to_train_data", function, ("args", "samples"))


def test_rows_carry_the_ids_that_the_engine_made(make_config, make_groups):  # case E3
    groups = make_groups()
    groups[0][0].response = "another text, which would be tokenised otherwise"
    batch = build_train_batch(make_config(), None, groups, rollout_id=7)
    samples = [sample for group in groups for sample in group]
    assert batch.tokens == [sample.tokens for sample in samples]
    assert batch.rollout_log_probs == [sample.rollout_log_probs for sample in samples]
    assert batch.loss_masks == [[1] * sample.response_length for sample in samples]
    assert batch.rollout_id == 7
    assert len(set(batch.rollout_ids)) == 12


def test_no_samples_is_a_clear_error(make_config):  # case D8
    with pytest.raises(TrainerError, match="returned no samples"):
        build_train_batch(make_config(), None, [])


def test_removed_samples_lose_their_mask_and_keep_their_place_in_the_baseline(make_config, make_groups):
    groups = make_groups(1, 4)
    groups[0][0].remove_sample = True
    batch = build_train_batch(make_config(), None, groups)
    assert batch.trained_rows == [1, 2, 3]
    assert batch.rewards == pytest.approx([-0.866024, 0.866024, -0.866024, 0.866024], abs=1e-5)
    batch = build_train_batch(make_config(exclude_removed_from_baseline=True, advantage_estimator="dr_grpo"), None, groups)
    assert batch.rewards[1:] == pytest.approx([1 / 3, -2 / 3, 1 / 3])


def test_samples_without_a_reward_are_not_trained(make_config, make_groups):  # case B11
    groups = make_groups(1, 3)
    groups[0][0].reward, groups[0][1].reward, groups[0][2].reward = 1.0, None, None
    groups[0][2].status = Status.FAILED
    batch = build_train_batch(make_config(), None, groups)
    assert (batch.rewards, batch.trained_rows) == ([0.0, 0.0, 0.0], [0])
    groups[0][0].reward = None
    assert build_train_batch(make_config(), None, groups).trained_rows == []


def test_sft_rows_need_no_reward(make_config, make_groups):
    groups = make_groups(1, 2)
    for sample in groups[0]:
        sample.reward, sample.rollout_log_probs = None, None
    batch = build_train_batch(make_config(loss_type="sft_loss"), None, groups)
    assert batch.trained_rows == [0, 1] and batch.rollout_log_probs is None


def test_siblings_share_a_rollout(make_config, make_groups):
    groups = make_groups(2, 3)
    groups[0][1].rollout_id = groups[0][2].rollout_id = 40
    groups[1][0].rollout_id = 41
    groups[0][2].reward = groups[0][1].reward
    batch = build_train_batch(make_config(advantage_estimator="dr_grpo"), None, groups)
    assert batch.rollout_ids == [0, 1, 1, 2, 3, 4]
    assert batch.rewards[:3] == [-0.5, 0.5, 0.5]


def test_rewards_normalization_can_be_switched_off(make_config, make_groups):
    batch = build_train_batch(make_config(rewards_normalization=False), None, make_groups(1, 4))
    assert batch.rewards == batch.raw_rewards == [0.0, 1.0, 0.0, 1.0]


def test_a_reward_that_is_not_finite_names_the_sample(make_config, make_groups):
    groups = make_groups(1, 2)
    groups[0][1].reward = float("nan")
    with pytest.raises(ContractError, match="sample 1: the reward is nan"):
        build_train_batch(make_config(), None, groups)


def test_reward_key_picks_the_value(make_config, make_groups):
    groups = make_groups(1, 2)
    for sample in groups[0]:
        sample.reward = {"acc": sample.reward, "length": 3.0}
    assert build_train_batch(make_config(reward_key="acc"), None, groups).raw_rewards == [0.0, 1.0]


def test_post_process_rewards_replaces_the_baseline(make_config, make_groups):
    plugins = rewards_hook(lambda args, samples: ([1.0] * len(samples), [0.5] * len(samples)))
    batch = build_train_batch(make_config(), plugins, make_groups(1, 2))
    assert (batch.raw_rewards, batch.rewards) == ([1.0, 1.0], [0.5, 0.5])


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "returned NoneType"),
        (([1.0], [1.0]), "raw_rewards has 1 entries, expected 2"),
        (([1.0, 1.0], [1.0]), "rewards has 1 entries, expected 2"),
        (([1.0, 1.0], [1.0, float("nan")]), r"rewards\[1\] is nan"),
        (([1.0, 1.0], [1.0, "x"]), r"rewards\[1\] is 'x'"),
        (([1.0, 1.0], 3), "rewards is a int"),
        (([1.0, 1.0], [1.0, None]), r"rewards\[1\] is None, for sample 1 \(group 0\)"),
        (([1.0], [1.0], [1.0]), "returned 3 values; expected a pair"),
        ((([1.0, 1.0], [[1.0], [1.0]])), r"rewards\[0\] is \[1.0\]"),
        ({"rewards": [1.0, 1.0]}, "returned dict; expected a pair"),
    ],
)
def test_post_process_rewards_is_guarded(make_config, make_groups, result, message):
    with pytest.raises(ContractError, match=message) as error:
        build_train_batch(make_config(), rewards_hook(lambda args, samples: result), make_groups(1, 2))
    assert "plugin 'p' (p 1.0): post_process_rewards" in str(error.value) and error.value.hint
    assert error.value.__notes__ == ["in the training batch of rollout 0"]


def _train_data(samples: list[Sample]) -> dict:
    return {
        "tokens": [sample.tokens for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "rewards": [0.5 for _ in samples],
        "raw_reward": [sample.reward for sample in samples],
        "truncated": [0 for _ in samples],
        "sample_indices": [sample.index for sample in samples],
        "loss_masks": [[1] * sample.response_length for sample in samples],
    }


def test_convert_samples_replaces_the_rows(make_config, make_groups):
    groups = make_groups(1, 2)
    plugins = convert_hook(lambda args, samples: _train_data(samples) | {"weights_of_mine": [1, 2]})
    batch = build_train_batch(make_config(), plugins, groups)
    assert batch.rewards == [0.5, 0.5] and batch.extra == {"weights_of_mine": [1, 2]}
    assert batch.rollout_ids == [0, 1] and batch.rollout_log_probs is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: None, "returned NoneType"),
        (lambda data: {key: value for key, value in data.items() if key != "loss_masks"}, "left out loss_masks"),
        (lambda data: data | {"truncated": [0]}, "truncated has 1 entries, expected 2"),
        (lambda data: data | {"rewards": [float("inf"), 0.0]}, r"rewards\[0\] is inf"),
        (lambda data: data | {"loss_masks": None}, "left out loss_masks"),
        (lambda data: data | {"tokens": 5}, "tokens has int, expected a list"),
        (lambda data: data | {"tokens": [5, 6]}, r"tokens\[0\] is a int; expected a list"),
        (lambda data: data | {"mine": [1]}, "mine has 1 entries, expected 2"),
        (lambda data: data | {"mine": 1}, "mine has int, expected 2"),
        (lambda data: data | {"sample_indices": [None, 1]}, r"sample_indices\[0\] is None; expected an int"),
        (lambda data: data | {"response_lengths": ["x", 1]}, r"response_lengths\[0\] is 'x'; expected an int"),
        (lambda data: data | {"loss_masks": [[1], [1]]}, "sample 0: loss_mask has 1 entries for a response of"),
        (lambda data: data | {"rollout_log_probs": [[], []]}, "sample 0: 0 rollout log-probs for a response of"),
        (lambda data: data | {"response_lengths": [99, 99]}, "sample 0: a response of 99 tokens in a row of"),
    ],
)
def test_convert_samples_is_guarded(make_config, make_groups, change, message):
    with pytest.raises(ContractError, match=message) as error:
        build_train_batch(make_config(), convert_hook(lambda args, samples: change(_train_data(samples))), make_groups(1, 2))
    assert error.value.message.startswith("plugin 'p' (p 1.0): convert_samples_to_train_data") and error.value.hint


def test_arrays_and_coroutines_are_taken(make_config, make_groups):
    numpy = pytest.importorskip("numpy")

    async def rewards(args, samples):
        return numpy.ones(len(samples)), numpy.full(len(samples), 0.5, dtype=numpy.float32)

    async def rows(args, samples):
        data = _train_data(samples)
        arrays = {key: [numpy.array(row) for row in data[key]] for key in ("tokens", "loss_masks")}
        return data | arrays | {"sample_indices": numpy.array([0, 1]), "rollout_ids": numpy.array([0, 0])}

    assert build_train_batch(make_config(), rewards_hook(rewards), make_groups(1, 2)).rewards == [0.5, 0.5]
    batch = build_train_batch(make_config(), convert_hook(rows), make_groups(1, 2))
    assert batch.tokens == build_train_batch(make_config(), None, make_groups(1, 2)).tokens
    assert batch.rollout_ids == [0, 0] and type(batch.sample_indices[0]) is int


@pytest.mark.parametrize("hook", ["post_process_rewards", "convert_samples_to_train_data"])
def test_check_hooks_watches_what_lays_out_the_batch(make_config, make_groups, hook):
    def changing(args, samples):
        samples[1].reward = 0.75
        return ([1.0, 1.0], [1.0, 1.0]) if hook == "post_process_rewards" else _train_data(samples)

    plugins = OneHook(hook, changing, ("args", "samples"))
    build_train_batch(make_config(), plugins, make_groups(1, 2))
    with pytest.raises(ContractError, match=r"changed what it was shown: sample 1 \(group 0\): reward 1.0 -> 0.75") as error:
        build_train_batch(make_config(check_hooks=True), plugins, make_groups(1, 2))
    assert error.value.message.startswith(f"plugin 'p' (p 1.0): {hook} ")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("loss_mask", [1], "sample 0: loss_mask has 1 entries for a response of"),
        ("rollout_log_probs", [0.0], "sample 0: 1 rollout log-probs for a response of"),
        ("response_length", 99, "sample 0: a response of 99 tokens in a row of"),
    ],
)
def test_misaligned_samples_are_refused(make_config, make_groups, field, value, message):
    groups = make_groups(1, 2)
    setattr(groups[0][0], field, value)
    with pytest.raises(TrainerError, match=message):
        build_train_batch(make_config(), None, groups)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
