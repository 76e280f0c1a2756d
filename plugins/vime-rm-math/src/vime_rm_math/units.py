"""Units behind a number: which text is one, and when two of them measure the same thing."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

_BASES: dict[str, dict[str, Fraction | int | str]] = {
    "length": {"mm": "1/1000", "cm": "1/100", "dm": "1/10", "m": 1, "km": 1000,
               "in": "127/5000", "ft": "381/1250", "yd": "1143/1250", "mi": "201168/125"},
    "mass": {"mg": "1/1000000", "g": "1/1000", "kg": 1, "lb": "45359237/100000000", "oz": "45359237/1600000000"},
    "time": {"ms": "1/1000", "s": 1, "min": 60, "h": 3600, "day": 86400, "week": 604800},
    "volume": {"ml": "1/1000", "cl": "1/100", "dl": "1/10", "l": 1},
    "angle": {"degree": 1},
    "dollar": {"dollar": 1, "cent": "1/100"},
    "euro": {"euro": 1},
}  # fmt: skip
_NAMES = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre", "dm": "decimeter decimetre", "m": "meter metre",
    "km": "kilometer kilometre",
    "in": "inch inches", "ft": "foot feet", "yd": "yard", "mi": "mile", "mg": "milligram", "g": "gram gm", "kg": "kilogram kilo",
    "lb": "pound lbs",
    "oz": "ounce", "ms": "millisecond", "s": "second sec", "min": "minute", "h": "hour hr", "day": "day", "week": "week",
    "ml": "milliliter millilitre",
    "cl": "centiliter", "dl": "deciliter", "l": "liter litre", "degree": "degree deg", "dollar": "dollar usd",
    "cent": "cent", "euro": "euro eur",
}  # fmt: skip
_SYMBOLS = {symbol for units in _BASES.values() for symbol in units}
_KNOWN: dict[str, str] = {symbol: symbol for symbol in _SYMBOLS}
_KNOWN.update({name + plural: symbol for symbol, names in _NAMES.items() for name in names.split() for plural in ("", "s")})
_SCALE = {symbol: (base, Fraction(factor)) for base, units in _BASES.items() for symbol, factor in units.items()}

SPOKEN_UNITS = "|".join(sorted({name for name in _KNOWN if name != "in" and not name.startswith("deg")}, key=len, reverse=True))
"""For a regular expression: units that may follow a number in running text."""

_NOT_UNIT_WORDS = (
    "and or not no to if for when where with from by at as is are than more less over under plus minus times base mod modulo "
    "between pi e i sqrt sin cos tan cot csc log ln exp inf infty infinity alpha beta gamma theta phi tau omega mu lambda "
    "max lim hundred thousand million billion trillion dozen half halves third thirds quarter quarters percent undefined "
    "none "
)
_NOT_UNITS = frozenset(_NOT_UNIT_WORDS.split())
_TEXT = r"\\(?:text|textrm|textbf|textit|textsf|mathrm|mathbf|mathit|mbox|operatorname|rm|bf)\s*\{([^{}]*)\}"
_TEXT_COMMAND = re.compile(_TEXT)
_DEGREE = r"\^\{\\circ\}"
_FUNCTION = re.compile(r"(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_WORD = re.compile(r"([A-Za-z]+)\.?(?:\s*\^\s*\{?\s*(-?[1-4])\s*\}?)?")
_CURRENCIES = {"$": "dollar", "€": "euro", "£": "gbp", "¥": "yen", "₹": "rupee"}
_LETTER_UNIT = re.compile(r"[mgs](?:\s*\^\s*(?:[23]|\{[23]\}))?|m\s*/\s*s(?:\s*\^\s*(?:2|\{2\}))?")
_LONGEST = 160


@dataclass(frozen=True)
class Unit:
    """A product of base units: `dimensions` as sorted (base, power) pairs, and the factor that leads to them."""

    dimensions: tuple[tuple[str, int], ...]
    factor: Fraction


def split_unit(text: str) -> tuple[str, Unit | None]:
    r"""Take the unit off a cleaned quantity: `5 \text{ cm}^2` gives ("5", square centimetres); without one (text, None).

    Words in `\text{}` are units unless they say something else ("or", "million"). Outside of it, words of the table
    with two or more letters are, and words of four or more letters; a single letter is a variable, but for m, g, s,
    m^2, m/s and the like after a space.
    """
    if len(text) > _LONGEST:
        return text, None
    currency = re.match(r"(-?)\s*(?:\\\$|[$€£¥₹])\s*(?=[-0-9.])", text)
    if currency:
        sign = next(mark for mark in currency.group() if mark in _CURRENCIES)
        return currency.group(1) + text[currency.end() :], _unit([(_CURRENCIES[sign], 1)])
    if text[-1:] in _CURRENCIES and text[:-1].rstrip(" \\")[-1:].isdigit():
        return text[:-1].rstrip(" \\"), _unit([(_CURRENCIES[text[-1]], 1)])
    for start in _candidate_starts(text):
        head, tail = text[:start].rstrip(), text[start:]
        if head and (unit := _read(tail, spaced=text[:start].endswith(" "))) is not None:
            return head.removesuffix(r"\cdot").removesuffix(r"\times").rstrip(), unit
    return text, None


def _candidate_starts(text: str) -> list[int]:
    """Where a unit may begin, leftmost first: after a digit, a closing bracket or a space, so that all behind it is unit."""
    starts = [match.start() for match in re.finditer(rf"{_DEGREE}|{_TEXT}|(?<![A-Za-z\\])[A-Za-z]+", text)]
    return [start for start in starts if start and _may_begin(text[:start].rstrip(), text[start]) and _is_closed(text[:start])]


def _may_begin(head: str, first: str) -> bool:
    if first == "^":
        return _FUNCTION.search(head) is None  # the angle of a sine is not the unit of its value
    return first == "\\" or head[-1:] in tuple("0123456789})|") or head.endswith(r"\pi")


def _is_closed(text: str) -> bool:
    return text.count("{") == text.count("}") and text.count("(") == text.count(")")


def _read(tail: str, *, spaced: bool) -> Unit | None:
    if _LETTER_UNIT.fullmatch(tail):
        above, *below = tail.split("/")
        words = (_words(above, 1) or []) + (_words(below[0], -1) or [] if below else [])
        return _unit(words) if spaced else None
    degree = re.match(_DEGREE, tail)
    words = [("degree", 1)] if degree else []
    rest = tail[degree.end() :] if degree else tail
    rest = re.sub(r"\\c?dot(?![A-Za-z])|\*|\\times(?![A-Za-z])", " ", rest)
    spoken = ""
    position = 0
    for match in _TEXT_COMMAND.finditer(rest):
        spoken += _bare(rest[position : match.start()]) + " " + match.group(1)
        position = match.end()
    spoken += _bare(rest[position:])
    if "\0" in spoken:
        return None
    parts = re.split(r"/|\bper\b", spoken)
    for place, part in enumerate(parts):
        found = _words(part, -1 if place else 1)
        if found is None or (place and not found):
            return None
        words += found
    return _unit(words) if words else None


def _bare(text: str) -> str:
    r"""Letters that stand outside of `\text{}`: kept where they cannot be variables, else marked as no unit."""
    for slash, word in re.findall(r"(/?)\s*([A-Za-z]+)", text):
        known = word == "per" or (word.lower() in _KNOWN and (slash or len(word) > 1))
        if not known and (len(word) < 4 or word.lower() in _NOT_UNITS):
            return "\0"
    return "\0" if re.search(r"[^A-Za-z0-9^{}\-\s/.]", text) or re.search(r"(?<!\^)(?<!\^\{)(?<!-)[0-9]", text) else text


def _words(text: str, sign: int) -> list[tuple[str, int]] | None:
    """The words of one side of a fraction bar with their powers, or None where this is no unit."""
    text = text.strip().lower()
    power_of_next, found, nouns = 1, [], []
    position = 0
    for match in _WORD.finditer(text):
        if text[position : match.start()].strip(" -"):
            return None
        position = match.end()
        word, power = match.group(1), int(match.group(2) or 1)
        if word in ("square", "sq"):
            power_of_next = 2
        elif word == "cubic":
            power_of_next = 3
        elif word in ("squared", "cubed") and found:
            found[-1] = (found[-1][0], found[-1][1] * (2 if word == "squared" else 3))
        elif word in _NOT_UNITS:
            return None
        elif word in _KNOWN:
            found.append((_KNOWN[word], power * power_of_next * sign))
            power_of_next = 1
        else:
            nouns.append(word.removesuffix("s") if len(word) > 3 else word)
    if text[position:].strip(" ."):
        return None
    return found or ([(" ".join(nouns), sign)] if nouns else [])


def _unit(words: list[tuple[str, int]]) -> Unit:
    powers: Counter[str] = Counter()
    factor = Fraction(1)
    for word, power in words:
        base, scale = _SCALE.get(word, (word, Fraction(1)))
        powers[base] += power
        factor *= scale**power
    return Unit(tuple(sorted((base, power) for base, power in powers.items() if power)), factor)


def is_angle(unit: Unit | None) -> bool:
    """Whether the unit is the degree of an angle."""
    return unit is not None and unit.dimensions == (("angle", 1),)
