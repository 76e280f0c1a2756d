"""Answers that are text: words, letters of choices, clock times and ratios. Nothing here needs mathematics."""

from __future__ import annotations

import re

from vime_rm_math import notation
from vime_rm_math.exact import exact_number

TEXT = re.compile(r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_WORD = re.compile(r"[A-Za-z]+(?:[ '-][A-Za-z]+)*")
_CHOICE = re.compile(r"\(?([A-Z])\s*(?:\)|[.:](?=\s))\s*(.*)", re.DOTALL)
_ANOTHER = re.compile(r"[,;/&]|(?:and|or)\b|\([A-Z]\)|[A-Z][).:]")
"""What makes a letter one of several."""
_RATIO = re.compile(r"[0-9]+(?:\s*:\s*[0-9]+)+")
_HOURS_AND_MINUTES = re.compile(r"[0-9]{1,2}\s*:\s*[0-5][0-9]")
_CLOCK = re.compile(r"([0-9]{1,2})\s*:\s*([0-5][0-9])(?:\s*:\s*([0-5][0-9]))?\s*([ap])\.?\s?m\.?", re.IGNORECASE)


def same_text(answer: str, label: str) -> bool | None:
    """Decide cleaned text that needs no mathematics; None for what does."""
    spellings = [notation.without_spaces(TEXT.sub(lambda match: match.group(1), text)) for text in (answer, label)]
    spellings = [re.sub(r"(?<!\.)\.$", "", spelling) for spelling in spellings]
    if spellings[0] == spellings[1] != "":
        return True
    answer_word, label_word = _as_word(answer), _as_word(label)
    if answer_word and label_word and len(answer_word) > 1 and answer_word.casefold() == label_word.casefold():
        return True
    choice = _choice(answer)
    if choice and re.fullmatch("[A-Z]", label_word or ""):
        return choice[0] == label_word
    if choice and choice[1] and not _choice(choice[1]) and not _choice(label):
        return same_text(choice[1], label)
    times = _same_time(answer, label)
    if times is not None:
        return times
    spoken = (_is_prose(answer_word), _is_prose(label_word))
    if all(spoken) or (any(spoken) and (exact_number(answer) is not None or exact_number(label) is not None)):
        return False
    return None


def _as_word(text: str) -> str | None:
    text = " ".join(TEXT.sub(lambda match: f" {match.group(1)} ", text).split()).strip(" .,;:!")
    text = text[1:-1] if re.fullmatch(r"\([A-Za-z]\)", text) else text
    return text if len(text) <= 200 and _WORD.fullmatch(text) else None


def _is_prose(word: str | None) -> bool:
    return word is not None and any(len(part) >= 4 for part in re.split(r"[ '-]", word))


def _choice(text: str) -> tuple[str, str] | None:
    """The letter of a choice and the text behind it: "(C) 12" gives ("C", "12"). One of several letters is none."""
    text = TEXT.sub(lambda match: match.group(1), text).strip()
    if re.fullmatch("[A-Z]", text):
        return text, ""
    match = _CHOICE.fullmatch(text)
    return (match.group(1), match.group(2).strip()) if match and not _ANOTHER.match(match.group(2)) else None


def _time(text: str) -> tuple[tuple[int, ...], tuple[int, ...] | None] | None:
    """A clock time or ratio as it is written, without seconds that are zero, and on the 24-hour clock where am or pm says which."""
    text = TEXT.sub(lambda match: match.group(1), text)
    if clock := _CLOCK.fullmatch(text):
        hour, rest = int(clock[1]), (int(clock[2]), int(clock[3] or 0))
        return ((hour, *rest), (hour % 12 + (12 if clock[4].lower() == "p" else 0), *rest)) if 1 <= hour <= 12 else None
    if not _RATIO.fullmatch(text):
        return None
    parts = tuple(int(part[:50]) for part in text.split(":"))
    return (*parts, 0) if _HOURS_AND_MINUTES.fullmatch(text) else parts, None


def _same_time(answer: str, label: str) -> bool | None:
    one, other = _time(answer), _time(label)
    if one is None or other is None:
        return None if one is other else False
    if one[1] and other[1]:
        return one[1] == other[1]
    return one[0] == other[0] or one[0] == other[1] or one[1] == other[0]
