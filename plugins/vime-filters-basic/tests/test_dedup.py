"""dedup drops groups whose answers are all the same text."""

import pytest

from vime.api import PluginError, Sample, Status
from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager
from vime_filters_basic.dedup import Dedup

NUM_GPUS = 0


def verdict(samples, **settings):
    plugin = PluginManager().add(Dedup, name="dedup", settings=settings)
    return plugin.hooks["dynamic_sampling_filter"].call(args=RunConfig(), samples=samples)


def group(*texts, **fields):
    return [Sample(index=index, response=text, status=Status.COMPLETED, **fields) for index, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("texts", "keep"),
    [
        (("4", "4", "4"), False),
        (("4", "4", "5"), True),
        ((" 4\n", "4"), False),
        (("1 + 1", "1+1"), True),  # white space inside counts
        (("", ""), False),
        (("", " "), False),
        (("Yes", "yes"), True),
    ],
)
def test_all_answers_are_compared(texts, keep):
    output = verdict(group(*texts))
    assert (output.keep, output.reason, output.keep_when_insufficient) == (keep, None if keep else "all_same_text", False)


def test_white_space_counts_where_the_user_says_so():
    assert verdict(group(" 4", "4"), strip=False).keep
    assert not verdict(group(" 4", " 4"), strip=False).keep


def test_rewards_play_no_part():
    same, other = group("4", "4")
    same.reward, other.reward = {"acc": 1}, None
    assert verdict([same, other]).reason == "all_same_text"


def test_keep_when_insufficient():
    assert verdict(group("4", "4"), keep_when_insufficient=True).keep_when_insufficient


def test_a_single_answer_is_kept():
    assert verdict([]).keep
    assert verdict(group("4")).keep
    assert verdict(group("4", "4", rollout_id=7)).keep, "one rollout of two samples"


@pytest.mark.parametrize(
    ("first", "second", "keep"), [("ab", "ab", False), ("ab", "ba", True), ("ab", "aa", True), ("ab", "a", True), ("aa", "a", True)]
)
def test_rollouts_of_several_samples_are_compared_as_a_whole(first, second, keep):
    samples = [*group(*first, rollout_id=1), *group(*second, rollout_id=2)]
    assert verdict(samples).keep is keep


def test_failed_samples_have_no_answer():
    failed = Sample(response="something else", status=Status.FAILED)
    assert verdict([*group("4", "4"), failed]).reason == "all_same_text"
    assert verdict([*group("4"), failed]).keep
    assert verdict([failed, failed]).keep


def test_unknown_settings_are_refused():
    with pytest.raises(PluginError, match="plugin 'dedup': unknown setting 'stripped'"):
        PluginManager().add(Dedup, name="dedup", settings={"stripped": True})


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
