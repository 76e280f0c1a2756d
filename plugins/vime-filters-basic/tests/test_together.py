"""Several filters in one run: all must agree, the first refusal counts, and its reason is a metric."""

import asyncio

import pytest

from vime.api import Sample, Status
from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager
from vime.rollout.dynamic_sampling import Collected, judge
from vime.rollout.metrics import dropped_metrics
from vime_filters_basic.dedup import Dedup
from vime_filters_basic.nonzero_std import NonzeroStd
from vime_filters_basic.reward_range import RewardRange

NUM_GPUS = 0

FILTERS = {"dedup": Dedup, "nonzero-std": NonzeroStd, "reward-range": RewardRange}


def group(texts, *rewards):
    pairs = zip(texts, rewards, strict=True)
    return [Sample(index=index, response=text, reward=reward, status=Status.COMPLETED) for index, (text, reward) in enumerate(pairs)]


GROUPS = [group("aa", 1.0, 1.0), group("ab", 1.0, 1.0), group("ab", 0.0, 0.0), group("ab", 0.0, 1.0), group("abc", 0.9, 1.0, 1.0)]


@pytest.mark.parametrize(
    ("order", "drops"),
    [
        ("dedup nonzero-std reward-range", {"all_same_text": 1, "zero_std_1.0": 1, "zero_std_0.0": 1, "mean_above_range": 1}),
        ("nonzero-std dedup reward-range", {"zero_std_1.0": 2, "zero_std_0.0": 1, "mean_above_range": 1}),
        ("reward-range nonzero-std dedup", {"mean_above_range": 3, "mean_below_range": 1}),
    ],
)
def test_the_first_refusal_in_the_users_order_gives_the_metric(order, drops):
    plugins = PluginManager()
    for name in order.split():
        plugins.add(FILTERS[name], name=name)
    collected = Collected()
    for members in GROUPS:
        verdict = asyncio.run(judge(plugins.implementations("dynamic_sampling_filter"), RunConfig(), members))
        if verdict.keep:
            collected.kept.append(members)
        else:
            collected.drop(members, verdict.reason)
    assert collected.kept == [GROUPS[3]]
    metrics = dropped_metrics(collected)
    assert {key: value for key, value in metrics.items() if "drop_" in key} == {f"dynamic_filter/drop_{key}": n for key, n in drops.items()}
    assert metrics["samples_filtered"] == 9


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
