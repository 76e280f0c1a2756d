"""`choice`: the letter of a response, the letter of a label, and labels that are none."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from vime.api import Sample
from vime_rm_qa.choice import Choice, chosen_letter, options_of

NUM_GPUS = 0

LETTERS = dict.fromkeys("ABCDEFGHIJ", "")
CHOSEN = [
    # a letter alone
    ("B", "B"),
    ("b", "B"),
    ("(B)", "B"),
    ("[B]", "B"),
    ("B.", "B"),
    ("**B**", "B"),
    ("**(B)**", "B"),
    ("$B$", "B"),
    ("`B`", "B"),
    ("A", "A"),
    ("I", "I"),
    # boxes and tags decide alone
    (r"\boxed{B}", "B"),
    (r"\boxed{(b)}", "B"),
    (r"\boxed{\text{C}}", "C"),
    (r"\boxed{\textbf{(C)}\ 12}", "C"),
    (r"\boxed{C) 12}", "C"),
    (r"\boxed{C: Paris}", "C"),
    (r"The answer is (A). \boxed{D}", "D"),
    (r"\boxed{D} The answer is (A).", "D"),
    (r"\boxed{A} \boxed{D}", "D"),
    ("<answer>B</answer>", "B"),
    ("<answer>\nB\n</answer> or (A)", "B"),
    ("<answer>B. Paris</answer>", "B"),
    (r"$\boxed{B}$.", "B"),
    # conclusions, the last one counts
    ("The answer is (D).", "D"),
    ("the answer is D because it fits", "D"),
    ("The answer is D", "D"),
    ("**Answer:** B", "B"),
    ("Answer: **B**", "B"),
    ("**Answer: B**", "B"),
    ("ANSWER: C", "C"),
    ("answer: (a)", "A"),
    (r"The correct option is $\text{B}$.", "B"),
    ("The answer is **B**, not (A).", "B"),
    ("The answer is\n\nB", "B"),
    ("The final answer is: option C.", "C"),
    ("choice: E, definitely", "E"),
    ("The answer is A. No: the answer is C.", "C"),
    ("The answer is (B). (A) is wrong because of (C).", "B"),
    ("The correct answer would be B.", "B"),
    ('The answer is "B".', "B"),
    ("the answer is c", "C"),
    ("Answer - C", "C"),
    ("Answer: A\nB", "A"),
    ("The answer is for sure D, it can't be A or B", "D"),
    ("The correct option is not C but D", "D"),
    ("The answer is A (not C)", "A"),
    ("<answer>The answer is C</answer>", "C"),
    # else "X is correct" and "I choose X"
    ("C is the correct answer", "C"),
    ("Option C is correct.", "C"),
    ("(A) is wrong, (B) is wrong, (C) is right, (D) is wrong", "C"),
    ("It's not A because of that, therefore I think it's B", "B"),
    ("I choose C because it fits", "C"),
    ("Therefore, C.", "C"),
    # else the last letter in parentheses, else a last line that starts with one
    ("Not (A), so (C)", "C"),
    ("so it has to be (c)", "C"),
    ("text\nB) Paris", "B"),
    ("text\nB. Paris", "B"),
    ("text\n\nB: Paris\n", "B"),
    ("text\n**B**", "B"),
    # only what follows the thinking
    ("<think>The answer is (A)</think>The answer is C", "C"),
    ("</think>C", "C"),
]
NOT_CHOSEN = [
    "",
    " ",
    "no idea",
    "The answer is a good one",
    "The answer is A large city",
    "I think so",
    "I am",
    "A dog",
    "answer is not B",
    "The answer is A or B",
    "Answer: I don't know",
    "answer is Z",
    "The answer is 4",
    r"\boxed{}",
    r"\boxed{B",
    r"\boxed{A, B}",
    r"\boxed{(A) and (B)}",
    r"\boxed{A/B}",
    r"\boxed{AB}",
    r"\boxed{Z}",
    "<answer></answer>(A)",
    "<answer>B",
    "<think>The answer is C",
    "So B) Paris",
    "Answer: A, C",
    "Answer: A/C",
    "Answer: (A) or (C)",
    "The answer is either A or C",
    "The answer is a city",
    "C is not correct",
    "e.g. this",
    "The answer is D's",
    "(AB)",
]
CAPITALS = {"choices": ["Lyon", "Paris", "Nice", "Paris, Texas"]}
RIGHT = [
    ("B", {}),
    ("b", {}),
    ("(B)", {}),
    (" B. ", {}),
    (1, {}),
    ("Paris", CAPITALS),
    ("the paris!", CAPITALS),
    (1, CAPITALS),
    ("B", CAPITALS),
    ("Paris", {"options": {"a": "Lyon", "b": "Paris"}}),
    (None, {"correct_letter": "B"}),
    ("Lyon", {"correct_letter": "b", **CAPITALS}),
]
WRONG = [
    (None, {}, "sample 7 has no label.*--label-key"),
    ("", {}, "sample 7 has the label '', which is neither"),
    ("K", {}, "sample 7 has the label 'K'.*the choices are A, B, C"),
    ("E", CAPITALS, "'E', which is neither a letter nor the text of a choice; the choices are A, B, C, D"),
    (4, CAPITALS, "sample 7 has the label 4: as an index from 0"),
    (-1, {}, "as an index from 0"),
    (True, {}, "of type bool"),
    (1.0, {}, "of type float"),
    (["B"], {}, "of type list"),
    ("2", {}, "neither a letter"),
    ("Paris", {"choices": ["Paris", "paris"]}, "which is the text of A and B"),
    ("A", {"choices": "Lyon"}, "its choices are a str"),
    ("A", {"choices": ["Lyon"]}, "are not two or more"),
    ("A", {"choices": {"first": "Lyon", "second": "Paris"}}, "under single letters"),
    ("A", {"choices": []}, "are not two or more"),
]


@pytest.mark.parametrize(("response", "letter"), CHOSEN)
def test_the_letter_of_a_response(response: str, letter: str) -> None:
    assert chosen_letter(response, LETTERS) == letter


@pytest.mark.parametrize("response", NOT_CHOSEN)
def test_no_letter(response: str) -> None:
    assert chosen_letter(response, LETTERS) is None


@pytest.mark.parametrize(("label", "metadata"), RIGHT)
def test_the_letter_of_a_label(label: object, metadata: dict[str, object]) -> None:
    reward = Choice(Choice.Settings())
    assert reward.custom_rm(Sample(response="The answer is B.", label=label, metadata=metadata)) == 1.0
    assert reward.custom_rm(Sample(response="The answer is A.", label=label, metadata=metadata)) == 0.0


@pytest.mark.parametrize(("label", "metadata", "message"), WRONG)
def test_a_label_that_names_no_letter_is_an_error(label: object, metadata: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Choice(Choice.Settings()).custom_rm(Sample(index=7, response="The answer is B.", label=label, metadata=metadata))


def test_the_text_of_a_choice_is_an_answer() -> None:
    options = options_of(Sample(metadata=CAPITALS), "ABCD")
    assert chosen_letter(r"\boxed{Paris}", options) == "B"
    assert chosen_letter("<answer>the Paris.</answer>", options) == "B"
    assert chosen_letter("hm\nParis", options) == "B"
    assert chosen_letter("The answer is Paris.", options) == "B"
    assert chosen_letter("Answer: **Paris, Texas**", options) == "D"
    assert chosen_letter("The answer is Rome.", options) is None
    assert chosen_letter(r"\boxed{Rome}", options) is None
    assert chosen_letter("The answer is (E).", options) is None


@pytest.mark.parametrize(
    "text",
    [
        *("answer is " + run * 10**6 for run in " \n{*_"),
        "Answer: " * 125_000,
        "option:" * 140_000,
        "answer is indeed " * 60_000,
        "(" * 10**5,
        "answer is " * 60_000,
        "*" * 10**5,
        " " * 10**6,
        "answer" + " " * 10**5,
        r"\boxed{" * 50_000,
        "\ud800",
        "A" * 10**6,
    ],
)
def test_hostile_text_gets_a_verdict(text: str) -> None:
    assert chosen_letter(text, LETTERS) is None


@pytest.mark.parametrize("letters", ["A", "abcd", "AAB", "A1", ""])
def test_letters_are_checked(letters: str) -> None:
    with pytest.raises(ValidationError):
        Choice.Settings(letters=letters)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
