"""Refuse, before any parsing, text whose evaluation would explode: nothing that reaches a worker should need its limit."""

from __future__ import annotations

import re

MOST_CHARACTERS = 1_000
DEEPEST = 10
"""Parsing takes a second from about 14 nested brackets, and doubles with each one more."""
LONGEST_NUMERAL = 300
LONGEST_WORD = 30
"""Letters in a row are read as a product of variables, which takes long for many."""
LARGEST_EXPONENT = 10_000
LARGEST_FACTORIAL = 500
LARGEST_BINOMIAL = 10_000

_BRACKETS = re.compile(r"\\[{}]|[][(){}]")
_NUMERAL = re.compile(rf"[0-9]{{{LONGEST_NUMERAL + 1},}}")
_LETTERS = re.compile(rf"(?<!\\)(?:(?<![A-Za-z])|(?<=\\\\))(?:[A-Za-z]\s*){{{LONGEST_WORD + 1},}}")
_EXPONENT = re.compile(r"(?P<base>[0-9A-Za-z.]+|[)}\]])?\s*\^\s*(?:\{\s*|\(\s*)*[-+]?\s*(?P<value>[0-9]+)?")
_TOWER = re.compile(r"\^\s*(?:[0-9A-Za-z.]+|\{[^{}]*\}|\([^()]*\))\s*\^|\^\s*[{(](?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*?\^")
_FACTORIAL = re.compile(r"(?P<value>[0-9]+)?\s*(?P<marks>!+)(?!=)")
_BINOMIAL = re.compile(r"\\(?:binom|choose)[^0-9]*([0-9]+)")


def refusal(text: str) -> str | None:
    """Why cleaned text must not be evaluated, or None. Takes time in proportion to the length of the text."""
    text = text.replace("**", "^")
    if len(text) > MOST_CHARACTERS:
        return f"longer than {MOST_CHARACTERS} characters"
    if is_deep(text):
        return f"brackets nested deeper than {DEEPEST}"
    if _NUMERAL.search(text):
        return f"a numeral of more than {LONGEST_NUMERAL} digits"
    if _LETTERS.search(text):
        return f"more than {LONGEST_WORD} letters in a row"
    return _powers(text) or _factorials(text)


def is_deep(text: str) -> bool:
    """Whether brackets are nested deeper than DEEPEST."""
    if sum(map(text.count, "([{")) <= DEEPEST:
        return False
    depth = deepest = 0
    for match in _BRACKETS.finditer(text):
        depth += 1 if match.group()[-1] in "([{" else -1
        deepest = max(deepest, depth)
    return deepest > DEEPEST


def _powers(text: str) -> str | None:
    nested = 1
    for match in _EXPONENT.finditer(text):
        value = match["value"] or ""
        if len(value.lstrip("0")) > len(str(LARGEST_EXPONENT)) or int(value or 0) > LARGEST_EXPONENT:
            return f"an exponent above {LARGEST_EXPONENT}"
        if (match["base"] or "") in (")", "}", "]"):
            nested *= max(int(value or 1), 1)
    if nested >= LARGEST_EXPONENT:
        return f"powers of powers of {LARGEST_EXPONENT} and more"
    if _TOWER.search(text) and _large_tower(text):
        return "a tower of powers"
    return None


def _large_tower(text: str) -> bool:
    """Whether the numbers from the first exponent on could make an exponent that is too large."""
    if text.count("^") > 3:
        return True
    size = 1
    for numeral in re.findall(r"[0-9]+", text[text.index("^") :]):
        size = max(size, 2) ** min(int(numeral[:6]), 64)
        if size > LARGEST_EXPONENT:
            return True
    return False


def _factorials(text: str) -> str | None:
    count = 0
    for match in _FACTORIAL.finditer(text):
        count += 1
        if len(match["marks"]) > 1:
            return "a factorial of a factorial"
        if match["value"] is not None and (len(match["value"]) > 4 or int(match["value"]) > LARGEST_FACTORIAL):
            return f"a factorial above {LARGEST_FACTORIAL}"
    if count > 1 and re.search(r"![^!]*[)}]\s*!", text):
        return "a factorial of a factorial"
    if any(len(numeral) > 4 for numeral in _BINOMIAL.findall(text)):
        return f"a binomial coefficient above {LARGEST_BINOMIAL}"
    return None
