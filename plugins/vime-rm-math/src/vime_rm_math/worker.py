"""The part that runs in a worker process: math-verify, with its own time limits off, since the pool has one that works.

Parsed expressions are never printed: writing one out can take for ever.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from vime_rm_math.compare import same_answer
from vime_rm_math.numeric import same_value

_DECIMAL = re.compile(r"(?P<power>\^\s*)?(?<![0-9.])(?P<whole>[0-9]*)\.(?P<part>[0-9]+)(?![0-9.])")
_LONG_EXPONENT = re.compile(r"\^\s*(-?[0-9]{2,}|-[0-9]|-[A-Za-z])")
_BRACKET_EXPONENT = re.compile(r"\^\s*\(([^()]*)\)")
_PLAIN_FUNCTION = re.compile(r"(?<![A-Za-z\\])(sin|cos|tan|cot|sec|csc|ln|log|exp|arcsin|arccos|arctan)(?![A-Za-z])")
_PLAIN_ROOT = re.compile(r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)")
_PLAIN_PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])")
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*\\?%")
_DEGREES = re.compile(r"([0-9]+(?:\.[0-9]+)?|\([^()]*\))\s*\^\{\\circ\}")
_COMMAND_OR_LETTER = re.compile(r"(\\(?:begin|end)\{[a-z*]+\}|\\[A-Za-z]+)|([A-Za-z])(?!\s*_)")
_DIGITS = (40, 50)
"""Decimal places to which math-verify rounds, and digits with which it computes. Its defaults (6, 15) take near numbers for equal."""
_NO_MATHEMATICS = (TypeError, ValueError, ArithmeticError, AttributeError, NotImplementedError, RecursionError)
"""What sympy raises for text that has the form of an expression and no meaning, such as `i < 2`."""
_PLAIN_RELATIONS = (("<=", r"\le "), (">=", r"\ge "), ("!=", r"\neq "), ("**", "^"), ("*", r"\cdot "))


def same_in_worker(answer: str, labels: tuple[str, ...]) -> bool:
    """Whether the answer says the same as one of the labels. For IsolatedPool workers only: this may hang."""
    return any(bool(same_answer(answer, label, symbolic_equal)) for label in labels)


def symbolic_equal(answer: str, label: str) -> bool:
    """Whether the values of two expressions, or math-verify, say that they are equal. What cannot be parsed or compared is not."""
    from math_verify import verify

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        parsed = [_parsed(text) for text in _distinct_cases(to_latex(label), to_latex(answer))]
        if any(one is None for one in parsed):
            return False
        verdict = same_value(*parsed)
        if verdict is not None:
            return verdict
        return verify(parsed[0], parsed[1], *_DIGITS, allow_set_relation_comp=True, timeout_seconds=None)
    except _NO_MATHEMATICS:
        return False


def _parsed(text: str) -> Any:
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse
    from sympy import Basic, MatrixBase

    normalization = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False)
    config = [LatexExtractionConfig(boxed_match_priority=-1, normalization_config=normalization)]
    found = parse(f"${text}$", config, fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    return _same_symbols(found[0]) if found and isinstance(found[0], Basic | MatrixBase) else None


def to_latex(text: str) -> str:
    """Plain-text notation as LaTeX, and decimals, percentages and degrees as exact fractions."""
    for old, new in _PLAIN_RELATIONS:
        text = text.replace(old, new)
    text = _PLAIN_ROOT.sub(r"\\sqrt{\1}", text)
    text = _PLAIN_FUNCTION.sub(r"\\\1 ", text)
    text = _PLAIN_PI.sub(r"\\pi ", text)
    text = _BRACKET_EXPONENT.sub(r"^{\1}", text)
    text = _LONG_EXPONENT.sub(r"^{\1}", text)
    text = _PERCENT.sub(r"(\\frac{\1}{100})", text)
    text = _DEGREES.sub(r"(\1\\cdot\\frac{\\pi}{180})", text)
    return _DECIMAL.sub(_as_fraction, text)


def _distinct_cases(label: str, answer: str) -> tuple[str, str]:
    """math-verify does not tell `R` from `r`: where a pair uses both, mark the capital letters with a subscript."""
    letters = set(_COMMAND_OR_LETTER.sub(lambda match: match.group(2) or " ", label + " " + answer))
    if not any(letter.lower() in letters for letter in letters if letter.isupper()):
        return label, answer
    label, answer = (
        _COMMAND_OR_LETTER.sub(lambda match: f"{match.group(2)}_{{0}}" if (match.group(2) or "").isupper() else match.group(), text)
        for text in (label, answer)
    )
    return label, answer


def _same_symbols(expression: Any) -> Any:
    """Give symbols of one name one meaning on both sides, and let `i` be the imaginary unit."""
    from sympy import I, Symbol

    return expression.xreplace({one: I if one.name == "i" else Symbol(one.name, real=True) for one in expression.free_symbols})


def _as_fraction(match: re.Match[str]) -> str:
    fraction = rf"\frac{{{int(match['whole'] + match['part'])}}}{{{10 ** len(match['part'])}}}"
    return rf"^{{{fraction}}}" if match["power"] else fraction
