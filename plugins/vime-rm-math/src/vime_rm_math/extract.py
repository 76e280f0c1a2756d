r"""Find the answer in a response: the last `\boxed{}`, else the last `#### n`, else what the response ends with."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

from vime_rm_math import notation
from vime_rm_math.exact import exact_number
from vime_rm_math.units import SPOKEN_UNITS

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_HASHES = re.compile(r"(?<!#)####(?!#)[ \t]*([^\n]*)")
_SEGMENT = re.compile(
    r"\$\$(?P<a>.+?)\$\$|\$(?=\S)(?P<b>(?:[^$\\]|\\.)+?)(?<=\S)\$(?![0-9])"
    r"|\$\s+(?P<e>(?:[^$\\]|\\.)*?\\[A-Za-z](?:[^$\\]|\\.)*?)\$(?![0-9])|\\\((?P<c>.+?)\\\)|\\\[(?P<d>.+?)\\\]",
    re.DOTALL,
)
"""Mathematics between delimiters. A dollar sign before a digit or after a space is money, not the end of a formula; but for a
formula with a command in it, which may have spaces inside its delimiters."""
_PLAIN = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_NUMBER = re.compile(
    rf"""
    (?<![A-Za-z0-9_.^\\]) (?<![\^_]\{{) (?<![0-9],)
    (?: (?<![0-9A-Za-z)}}\]]) [-+−–] \s? )?
    (?: \\?[$€£¥] \s? )? (?: (?<=[$€£¥]) [-+−] )?
    (?:
        [0-9]{{1,2}} : [0-9]{{2}} (?: : [0-9]{{2}} )? (?![0-9])
      | (?: (?:[0-9]+\s*)? \\[dtc]?frac \s* (?: \{{ [^{{}}]{{1,40}} \}} | [0-9] ) \s* (?: \{{ [^{{}}]{{1,40}} \}} | [0-9] ) )
      | (?: [0-9]+ [ ] )? [0-9]+ \s? / \s? [0-9]+ (?![0-9]) (?! \.[0-9] )
      | (?: {_PLAIN} ) (?: [eE][-+]?[0-9]+ (?![0-9A-Za-z]) | \s*(?:\\times|×|\*)\s*10\s*\^\s*(?:\{{\s*[-−]?[0-9]+\s*\}}|[-−]?[0-9]+) )?
        (?: \s?\^\s?(?: \{{ [^{{}}]{{1,20}} \}} | [-−]?[0-9]+ ) )?
    )
    (?: \s?\\?% | \s?(?:percent|pct)\b | \s (?:hundred|thousand|million|billion|trillion|dozen)\b )?
    (?: \s? (?:{SPOKEN_UNITS}) (?: \^\{{?[23]\}}? | [²³] | /(?:{SPOKEN_UNITS}) )? (?![A-Za-z0-9]) )?
    """,
    re.VERBOSE,
)
_CONCLUSION = re.compile(r"(?i:answer|result|solution)[*_]{0,2}(?:\s+is|\s*[:=])[*_]{0,2}\s*:?\s*([^\n]{1,200})\s*$")
_BETWEEN = re.compile(r"(?:[\s,;$]|\\[,;:! ()\[\]]|\\q?quad(?![A-Za-z])|\\text\s*\{[\s,]*(?:and|or)?[\s,]*\}|\b(?:and|or)\b)*")
_NOT = re.compile(r"(?:\bnot|n't|\bnever|≠|!=|\\neq?|\brather than|\binstead of)(?:\s+equal(?:\s+to)?)?[\s$(*_]*$", re.IGNORECASE)
_AND_OR = re.compile(
    r"[\s$*_]*,?\s*\b(?:and|or)\b[\s$*_]*(?:(?:maybe|perhaps|possibly|also|even)\s+)?(?:\\?[A-Za-z]\s*=\s*)?[\s$*_]*", re.IGNORECASE
)
"""What stands between the last two numbers where they are a list or alternatives."""
_COMMA = re.compile(r"[\s$*_]*,[\s$*_]*")
_ANSWERS = re.compile(r"(?:\A|(?:answers?|solutions?|roots?|values?|zeros?)\s*(?:is|are|[:=]))[\s$*_]*\Z", re.IGNORECASE)
"""What stands before a list that has commas only."""
_ITALIC = re.compile(r"(?<![A-Za-z0-9\\}_])_(?=[^\s_])([^_\n]{1,60})(?<=\S)_(?![A-Za-z0-9_])")
_PERCENT_BEHIND = re.compile(r"\}[\s$]*(?:\\?%|\\text\s*\{\s*percent\s*\}|(?:percent|pct)\b)")
_MOST_HASHES = 100
_MOST_BOXES = 32
_MOST_NUMBERS = 8
_SHORT = 60
_TAIL = 4000


def extract_answer(response: str, *, numeric: bool = True) -> str | None:
    r"""The answer that a response gives, or None.

    The last `\boxed{...}` decides alone: left open (a response that was cut off) or empty, there is no answer. Without
    a box it is the number after the last `####`. Without that, for a `numeric` label, the final number, or the formula
    between math delimiters that holds it; for another label, the last formula, what follows "answer is", or a response
    of one line.
    """
    found, content = last_box(response)
    if found:
        return content
    for match in reversed(deque(_HASHES.finditer(response), maxlen=_MOST_HASHES)):
        if exact_number(notation.clean(match.group(1))) is not None:
            return match.group(1)
    return _final_number(response) if numeric else _final_expression(response)


def last_box(text: str) -> tuple[bool, str | None]:
    r"""Whether there is a `\boxed{`, and the content of the last one: None where it is empty or never closed."""
    span = last_box_span(text)
    if span is None:
        return False, None
    content = text[span[0] : span[1]] if span[1] >= 0 else ""
    return True, content if content.strip() else None


def last_box_span(text: str) -> tuple[int, int] | None:
    r"""Where the content of the last `\boxed{` starts and ends; the end is -1 where it is never closed. None without one."""
    last = _last(_BOX, text)
    return None if last is None else (last.end(), notation.closing_brace(text, last.end() - 1))


def joined_boxes(text: str, *, alternatives: bool = False) -> str | None:
    r"""The contents of the boxes that end a text, as a list, where nothing but commas, "and" and the like stand between them.

    None for fewer than two: `\boxed{1}` and, later on, `\boxed{2}` is a correction, and not a list. With `alternatives`
    there has to be an "or" between two of them.
    """
    contents: list[str] = []
    start, said_or = len(text), not alternatives
    for box in reversed(deque(_BOX.finditer(text), maxlen=_MOST_BOXES)):
        end = notation.closing_brace(text, box.end() - 1)
        if end < 0 or (contents and not _BETWEEN.fullmatch(text, end + 1, start)):
            break
        said_or |= bool(contents) and "or" in text[end + 1 : start]
        contents.append(text[box.end() : end])
        start = box.start()
    return ", ".join(reversed(contents)) if said_or and len(contents) > 1 and all(map(str.strip, contents)) else None


def percent_behind_box(text: str) -> bool:
    """Whether the last box has a percent sign behind it instead of inside."""
    span = last_box_span(text)
    return span is not None and span[1] >= 0 and _PERCENT_BEHIND.match(text, span[1]) is not None


def _final_number(response: str) -> str | None:
    tail = response[-_TAIL:]
    if "_" in tail:
        tail = _ITALIC.sub(r"\1", tail)
    if len(tail) < _SHORT and exact_number(notation.clean(tail)) is not None:
        return notation.unwrap(tail)
    numbers = deque(_NUMBER.finditer(tail), maxlen=_MOST_NUMBERS)
    if (not numbers or numbers[-1].start() == 0) and len(response) > _TAIL:
        match = _last(_NUMBER, response)
        return None if match is None else match.group()
    while numbers and _NOT.search(tail, max(0, numbers[-1].start() - 40), numbers[-1].start()):
        numbers.pop()
    given = _with_formulas(tail, numbers)
    if not given:
        return None
    start, _, answer = given.pop()
    while given:
        before, end, text = given.pop()
        between = tail[end:start]
        if not (_AND_OR.fullmatch(between) or (_COMMA.fullmatch(between) and _ANSWERS.search(tail[max(0, before - 40) : before]))):
            break
        answer, start = f"{text}, {answer}", before
    return answer


def _with_formulas(text: str, numbers: Iterable[re.Match[str]]) -> list[tuple[int, int, str]]:
    """Start, end and text of each number, or of the whole formula between math delimiters that holds it."""
    given: list[tuple[int, int, str]] = []
    segments = list(_SEGMENT.finditer(text))
    for match in numbers:
        one = (match.start(), match.end(), match.group())
        for segment in segments:
            if segment.start() <= match.start() < segment.end() and segment.end() >= match.end():
                following = re.match(r"\s?(?:\\?%|(?:percent|pct)\b)", text[segment.end() :])
                one = (segment.start(), segment.end(), _inside(segment) + (following.group() if following else ""))
                break
        if not given or given[-1] != one:
            given.append(one)
    return given


def _final_expression(response: str) -> str | None:
    tail = response[-_TAIL:].rstrip()
    segment = _last(_SEGMENT, tail)
    conclusion = _last(_CONCLUSION, tail)
    if segment is not None and (conclusion is None or segment.start() >= conclusion.start()):
        return _inside(segment)
    if conclusion is not None:
        return conclusion.group(1)
    lines = [line for line in response.strip().splitlines() if line.strip()] if len(response) < _TAIL else []
    return lines[0] if len(lines) == 1 else None


def _inside(segment: re.Match[str]) -> str:
    return next(group for group in segment.groups() if group is not None)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    newest = deque(pattern.finditer(text), maxlen=1)
    return newest[0] if newest else None
