"""The plugins `dapo` and `deepscaler`: where they look, what they give, and their labels."""

from __future__ import annotations

import asyncio
import json

import pytest
from pydantic import ValidationError

from vime.api import ContractError, Sample
from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager
from vime.rollout.rewards import RewardScorer
from vime_rm_math.dapo import Dapo, answer_part
from vime_rm_math.deepscaler import DeepScaler

NUM_GPUS = 0

FILLER = "so it goes on, step by step. " * 20

DAPO = [
    # response, label, right, pred
    ("Answer: 34", "34", True, "34"),
    ("Answer: 33", "34", False, "33"),
    (r"Answer: $\frac{1}{2}$", "0.5", True, r"\frac{1}{2}"),
    (r"**Answer:** \boxed{34}", "34", True, "34"),
    ("answer : 34.", "34", True, "34"),
    ("Answer: 1\nAnswer: 34\nI checked this 2 times.", "34", True, "34"),
    ("Answer: 1\nno, wait\nAnswer:\n34", "34", True, "34"),
    ("Answer: 34\nAnswer:", "34", True, "34"),
    ("Answer: 4 or 34", "34", False, "4, 34"),
    ("Answer: 33, 34", "34", False, "33, 34"),
    ("Answer: not 34", "34", False, ""),
    ("Answer: 34 Answer: 35", "34", False, "35"),
    (r"so it is \boxed{34}", "34", True, "34"),
    ("it is 34", "34", True, "34"),
    (r"Answer: 2\sqrt{2}", r"\sqrt{8}", True, r"2\sqrt{2}"),
    ("", "34", False, ""),
    ("no idea", "34", False, ""),
    (r"\boxed{34", "34", False, ""),
    (FILLER + "Answer: 34", "34", True, "34"),
    ("Answer: 34\n" + FILLER, "34", False, ""),  # too far from the end
    (r"\boxed{34} " + FILLER, "34", False, ""),
    (r"\boxed{" + FILLER + "34} and that is all", "34", False, ""),  # the cut goes through the box
    (r"\boxed{" + FILLER + "34", "34", False, ""),
    (r"\boxed{" + FILLER + r"1} then \boxed{34}", "34", True, "34"),
    ("1" * 400 + "34", "1" * 298 + "34", False, ""),  # the cut goes through the number
    ("x" * 5 + " 1234" + "." * 298, "34", False, ""),
]


def dapo(response: str, label: object, **settings: object) -> dict[str, float | str]:
    return asyncio.run(Dapo(Dapo.Settings(**settings)).custom_rm(Sample(index=4, response=response, label=label)))


def deepscaler(response: str, label: object) -> float:
    return asyncio.run(DeepScaler(DeepScaler.Settings()).custom_rm(Sample(index=4, response=response, label=label)))


@pytest.mark.parametrize(("response", "label", "right", "pred"), DAPO)
def test_dapo(response: str, label: object, right: bool, pred: str) -> None:
    assert dapo(response, label) == {"score": 1.0 if right else -1.0, "acc": float(right), "pred": pred}


def test_dapo_looks_at_so_many_characters() -> None:
    assert dapo("Answer: 34" + " " * 290, "34")["score"] == 1.0
    assert dapo("Answer: 34" + " " * 291, "34")["score"] == 1.0  # the cut goes through "Answer"; the number is whole
    assert dapo("Answer: 34" + " " * 299, "34")["score"] == -1.0  # through the number
    assert dapo("Answer: 34" + " " * 400, "34", characters=500)["score"] == 1.0
    assert answer_part("abc 12", 2) == "12"
    assert answer_part("abc 12", 1) == ""
    assert answer_part("12", 300) == "12"


def test_dapo_needs_a_reward_key_in_a_run() -> None:
    def score(**options: object) -> Sample:
        config = RunConfig(plugin=["dapo"], **options)
        plugins = PluginManager()
        plugins.add(Dapo, name="dapo")
        scorer = RewardScorer(config, plugins)
        sample = Sample(index=0, response="Answer: 34", label="34", tokens=[1], response_length=1, status=Sample.Status.COMPLETED)
        try:
            asyncio.run(scorer.score([sample]))
        finally:
            scorer.close()
        return sample

    assert score(reward_key="score").reward == {"score": 1.0, "acc": 1.0, "pred": "34"}
    assert json.loads(json.dumps(score(reward_key="acc").reward))["acc"] == 1.0
    with pytest.raises(ContractError, match="--reward-key"):
        score()


@pytest.mark.parametrize(
    ("response", "label", "reward"),
    [
        ("<think>2 + 2</think>The answer is 4.", "4", 1.0),
        (r"<think>2 + 2</think>\boxed{4}", "4", 1.0),
        (r"2 + 2</think>\boxed{4}", "4", 1.0),  # the chat template has opened it
        (r"<think>\boxed{5}</think>\boxed{2\sqrt{4}}", "4", 1.0),
        (r"<think>2 + 2</think>\boxed{5}", "4", 0.0),
        (r"<think>\boxed{4}</think>", "4", 0.0),
        (r"<think>\boxed{4}</think>I do not know.", "4", 0.0),
        (r"<think>2 + 2 = \boxed{4}", "4", 0.0),
        (r"\boxed{4}", "4", 0.0),
        ("", "4", 0.0),
        (r"</think>\boxed{4}</think>\boxed{5}", "4", 0.0),
    ],
)
def test_deepscaler(response: str, label: object, reward: float) -> None:
    assert deepscaler(response, label) == reward


@pytest.mark.parametrize("reward", [dapo, deepscaler])
@pytest.mark.parametrize("response", ["", "4", r"</think>\boxed{4}"])
@pytest.mark.parametrize(
    ("label", "message"), [(None, "sample 4 has no label"), ("", "holds no answer"), ([], "empty list"), ({}, "type dict")]
)
def test_a_label_that_is_none_is_an_error_for_every_response(reward, response: str, label: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reward(response, label)


@pytest.mark.parametrize(
    "response", ["{" * 100_000, r"\boxed{" * 20_000, "Answer:" * 100_000, "</think>" * 50_000, "9" * 10**6, "\0\ud800", " " * 10**6]
)
def test_hostile_text(response: str) -> None:
    assert dapo(response, "4.5")["acc"] == 0.0
    assert deepscaler(response, "4.5") == 0.0


@pytest.mark.parametrize("settings", [{"characters": 0}, {"timeout": 0}, {"tail": 3}])
def test_settings_are_checked(settings: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Dapo.Settings(**settings)
    with pytest.raises(ValidationError):
        DeepScaler.Settings(**settings)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
