r"""Where the answer of a response is: the last box, else `#### n`, else the final number or formula."""

from __future__ import annotations

import pytest

from vime_rm_math import extract_answer, grade

NUM_GPUS = 0

BOXES = [
    (r"so \boxed{42}.", "42"),
    (r"\boxed{1} and then \boxed{2}", "2"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{\left\{1, 2\right\}}", r"\left\{1, 2\right\}"),
    (r"\boxed{\text{a \} b}}", r"\text{a \} b}"),
    (r"\boxed {7}", "7"),
    (r"\fbox{7}", "7"),
    (r"\boxed{x = \boxed{3}}", "3"),
    (r"\boxed{4} #### 5, or 6", "4"),
    (r"\boxed{", None),
    (r"\boxed{42", None),
    (r"\boxed{41} no, \boxed{42", None),
    (r"it is 42: \boxed{}", None),
    (r"it is 42: \boxed{  }", None),
    (r"\boxed{\{}", r"\{"),
    (r"\boxed{1}}}", "1"),
]

NUMBERS = [
    ("The answer is 42.", 42),
    ("42", 42),
    ("The answer is **42**.", 42),
    ("The answer is $42$.", 42),
    (r"The answer is \(42\).", 42),
    ("First 3, then 5, so 8", 8),
    ("It costs $1,234.50.", 1234.5),
    ("It costs $5 and then $7, in all $12.", 12),
    ("x = -3", -3),
    ("The answer is -3.", -3),
    ("The answer is −3.", -3),
    ("so 5-3", 3),
    ("5 - 3 = 2", 2),
    ("$3 + 4 = 7$", 7),
    ("so $x = 4$.", 4),
    ("The area is 25 m^2.", 25),
    ("The area is 25 cm².", 25),
    ("about 3/4 of it", 0.75),
    ("that is 2 1/2", 2.5),
    (r"that is $\frac{3}{4}$", 0.75),
    (r"that is \frac{3}{4}.", 0.75),
    (r"that is \dfrac34.", 0.75),
    ("in all 50%", 0.5),
    ("in all 50 percent.", 0.5),
    ("28 pct", 0.28),
    ("$28$ percent", 0.28),
    ("1 000", 1000),
    (r"in all $50\%$.", 0.5),
    ("in all $50$%.", 0.5),
    ("which is 1.5e3", 1500),
    (r"which is $1.5 \times 10^{3}$", 1500),
    ("which is 1.5 × 10^3.", 1500),
    ("about 5 million people", 5_000_000),
    ("so 2^10.", 1024),
    ("#### 42", 42),
    ("work 1 2 3\n#### 1,234", 1234),
    ("#### Step 1\nsome text\n#### Step 2\nit is 9", 9),
    ("#### 7\nI am sure, 100 percent", 7),
    ("#### **7**", 7),
    ("7!", 7),
    ("The answer is _120°_.", 120),
    ("so it is 1,000.99m²", 1000.99),
    ("Answer: 4 (not 5)", 4),
    ("It is not 4, but 5.", 5),
    ("The answer is 4 4/9.", "40/9"),
    (r"$\boxed{28}$ pct", "28%"),
    (r"\boxed{28}\%", 28),
    (r"\boxed{28}\%", 0.28),
    (r"\boxed{3} No: \boxed{4}", 4),
    ("4 or 4", 4),
    ("Is it 7? Yes, 7, H2O", 7),
    ("1,000,000", 1_000_000),
    ("a\n\n  5  \n\n", 5),
    ("x" * 10_000 + " 5", 5),
    ("5 " + "x " * 5_000, 5),
]

NOT_THESE = [
    ("The answer is 42.", 2),
    ("It is 1234.", 34),
    ("It is 1,234.", 234),
    ("$x=4=5$", 5),
    ("the time is 12:30", 30),
    ("the point is $(3, 4)$", 4),
    (r"$n \geq 5$", 5),
    ("about 25 m^2", 2),
    ("so $x^2$", 2),
    ("so x_1", 1),
    ("GPT4", 4),
    ("7 = 3 + 4", 7),
    ("5 km", "5 m"),
    ("2^10", 10),
    ("", 0),
    ("no number here", 0),
    ("3.5", 5),
    ("version 1.2.3", 3),
    ("50%", 50),
    ("The answer is not 4", 4),
    ("The answer isn't 4.", 4),
    ("It could be 4 or 5", 5),
    ("x = 4 or x = 5", 5),
    ("between 3 and 4", 4),
    ("The possible answers are 3, 4 and 5", 5),
    ("answers: 4, 5", 5),
    ("4, 5", 5),
    ("The roots are $x=2$ and $x=3$.", 3),
    (r"\boxed{4} or \boxed{5}", 5),
    (r"\boxed{4} \text{ or } \boxed{5}", 5),
    (r"\boxed{28}\%", 29),
]

EXPRESSIONS = [
    (r"So the angle is $\frac{\pi}{2}$.", r"\frac{\pi}{2}"),
    (r"We get \[ x^2 + 1 \]", "x^2+1"),
    (r"**Answer:** \(2\sqrt{3}\)", r"2\sqrt{3}"),
    ("The answer is x + 1.", "1 + x"),
    ("Answer: yes", "yes"),
    ("The final answer is: **(B)**", "B"),
    ("x+1", "x+1"),
    ("B", "B"),
    (r"Therefore $x \geq 5$ is the solution.", "x >= 5"),
    (r"The matrix is $ \begin{pmatrix}1 & 0 \\ 0 & 1\end{pmatrix} $.", r"\begin{pmatrix}1&0\\0&1\end{pmatrix}"),
    (r"\boxed{-2} \quad \text{and} \quad \boxed{1}", "1, -2"),
    (r"$\boxed{1}$, $\boxed{2}$ and $\boxed{3}$", r"\{1, 2, 3\}"),
    (r"\boxed{(2, 2)} and \boxed{(6, 2)}.", "(2,2), (6,2)"),
]
LISTS = [
    (r"first \boxed{1}, then it turns out to be \boxed{2}", "1, 2"),  # a correction
    (r"\boxed{1} and \boxed{2}", "1, 3"),
    (r"\boxed{1} and \boxed{2}", "1"),
    (r"\boxed{1} and \boxed{2", "1, 2"),
    (r"\boxed{1} and \boxed{}", "1, 2"),
    (r"\boxed{1} and \boxed{2} and \boxed{3}", "1, 2"),
]


@pytest.mark.parametrize(("response", "answer"), BOXES)
def test_boxes(response: str, answer: str | None) -> None:
    assert extract_answer(response) == answer
    assert extract_answer(response, numeric=False) == answer


@pytest.mark.parametrize(("response", "value"), NUMBERS)
def test_final_numbers(response: str, value: float | str) -> None:
    assert grade(response, value) == 1.0
    assert grade(response, f"{value}1" if isinstance(value, str) else value + 1) == 0.0


@pytest.mark.parametrize(("response", "label"), NOT_THESE)
def test_what_is_not_the_final_number(response: str, label: object) -> None:
    assert grade(response, label) == 0.0


@pytest.mark.parametrize(("response", "label"), EXPRESSIONS)
def test_final_expressions(response: str, label: str) -> None:
    assert grade(response, label) == 1.0
    assert grade(response, r"\sqrt{77}") == 0.0


@pytest.mark.parametrize(("response", "label"), LISTS)
def test_boxes_that_are_not_that_list(response: str, label: str) -> None:
    assert grade(response, label) == 0.0


def test_an_open_box_is_no_answer_even_for_the_right_number() -> None:
    assert grade(r"The answer is 42, \boxed{42", 42) == 0.0
    assert grade(r"\boxed{42} and once more \boxed{42", 42) == 0.0


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
