"""Plain numbers, decided by exact arithmetic: integers, decimals, percentages, fractions, mixed numbers, powers of ten,
repeating decimals, numerals with a base. Text that is anything else gives None. Nothing here can take long."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

from vime_rm_math import notation

MOST_DIGITS = 20_000
"""Numbers whose decimal expansion is longer are not looked at."""

_LONGEST_NOTATION = 400
"""Longer numbers are read as digits or a quotient of digits only."""
_INT_DIGITS = 4_000
_UNSIGNED = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
PLAIN = re.compile(r"[-+]?[0-9]{1,200}(?:\.[0-9]{1,200})?")
"""What most answers and labels are; `Fraction` reads it as it stands."""
_DECIMAL = re.compile(rf"(?:{_UNSIGNED})")
GROUPED = re.compile(r"[-+]?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?")
"""A number with separators between its thousands."""
_GROUPS_BY_SPACE = re.compile(r"[1-9][0-9]{0,2}(?: [0-9]{3})+(?:\.[0-9]+)?")
_REPEATING = re.compile(
    r"(?P<whole>[0-9]*)\.(?P<fixed>[0-9]*?)(?:\\overline\s*\{(?P<a>[0-9]+)\}|\\bar\s*\{(?P<b>[0-9]+)\}|\\dot\s*\{(?P<c>[0-9])\}|\((?P<d>[0-9]+)\))"
)
_DOTS = re.compile(r"(?P<whole>[0-9]*)\.(?P<fixed>[0-9]{0,12}?)(?P<period>[0-9]{1,6}?)(?P=period)+\s*\.\.\.")
_E_NOTATION = re.compile(rf"({_UNSIGNED})[eE]([-+]?[0-9]{{1,6}})")
_TIMES_TEN = re.compile(rf"({_UNSIGNED})\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*(?:\{{\s*([-+]?[0-9]{{1,6}})\s*\}}|([-+]?[0-9]{{1,6}}))")
_POWER = re.compile(r"([0-9]{1,30})\s*(?:\^|\*\*)\s*(?:\{\s*([-+]?[0-9]{1,6})\s*\}|\(\s*([-+]?[0-9]{1,6})\s*\)|([-+]?[0-9]{1,6}))")
_BASED = re.compile(r"([0-9A-Z]{1,200})\s*_\s*(?:\{\s*([0-9]{1,2})\s*\}|([0-9]{1,2}))")
_MIXED = re.compile(
    r"(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[1-9][0-9]{0,2}(?: [0-9]{3})+|[0-9]+)\s*(?P<rest>\\frac.*|(?<=\s)(?:0|[1-9][0-9]*)\s*/\s*[0-9]+)"
)
_PERCENT = re.compile(r"(?P<number>.*?)\s*(?:\\?%|\\text\s*\{\s*(?:\\?%|percent(?:age)?|pct)\s*\}|(?<![A-Za-z])(?:percent(?:age)?|pct))")
_SCALED = re.compile(
    r"(?P<number>.*?[0-9}])\s*(?:\\(?:text|mathrm|textrm)\s*\{\s*)?(?P<scale>hundred|thousand|million|billion|trillion|dozen)\s*\}?",
    re.IGNORECASE,
)
_SCALES = {"dozen": 12, "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}


def exact_number(text: str) -> Fraction | None:
    """The value of a plain number in cleaned notation, or None. `50%` is one half, and `2 1/2` is two and a half."""
    text = text.strip()
    if not text or len(text) > MOST_DIGITS:
        return None
    if text[0] in "+-":
        value = _unsigned(text[1:].strip())
        return None if value is None else (-value if text[0] == "-" else value)
    return _unsigned(text)


def _unsigned(text: str, *, scaled: bool = True) -> Fraction | None:
    if len(text) > _LONGEST_NOTATION:
        return _decimal(text) or _quotient(text)
    for reading in (*_READINGS, _percent, _scaled) if scaled else _READINGS:
        value = reading(text)
        if value is not None:
            return value
    return None


def _before_scale(text: str) -> Fraction | None:
    """The number in front of a percent sign or of a word like million, which is none of these itself."""
    text = text.strip()
    value = _unsigned(text.lstrip("+-").lstrip(), scaled=False) if text[1:2] not in ("+", "-") else None
    return -value if value is not None and text.startswith("-") else value


def _grouped(text: str) -> Fraction | None:
    for opening, closing in (("(", ")"), ("{", "}")):
        if len(text) > 2 and text[0] == opening and text[-1] == closing and text.count(opening) == 1 and text.count(closing) == 1:
            if "," in text:  # a tuple of two: (1,234)
                return None
            return exact_number(text[1:-1])
    return None


def _decimal(text: str) -> Fraction | None:
    if _DECIMAL.fullmatch(text):
        return _fraction(text.replace(",", ""))
    return _fraction(text.replace(" ", "")) if _GROUPS_BY_SPACE.fullmatch(text) else None


def _quotient(text: str) -> Fraction | None:
    if text.startswith(r"\frac"):
        above = text[len(r"\frac") :].lstrip()
        if not above.startswith("{"):
            return None
        end = notation.closing_brace(above, 0)
        below = above[end + 1 :].strip() if end > 0 else ""
        if not below.startswith("{") or notation.closing_brace(below, 0) != len(below) - 1:
            return None
        return _divide(_simple(above[1:end]), _simple(below[1:-1]))
    parts = text.split("/")
    return _divide(_simple(parts[0]), _simple(parts[1])) if len(parts) == 2 else None


def _simple(text: str) -> Fraction | None:
    """A signed integer or decimal, in brackets or not: what may stand above or below a fraction bar."""
    text = text.strip()
    sign = -1 if text.startswith("-") else 1
    text = text[1:].strip() if text[:1] in ("+", "-") else text
    if len(text) > 2 and text[0] == "(" and text[-1] == ")":
        inner = _simple(text[1:-1]) if text.count("(") == 1 else None
        return None if inner is None else sign * inner
    value = _decimal(text)
    return None if value is None else sign * value


def _divide(above: Fraction | None, below: Fraction | None) -> Fraction | None:
    return None if above is None or not below else above / below


def _mixed(text: str) -> Fraction | None:
    match = _MIXED.fullmatch(text)
    if match is None:
        return None
    part = _quotient(match["rest"])
    return _fraction(match["whole"].replace(",", "").replace(" ", "")) + part if part is not None and 0 <= part < 1 else None


def _percent(text: str) -> Fraction | None:
    match = _PERCENT.fullmatch(text) if text[-1:] in ("%", "t", "e", "}") else None
    value = _before_scale(match["number"]) if match and match["number"] else None
    return None if value is None else value / 100


def _scaled(text: str) -> Fraction | None:
    match = _SCALED.fullmatch(text) if text[-1:].isalpha() or text.endswith("}") else None
    value = _before_scale(match["number"]) if match else None
    return None if match is None or value is None else value * _SCALES[match["scale"].lower()]


def _scientific(text: str) -> Fraction | None:
    match = _E_NOTATION.fullmatch(text) or _TIMES_TEN.fullmatch(text)
    if match is None:
        return None
    exponent = int(next(group for group in match.groups()[1:] if group))
    if abs(exponent) + len(text) > MOST_DIGITS:
        return None
    return _fraction(match[1].replace(",", "")) * Fraction(10) ** exponent


def _power(text: str) -> Fraction | None:
    match = _POWER.fullmatch(text)
    if match is None:
        return None
    base, exponent = int(match[1]), int(next(group for group in match.groups()[1:] if group))
    if base.bit_length() * abs(exponent) > 3 * MOST_DIGITS or (base == 0 and exponent <= 0):
        return None
    return Fraction(base) ** exponent


def _based(text: str) -> Fraction | None:
    match = _BASED.fullmatch(text)
    base = int(match[2] or match[3]) if match else 0
    if match is None or not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in match[1]):
        return None
    return Fraction(int(match[1], base))


def _repeating(text: str) -> Fraction | None:
    match = _REPEATING.fullmatch(text)
    if match is not None:
        period = next(match[name] for name in "abcd" if match[name])
    else:
        match = _DOTS.fullmatch(text)
        if match is None:
            return None
        period = match["period"]
    fixed = match["fixed"]
    value = Fraction(int(match["whole"] or "0")) + Fraction(int(fixed or "0"), 10 ** len(fixed))
    return value + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))


def _fraction(text: str) -> Fraction:
    """The value of plain digits with at most one point. Decimal reads numbers that are too long for int()."""
    return Fraction(text.rstrip(".") or "0") if len(text) < _INT_DIGITS else Fraction(Decimal(text))


_READINGS = (_decimal, _quotient, _mixed, _scientific, _power, _repeating, _based, _grouped)
