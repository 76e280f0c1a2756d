"""length removes answers that are too short or too long from training."""

import pytest

from vime.api import PluginError, Sample, Status
from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager
from vime_filters_basic.length import Length

NUM_GPUS = 0


def answer(length, status=Status.COMPLETED, **fields):
    return Sample(response_length=length, tokens=[0] * (1 + length), status=status, **fields)


def removed(*groups, **settings):
    """The flags after the filter has run, by group."""
    plugin = PluginManager().add(Length, name="length", settings=settings)
    given = list(groups)
    assert plugin.hooks["rollout_sample_filter"].call(args=RunConfig(), samples=given) is None
    assert given == list(groups)
    return [[sample.remove_sample for sample in group] for group in given]


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({"min_tokens": 2}, [True, True, False, False, False]),
        ({"max_tokens": 3}, [False, False, False, False, True]),
        ({"min_tokens": 2, "max_tokens": 3}, [True, True, False, False, True]),
        ({"min_tokens": 3, "max_tokens": 3}, [True, True, True, False, True]),
        ({"max_tokens": 0}, [False, True, True, True, True]),
        ({}, [False] * 5),
    ],
)
def test_bounds_are_inclusive(settings, flags):
    lengths = [0, 1, 2, 3, 4]
    assert removed([answer(length) for length in lengths], **settings) == [flags]
    assert removed(*([answer(length)] for length in lengths), **settings) == [[flag] for flag in flags]


def test_nothing_to_filter():
    assert removed(min_tokens=1) == []
    assert removed([], min_tokens=1) == [[]]


def test_what_was_removed_stays_removed():
    assert removed([answer(5, remove_sample=True), answer(0, remove_sample=True), answer(5)], min_tokens=1) == [[True, True, False]]


def test_a_rollout_of_several_samples_is_one_answer():
    """Together 6 tokens: within 5 to 6, above 5, and neither part alone is what counts."""

    def rollout():
        return [answer(2, rollout_id=0), answer(4, rollout_id=0), answer(5, rollout_id=1)]

    assert removed(rollout(), min_tokens=5, max_tokens=6) == [[False, False, False]]
    assert removed(rollout(), max_tokens=5) == [[True, True, False]]
    assert removed(rollout(), min_tokens=6) == [[False, False, True]]


def test_groups_do_not_share_rollouts():
    assert removed([answer(2, rollout_id=0)], [answer(4, rollout_id=0)], max_tokens=4) == [[False], [False]]


def test_failed_samples_are_left_alone():
    failed = {"status": Status.FAILED, "reward": None}
    assert removed([answer(9, **failed), answer(9)], max_tokens=5) == [[False, True]]
    assert removed([answer(3, rollout_id=0), answer(9, rollout_id=0, **failed)], max_tokens=5) == [[False, False]]


def test_tool_output_counts_unless_the_user_says_otherwise():
    def with_tool():
        sample = Sample(tokens=[1], status=Status.COMPLETED)
        sample.append_response_tokens(tokens=[2, 3], log_probs=[-0.1, -0.1])
        sample.append_response_tokens(tokens=[4, 5, 6], trainable=False)
        return [sample]

    assert removed(with_tool(), max_tokens=4) == [[True]]
    assert removed(with_tool(), max_tokens=4, trained_only=True) == [[False]]
    assert removed(with_tool(), min_tokens=3, trained_only=True) == [[True]]
    assert removed([answer(5)], max_tokens=4, trained_only=True) == [[True]], "without a mask every token is trained"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_tokens": 5, "max_tokens": 4}, r"plugin 'length': .*min_tokens \(5\) is above max_tokens \(4\)"),
        ({"min_tokens": -1}, "plugin 'length': setting 'min_tokens'"),
        ({"max_tokens": 1.5}, "plugin 'length': setting 'max_tokens'"),
        ({"max_token": 5}, "plugin 'length': unknown setting 'max_token'"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(PluginError, match=message):
        PluginManager().add(Length, name="length", settings=settings)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
