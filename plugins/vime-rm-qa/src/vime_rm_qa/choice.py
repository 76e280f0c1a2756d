r"""The entry point `choice`: 1.0 for the right letter of a multiple-choice question, as GPQA has them, else 0.0."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, field_validator

from vime.api import Sample, hookimpl
from vime.api import Settings as BaseSettings
from vime_rm_qa.answers import after_thinking, final_answer
from vime_rm_qa.exact import normal_text

_WRAP = r"(?:[\s*_\"'`$“”‘’{]|\\(?:text|textbf|mathrm|mathbf|boldsymbol)\s*+\{)*+"
"""What may stand around a letter: bold, quotes, math delimiters. Possessive, as every run here: a text may have a megabyte of it."""
_FILLER = r"(?:indeed|therefore|thus|simply|clearly|definitely|probably|most\s+likely|for\s+sure|option|choice|answer|letter)"
_LETTER = r"(?:[(\[]\s*+([A-Za-z])\s*+[)\]]|([A-Za-z])(?![A-Za-z0-9'’]))"
_CONCLUSION = re.compile(
    rf"(?i:\banswer|\bchoice|\boption)(?:\s++(?i:is|would\s+be|must\s+be)\b|[\s*_]*+[:=]|\s*+[-–—]\s)[*_]*+\s*+:?+"
    rf"(?:[\s*_:]|(?i:{_FILLER})\b){{0,20}}+(?i:not\s+\S{{1,4}}?,?\s+but\s+)?{_WRAP}{_LETTER}?"
)
_AFTER_BARE = re.compile(r"[^\S\n]*+(?:\n|\Z|[^\w\s])|\s+(?:because|since|as|due|for|which|with)\b")
"""What may follow a letter without brackets, so that "the answer is A large city" is none."""
_AFTER_SMALL = re.compile(r"[*_}$\"'`]*+[.;!)\]]?+\s*+(?:\n|\Z)")
"""What may follow a small letter, which is a word otherwise."""
_VERDICT = re.compile(
    r"(?:(?<![A-Za-z0-9'’(\[])([A-Z])|[(\[]([A-Za-z])[)\]])[*_$\"'`}]{0,4}\s{1,3}is\s{1,3}(?:the\s{1,3})?(?:correct|right|best)\b"
)
_CHOSEN = re.compile(
    rf"\b(?i:choose|choosing|chose|pick|select|go\s{{1,3}}with|it'?s|it\s{{1,3}}is|therefore|thus|hence|so),?\s{{1,3}}(?:(?i:option|choice)\s{{1,3}})?+"
    rf"{_WRAP}{_LETTER}(?!\s*+[):])"
)
_BRACKETS = re.compile(r"(?<!not )(?<!not option )\(\s*+([A-Za-z])\s*+\)")
_ALONE = re.compile(
    rf"{_WRAP}(?:[(\[]\s*+([A-Za-z])\s*+[)\]]|([A-Za-z])[\s}}*_]*[.:)]|([A-Za-z])(?=[\s}}*_$\"'`]*+\Z))(?P<rest>.*)", re.DOTALL
)
_ANOTHER = re.compile(r"[\s}*_$]*+(?:[,;/&]|\b(?:and|or)\b)")
"""What makes a letter one of several."""
_ANOTHER_LETTER = re.compile(
    r"[\s}*_$]*+(?:[,;/&]|\b(?:and|or)\b)\s*+(?:[(\[]\s*+[A-Za-z]\s*+[)\]]|[A-Z](?=\s*+(?:[).,;:/\]]|\Z|\n|and\b|or\b)))"
)
_LIST_BEFORE = re.compile(r"[)\]]\s*(?:,|/|&|\band|\bor)\s*$")
_LONGEST_CHOICE = 300
_MOST_CONCLUSIONS = 50
_CHOICES = ("choices", "options")


class Choice:
    r"""Rewards the right letter: that of the last `<answer>` or `\boxed{}`, else of the last "answer is X", "(X)" or line."""

    class Settings(BaseSettings):
        letters: str = Field(default="ABCDEFGHIJ", min_length=2, max_length=26)
        """The letters that answers can have where the row's metadata has no `choices`."""

        @field_validator("letters")
        @classmethod
        def _distinct_capitals(cls, letters: str) -> str:
            if not re.fullmatch("[A-Z]+", letters) or len(set(letters)) < len(letters):
                raise ValueError("takes capital letters from A to Z, each once, such as ABCD")
            return letters

    def __init__(self, settings: Choice.Settings) -> None:
        self.settings = settings

    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        """1.0 or 0.0. Raises ValueError, naming the sample, for a label or choices that name no letter."""
        options = options_of(sample, self.settings.letters)
        return 1.0 if chosen_letter(sample.response, options) == right_letter(sample, options) else 0.0


def options_of(sample: Sample, letters: str) -> dict[str, str]:
    """The letters of a question and the text of each, from `choices` or `options` in the metadata: in the order shown, or by letter.

    Without them the texts are "". Raises ValueError for choices that are not two or more under single letters.
    """
    given: Any = next((sample.metadata[key] for key in _CHOICES if sample.metadata.get(key) is not None), None)
    if given is None:
        return dict.fromkeys(letters, "")
    if hasattr(given, "tolist"):
        given = given.tolist()
    if isinstance(given, Mapping):
        found = {str(letter).strip().upper(): str(text) for letter, text in given.items()}
    elif isinstance(given, Sequence) and not isinstance(given, str | bytes) and len(given) <= 26:
        found = {chr(ord("A") + place): str(text) for place, text in enumerate(given)}
    else:
        raise ValueError(
            f"sample {sample.index}: its choices are a {type(given).__name__}: expected a list of at most 26, or a dict by letter"
        )
    if len(found) < 2 or not all(re.fullmatch("[A-Z]", letter) for letter in found):
        raise ValueError(f"sample {sample.index}: its choices {list(found)} are not two or more under single letters")
    return found


def right_letter(sample: Sample, options: Mapping[str, str]) -> str:
    """The letter that a label names: itself ("B", "(b)"), an index from 0, or the text of one of the choices.

    `correct_letter` of the metadata goes first. Raises ValueError for anything else.
    """
    label = sample.metadata.get("correct_letter")
    label = sample.label if label is None else label
    if hasattr(label, "item") and getattr(label, "ndim", 0) == 0:
        label = label.item()
    who, known = f"sample {sample.index}", f"the choices are {', '.join(options)}"
    if label is None:
        raise ValueError(
            f"{who} has no label: the reward 'choice' compares with it; set --label-key to the field that holds the right letter"
        )
    if isinstance(label, int) and not isinstance(label, bool):
        if 0 <= label < len(options):
            return list(options)[label]
        raise ValueError(f"{who} has the label {label}: as an index from 0 it names no choice; {known}")
    if not isinstance(label, str):
        raise ValueError(
            f"{who} has a label of type {type(label).__name__}: the reward 'choice' takes a letter, an index, or a choice's text"
        )
    letter = re.fullmatch(r"\s*(?:[(\[]\s*([A-Za-z])\s*[)\]]|([A-Za-z])\s*[.:)]?)\s*", label)
    if letter and (found := (letter[1] or letter[2]).upper()) in options:
        return found
    letters = [name for name, text in options.items() if text and normal_text(text) == normal_text(label)]
    if len(letters) == 1:
        return letters[0]
    what = "is neither a letter nor the text of a choice" if not letters else f"is the text of {' and '.join(letters)}"
    raise ValueError(f"{who} has the label {label[:80]!r}, which {what}; {known}")


def chosen_letter(response: str, options: Mapping[str, str]) -> str | None:
    r"""The letter that a response settles on, None where it does not.

    A last `<answer>` or `\boxed{}` decides alone, by its letter or by the text of a choice. Without one it is the last
    "answer is X", else the last letter in parentheses, else the last line that starts with a letter of its own.
    """
    answer, marked = final_answer(response)
    if marked:
        answer = answer.strip()
        return _by_itself(answer, options) or (_last_concluded(answer, options) if len(answer) < 1000 else None)
    text = after_thinking(response)
    found = _last_concluded(text, options) or _last_verdict(text, options)
    bracketed = [] if found else [match for match in _BRACKETS.finditer(text) if match[1].upper() in options]
    if found or bracketed:
        return found or (
            None if _LIST_BEFORE.search(text[max(0, bracketed[-1].start() - 20) : bracketed[-1].start()]) else bracketed[-1][1].upper()
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _by_itself(lines[-1], options) if lines and len(lines[-1]) < 1000 else None


def _last_concluded(text: str, options: Mapping[str, str]) -> str | None:
    """The letter of the last "answer is X" that names one, by itself or by the text of a choice."""
    texts = {normal_text(option): letter for letter, option in options.items() if option}
    found = None
    for match in deque(_CONCLUSION.finditer(text), maxlen=_MOST_CONCLUSIONS):
        letter = _settled(match, text, options)
        if letter is None and texts:
            start = match.start(1) - 1 if match[1] else match.start(2) if match[2] else match.end()
            rest = text[start : start + _LONGEST_CHOICE].partition("\n")[0]
            letter = texts.get(normal_text(rest)) or texts.get(normal_text(rest.partition(". ")[0]))
        found = letter or found
    return found


def _last_verdict(text: str, options: Mapping[str, str]) -> str | None:
    """The letter of the last "X is correct" or "I choose X"."""
    found = [(match.start(), letter) for match in _VERDICT.finditer(text) if (letter := match[1] or match[2].upper()) in options]
    found += [(match.start(), letter) for match in _CHOSEN.finditer(text) if (letter := _settled(match, text, options))]
    return max(found)[1] if found else None


def _settled(match: re.Match[str], text: str, options: Mapping[str, str]) -> str | None:
    """The letter that a match names, unless it is a word, no option, or one of several."""
    if match[1]:
        letter, end = match[1].upper(), match.end(1) + 1
    elif match[2]:
        after = _AFTER_BARE if match[2].isupper() else _AFTER_SMALL
        letter, end = match[2].upper() if after.match(text, match.end(2)) else "", match.end(2)
    else:
        return None
    return None if letter not in options or _ANOTHER_LETTER.match(text, end) else letter


def _by_itself(text: str, options: Mapping[str, str]) -> str | None:
    """The letter of a text that is a letter ("B", "(B)", "B. Paris") or the text of exactly one choice."""
    match = _ALONE.fullmatch(text)
    if match and not _ANOTHER.match(match["rest"]):
        letter = next(group for group in match.groups() if group is not None)
        if letter.upper() in options and (letter.isupper() or not match["rest"].strip("}*_$\"'`. \n")):
            return letter.upper()
    letters = [name for name, option in options.items() if option and normal_text(option) == normal_text(text)]
    return letters[0] if len(letters) == 1 else None
