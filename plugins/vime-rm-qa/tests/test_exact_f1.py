"""`exact` and `f1`: where the answer is, what counts as the same, and labels that are none. Verdicts and values by hand."""

from __future__ import annotations

import math

import pytest

from vime.api import Sample
from vime_rm_qa.answers import final_answer
from vime_rm_qa.exact import Exact, normal_text
from vime_rm_qa.f1 import F1, tokens

NUM_GPUS = 0

SAME = [
    ("Paris", "Paris"), ("paris.", "Paris"), ("  The   Eiffel Tower ", "eiffel tower"), ("**Paris**", "Paris"), ("'Paris'", "Paris"),
    ("“Paris”", "paris"), ("Saint-Denis", "saint-denis"), ("STRASSE", "straße"), ("ｐａｒｉｓ", "paris"), ("cafe\u0301", "café"),
    ("5", 5), ("-5", -5), ("−5", "-5"), ("0.5", 0.5), (".5", ".5"), ("1,234", "1234"), ("50%", "50%"), ("42.", 42), ("3", 3.0),
    ("3.0", 3.0), ("1000000", 1e6), ("A-", "a-"), ("AB−", "ab-"), ("Paris-", "Paris"),
    ("True", True), ("Lutetia", ["Paris", "Lutetia"]), ("7", [6, 7]), ("C++", "c++"), ("A", "a"), ("東京。", "東京"), ("- Paris", "Paris"),
    ("<answer>Paris</answer>", "Paris"), (r"so \boxed{Paris}.", "Paris"), ("<think>Lyon?</think>Paris", "Paris"),
    (r"\boxed{\text{x}}", r"\text{x}"),
]  # fmt: skip
DIFFERENT = [
    ("Lyon", "Paris"), ("-5", 5), ("3.5", "35"), ("5%", "5"), (".5", "5"), ("", "Paris"), ("Paris or Lyon", "Paris"), ("C", "C++"),
    ("1,23", "123"), ("new york", "newyork"), ("It is Paris", "Paris"), ("<answer>Paris", "Paris"), ("<answer></answer>Paris", "Paris"),
    (r"\boxed{Paris", "Paris"), (r"\boxed{}Paris", "Paris"), ("<think>Paris", "Paris"), ("</think>Lyon", "Paris"),
    (r"\boxed{Paris} \boxed{Lyon}", "Paris"), ("<answer>Paris</answer><answer>Lyon</answer>", "Paris"), ("10:30", "1030"),
    ("A-", "A"), ("A", "A-"),
]  # fmt: skip
F1_VALUES = [
    ("Jane Austen", "Jane Austen", 1.0),
    ("Austen", "Jane Austen", 2 / 3),  # precision 1, recall 1/2
    ("the novelist Jane Austen", "Jane Austen", 4 / 5),  # 2 of 3, 2 of 2
    ("Jane Jane", "Jane Austen", 1 / 2),  # a word counts as often as it is in both: 1 of 2, 1 of 2
    ("Jane Austen", "Jane Jane Austen", 4 / 5),
    ("Jane Jane Austen", "Jane Jane Eyre", 2 / 3),
    ("The cat", "a cat!", 1.0),
    ("U.S.A.", "usa", 1.0),
    ("well-known", "wellknown", 1.0),  # SQuAD drops punctuation before it splits
    ("Lyon", "Paris", 0.0),
    ("", "Paris", 0.0),
    ("the", "Paris", 0.0),
    ("in the year 1999", ["1998", "in 1999", "1999"], 4 / 5),  # 2 of 3, 2 of 2 against the second
    ("<answer>Paris</answer>", "Paris", 1.0),
    ("<think>Paris", "Paris", 0.0),
    ("3.5", "35", 1.0),  # as in SQuAD; numbers are for `exact` and `math`
]
NO_LABELS = [
    (None, "sample 3 has no label.*--label-key"),
    ("", "sample 3 has the label ''"),
    ("?!", "sample 3 has the label"),
    ([], "sample 3 has an empty list"),
    ([None], "sample 3 has no label"),
    (["", " "], "nothing of it is left"),
    ({"text": "Paris"}, "sample 3 has a label of type dict"),
    (b"Paris", "sample 3 has a label of type bytes"),
    (math.nan, "not a finite number"),
]


@pytest.mark.parametrize(("response", "label"), SAME)
def test_exact_accepts(response: str, label: object) -> None:
    assert Exact().custom_rm(Sample(response=response, label=label)) == 1.0


@pytest.mark.parametrize(("response", "label"), DIFFERENT)
def test_exact_refuses(response: str, label: object) -> None:
    assert Exact().custom_rm(Sample(response=response, label=label)) == 0.0


@pytest.mark.parametrize(("response", "label", "value"), F1_VALUES)
def test_f1_by_hand(response: str, label: object, value: float) -> None:
    assert F1().custom_rm(Sample(response=response, label=label)) == pytest.approx(value)


@pytest.mark.parametrize("reward", [Exact(), F1()], ids=["exact", "f1"])
@pytest.mark.parametrize(("label", "message"), NO_LABELS)
def test_a_label_that_is_none_is_an_error(reward: Exact | F1, label: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reward.custom_rm(Sample(index=3, response="Paris", label=label))


def test_one_empty_answer_among_several_is_passed_over() -> None:
    assert Exact().custom_rm(Sample(response="", label=["", "Paris"])) == 0.0
    assert F1().custom_rm(Sample(response="Paris", label=["the", "Paris"])) == 1.0


def test_arrays_of_tables() -> None:
    numpy = pytest.importorskip("numpy")
    for label in (numpy.array(["Lyon", "Paris"]), numpy.str_("Paris")):
        assert Exact().custom_rm(Sample(response="Paris", label=label)) == 1.0
    assert Exact().custom_rm(Sample(response="4", label=numpy.int64(4))) == 1.0


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("4", ("4", False)),
        (r"\boxed{\frac{1}{2}} and \fbox {3}", ("3", True)),
        (r"\boxed{\}}", (r"\}", True)),
        (r"\boxed{4} <answer> 5 </answer>", (" 5 ", True)),
        ("<think>a</think>b<think>c</think>d", ("d", False)),
        ("<think>a</think>b<think>c", ("b", False)),
        ("a</think>b", ("b", False)),
        ("<think>a", ("", False)),
    ],
)
def test_where_the_answer_is(response: str, answer: tuple[str, bool]) -> None:
    assert final_answer(response) == answer


@pytest.mark.parametrize("text", ["a" * 10**6, "a " * 500_000, r"\boxed{" * 100_000, "<answer>" * 100_000, "\ud800\0\u202e", "1," * 10**5])
def test_hostile_text_gets_a_value(text: str) -> None:
    assert Exact().custom_rm(Sample(response=text, label="Paris")) == 0.0
    assert F1().custom_rm(Sample(response=text, label="Paris")) == 0.0


def test_the_spellings_that_are_compared() -> None:
    assert normal_text(" The “Eiffel” Tower, Paris! ") == "eiffel tower paris"
    assert normal_text("(-1,234.50%)") == "-1234.50%"
    assert tokens("The U.S.A.'s a-b c") == ["usas", "ab", "c"]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
