"""Answers that are made to hurt: each gets a verdict or a time-out, nothing is executed, and the process is well afterwards."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from vime.isolation import IsolatedTimeout
from vime_rm_math import Grader, grade, guard
from vime_rm_math.grader import decide

NUM_GPUS = 0

REFUSED = {
    "power of power": "10**10**10",
    "power of power in braces": "10^{10^{10}}",
    "tower": "2^{3^{4^{5}}}",
    "nested powers": "((10^{100})^{100})^{100}",
    "exponent": "2^{99999999}",
    "factorials": "9!!!!!!!!",
    "factorial of factorial": "(9!)!",
    "factorial": "99999!",
    "binomial": r"\binom{999999}{500000}",
    "parentheses": "(" * 40 + "4" + ")" * 40,
    "fractions": r"\frac{1}{" * 20 + "2" + "}" * 20,
    "letters": "x" * 900,
    "numeral in an expression": "x+" + "7" * 900,
}
DECIDED = {
    "a hundred thousand braces": "{" * 100_000 + "4" + "}" * 100_000,
    "a hundred thousand open braces": "{" * 100_000,
    "a hundred thousand parentheses": "(" * 100_000 + "5" + ")" * 100_000,
    "a megabyte of digits": "1" * 10**6,
    "a megabyte of terms": "x+" * 500_000 + "x",
    "40 kB of digits": "7" * 40_000,
    "ten thousand digits": "9" * 10_000,
    "equality signs": "=" * 10_000,
    "percent signs": "5" + "%" * 10_000,
    "commas": "1," * 9_000 + "1",
    "minus signs": "-" * 10_000 + "5",
    "nested text": r"\text{" * 3_000 + "5" + "}" * 3_000,
    "nothing": "",
    "space": "   ",
    "a zero byte": "\0",
    "backslashes": "\\" * 10_001,
    "choices": "A) " * 6_000,
    "choices in parentheses": "(A) " * 4_000,
    "tuples in tuples": "(1," * 240 + "1" + ")" * 240,
    "sets in sets": r"\{1," * 160 + "1" + r"\}" * 160,
    "intervals in intervals": "[1," * 240 + "1" + "]" * 240,
    "braces": "{" * 400 + "4" + "}" * 400,
    "a megabyte of hashes": "####x" * 200_000,
    "a megabyte of italics": "_a" * 500_000,
    "a megabyte of alternatives": "1 or " * 200_000,
    "a megabyte of negations": "not 1 " * 160_000,
    "ten thousand members": "x," * 10_000,
    "combining marks": "a\u0301" * 9_000,
    "digits of another script": "٣" * 9_000,
}
RISKY = {
    "code": '__import__("os").system("touch {marker}")',
    "open": 'open("{marker}", "w")',
    "input": r"\input{/etc/passwd}",
    "write": r"\write18{touch {marker}}",
    "exec": 'exec("open(chr(47))")',
    "subclasses": "().__class__.__bases__[0].__subclasses__()",
    "large power": "(x+1)^{9999}",
    "large sum": r"\sum_{n=1}^{1000000} n^{1000}",
    "integral": r"\int_0^1 x^{x^{x}} dx",
    "tangents": r"\tan(\tan(\tan(\tan(\tan(x)))))",
    "lone surrogate": "\ud800",
    "exponent of ten": "1e999999999",
    "division by zero": r"\frac{1}{0}",
    "a relation of imaginary numbers": r"I \le i",
    "an infinite tower": r"2^{\frac{1}{2^{1000}}}",
    "function called exec": r"\operatorname{exec}(open)",
    "lambda": "lambda: 1",
    "quote": "S(\"open('{marker}', 'w')\")",
    "attribute": "x.__class__.__mro__",
    "comment": "1 # 2",
    "matrix power": r"\begin{pmatrix}1&1\\1&0\end{pmatrix}^{9999}",
}


def boxed(answer: str) -> str:
    return rf"so it is \boxed{{{answer}}}"


@pytest.mark.parametrize("answer", REFUSED.values(), ids=REFUSED)
def test_what_would_explode_is_decided_without_a_worker(answer: str) -> None:
    assert guard.refusal(answer) is not None
    assert decide(boxed(answer), "4")[0] is False
    assert decide(boxed(answer), answer)[0] is True  # the same text is the same answer
    assert decide(boxed("4"), answer)[0] is False


@pytest.mark.parametrize("answer", DECIDED.values(), ids=DECIDED)
@pytest.mark.parametrize("label", ["4.5", r"\sqrt{2}"])
def test_large_text_is_decided_without_a_worker(answer: str, label: str) -> None:
    assert decide(boxed(answer), label)[0] is False
    assert grade(answer, label) == 0.0


@pytest.mark.parametrize("answer", RISKY.values(), ids=RISKY)
def test_the_rest_gets_a_verdict_or_a_timeout(answer: str, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    answer = answer.replace("{marker}", str(marker))
    for label in ("4", r"\sqrt{2}"):
        with contextlib.suppress(IsolatedTimeout):
            assert grade(boxed(answer), label) == 0.0
    assert not marker.exists()
    assert grade(boxed(r"\sqrt{8}"), r"2\sqrt{2}") == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "x^{100}",
        "(1+x)^{20}",
        r"\frac{\frac{1}{2}}{\frac{3}{4}}",
        "20!",
        r"\binom{10}{5}",
        "2^{2^3}",
        "x^2y^2",
        "x^{2}+y^{2}+z^{2}",
        r"e^{-x^2}",
        "x!=2",
    ],
)
def test_ordinary_mathematics_is_not_refused(answer: str) -> None:
    assert guard.refusal(answer) is None


def test_long_numbers_are_compared_digit_by_digit() -> None:
    nines = "9" * 10_000
    assert grade(boxed(nines), nines) == 1.0
    assert grade(f"the answer is {nines}.", nines) == 1.0
    assert grade(boxed(nines), nines[:-1] + "8") == 0.0
    assert grade(boxed("0" * 5_000 + "7"), 7) == 1.0
    assert grade(boxed("1" + "0" * 5_000), 10**5_000) == 1.0


def test_a_slow_answer_is_a_timeout_and_the_grader_goes_on() -> None:
    grader = Grader(timeout=1.0, workers=1)
    try:
        grader.pool.warm_up()
        with pytest.raises(IsolatedTimeout, match=r"limit of 1 s \(processor time\)"):
            grader.grade(boxed("(x+y+1)^{120} = 2"), "(x^2+2xy+y^2+2x+2y+1)^{60} = 2")
        assert grader.grade(boxed(r"\sqrt{8}"), r"2\sqrt{2}") == 1.0
    finally:
        grader.pool.close()


def test_the_process_is_well_afterwards() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        assert grade(boxed("10**10**10"), "4") == 0.0
        assert grade(boxed("x"), "y") == 0.0
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 20


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
