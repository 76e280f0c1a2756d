"""How rewards are put on the bench: what they can score, the form they have, and what they look at."""

from __future__ import annotations

from typing import Any

import pytest

from vime.api import Sample, hookimpl
from vime.testing import check
from vime.testing.checks.base import Bench, CheckSkipped, RewardCase
from vime.testing.checks.reward_bench import RewardBench
from vime.testing.checks.reward_inputs import Input
from vime.testing.checks.reward_spy import exceptions_in, spied
from vime.testing.subject import find_subject

NUM_GPUS = 0


class Boxed:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        if sample.label is None:
            raise ValueError("no label")
        return float(rf"\boxed{{{sample.label}}}" in sample.response)


class Grouped:
    @hookimpl
    def custom_rm(self, samples: list[Sample]) -> list[dict[str, Any]]:
        return [{"pred": sample.response, "score": float(sample.response == sample.label)} for sample in samples]


class Refuses:
    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        raise KeyError("tests")


def bench(target: Any, **options: Any) -> RewardBench:
    return RewardBench(Bench(find_subject(target), "custom_rm", **options))


def test_a_right_and_a_wrong_answer_are_found_without_cases() -> None:
    with bench(Boxed) as reward:
        gold, wrong = reward.pair()
        assert r"\boxed{4}" in gold.response and gold.label == "4"
        assert (reward.value(gold), reward.value(wrong)) == (1.0, 0.0)
        assert gold.prompt != wrong.prompt


def test_known_cases_go_first() -> None:
    cases = (RewardCase("p", "no", "7", 0.0), RewardCase("p", r"\boxed{7}", "7", 1.0))
    with bench(Boxed, cases=cases) as reward:
        gold, wrong = reward.pair()
    assert (gold.response, wrong.response) == (r"\boxed{7}", "no")


def test_a_reward_of_groups_is_shown_groups_and_its_key_is_found() -> None:
    with bench(Grouped) as reward:
        assert reward.grouped and reward.takes_groups
        assert reward.value(Input("4", "4")) == 1.0
        assert reward.key == "score"
        assert reward.group_values([reward.fresh(Input(text, "4")) for text in ("5", "4", "6")]) == [0.0, 1.0, 0.0]


def test_a_check_is_skipped_where_nothing_can_be_scored() -> None:
    with bench(Refuses) as reward, pytest.raises(CheckSkipped, match="give a known case"):
        reward.one()


def test_reads_are_noted() -> None:
    sample, reads = spied(Input("4", "4", metadata={"there": 1}).sample())
    assert not reads.label and reads.blind
    assert sample.metadata.get("there") == 1 and sample.metadata.get("missing") is None
    assert reads.missing == ["missing"]
    assert sample.label == "4" and sample.response == "4"
    assert reads.label and not reads.blind


def test_exceptions_are_collected_where_they_are_caught() -> None:
    def careless() -> float:
        try:
            return float("x")
        except ValueError:
            return 0.0

    with exceptions_in(careless) as found:
        assert careless() == 0.0
    assert [type(error) for error in found] == [ValueError]


@pytest.mark.parametrize("rm_type", ["boxed+exact", "boxed_boxed"])
def test_a_reward_is_checked_by_itself_whatever_the_rm_type_of_the_run(rm_type: str) -> None:
    report = check(Boxed, hook="custom_rm", args={"rm_type": rm_type})
    assert report.passed, report.failures


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
