"""`format` and `random`."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from vime.api import Sample
from vime_rm_qa.format import Format
from vime_rm_qa.random_reward import Random

NUM_GPUS = 0

STRUCTURED = [
    "<think>a</think><answer>b</answer>",
    " <think>a\n\nb</think>\n\n<answer>\nb\n</answer>\n",
    "<think>a < b > c</think><answer>{}</answer>",
]
UNSTRUCTURED = [
    "",
    "a",
    "<answer>b</answer>",
    "<think>a</think>",
    "<think>a</think>b",
    "<think></think><answer>b</answer>",
    "<think>a</think><answer> </answer>",
    "x<think>a</think><answer>b</answer>",
    "<think>a</think>x<answer>b</answer>",
    "<think>a</think><answer>b</answer>x",
    "<answer>b</answer><think>a</think>",
    "<think>a<answer>b</think></answer>",
    "<think>a<answer>b</answer></think>",
    "<think>a</think><answer>b",
    "<think>a<answer>b</answer>",
    "<think>a</think><answer>b</answer><answer>c</answer>",
    "<think><think>a</think></think><answer>b</answer>",
    "<think>a<think>b</think><answer>c</answer>",
    "<THINK>a</THINK><answer>b</answer>",
    "</think>a<think><answer>b</answer>",
    "<think>a</think></answer>b<answer>",
]


def value(response: str, **settings: object) -> float:
    return Format(Format.Settings(**settings)).custom_rm(Sample(index=5, response=response))


@pytest.mark.parametrize("response", STRUCTURED)
def test_the_structure(response: str) -> None:
    assert value(response) == 1.0


@pytest.mark.parametrize("response", UNSTRUCTURED)
def test_not_the_structure(response: str) -> None:
    assert value(response) == 0.0


def test_other_tags() -> None:
    assert value("<plan>a</plan><code>b</code><test>c</test>", tags=("plan", "code", "test")) == 1.0
    assert value("<answer>4</answer>", tags=["answer"]) == 1.0
    assert value("<think>a</think><answer>b</answer>", tags=("answer",)) == 0.0


def test_a_first_tag_that_the_prompt_opens() -> None:
    assert value("a</think><answer>b</answer>", opened=True) == 1.0
    assert value("<think>a</think><answer>b</answer>", opened=True) == 0.0
    assert value("</think><answer>b</answer>", opened=True) == 0.0
    assert value("a</think><answer>b</answer>") == 0.0


@pytest.mark.parametrize(
    ("pattern", "response", "reward"),
    [
        (r"\d+", "42", 1.0),
        (r"\d+", "42 ", 0.0),
        (r".*\\boxed\{.+\}.*", "a\nb \\boxed{4}\nc", 1.0),
        (r".*\\boxed\{.+\}.*", "4", 0.0),
        (r"(?i)yes|no", "YES", 1.0),
        (r"(?:\{[^{}]*\})*", "", 1.0),
    ],
)
def test_a_pattern_has_to_match_the_whole_response(pattern: str, response: str, reward: float) -> None:
    assert value(response, pattern=pattern) == reward


@pytest.mark.parametrize("pattern", [r"(a+)+b", r"(a|aa)+c"])
def test_a_pattern_that_explodes_is_an_error_and_not_a_zero(pattern: str) -> None:
    reward = Format(Format.Settings(pattern=pattern, timeout=0.2))
    with pytest.raises(TimeoutError, match=r"sample 5: the pattern .* took longer than 0.2 s for a response of 50001 characters"):
        reward.custom_rm(Sample(index=5, response="a" * 50_000 + "!"))
    assert reward.custom_rm(Sample(response="!")) == 0.0


@pytest.mark.parametrize("text", ["<think>" * 100_000, "<think>a</think>" * 50_000, "a" * 10**6, "\0\ud800"])
def test_hostile_text_gets_a_verdict(text: str) -> None:
    assert value(text) == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pattern": "(a"}, "no regular expression: missing"),
        ({"tags": ("<think>",)}, "without the angle brackets"),
        ({"tags": ()}, "at least 1"),
        ({"tags": ("a", "a")}, "named twice"),
        ({"timeout": 0}, "greater than 0"),
        ({"patern": "a"}, "patern"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Format.Settings(**settings)


def test_random_is_by_chance_and_the_same_each_time() -> None:
    reward, again, other = (Random(Random.Settings(seed=seed)) for seed in (1, 1, 2))
    samples = [Sample(index=index, response="x") for index in range(2000)]
    values = [reward.custom_rm(sample) for sample in samples]
    assert values == [again.custom_rm(sample) for sample in samples]
    assert values != [other.custom_rm(sample) for sample in samples]
    assert set(values) == {0.0, 1.0}
    assert 0.45 < sum(values) / 2000 < 0.55
    assert sum(Random(Random.Settings(probability=0.9)).custom_rm(sample) for sample in samples) / 2000 > 0.87
    assert reward.custom_rm(Sample(response="\ud800")) in (0.0, 1.0)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
