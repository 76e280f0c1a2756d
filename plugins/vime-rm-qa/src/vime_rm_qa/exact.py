"""The entry point `exact`: 1.0 where the answer is one of the accepted ones, but for spelling; else 0.0."""

from __future__ import annotations

import re
import unicodedata

from vime.api import Sample, hookimpl
from vime_rm_qa.answers import accepted, final_answer

_MARKS = ".,;:!?*_`\"'()[]{}<>…«»“”„‘’。，、！？；：（）「」『』【】"
_DASHES = "-–—−"
_GROUPED = re.compile(r"[-+]?[$€£¥]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?%?")
_GRADE = re.compile(r"[a-z]{1,2}[-−]")
"""A grade or a blood group, where the sign says something."""
_ARTICLES = frozenset({"a", "an", "the"})


class Exact:
    """Rewards answers that are the label, or one of several, whatever their case, punctuation, spaces and leading article."""

    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        """1.0 or 0.0. Raises ValueError for a label that is missing or empty."""
        labels = accepted(sample.label, sample.index, normal_text, "exact")
        answer, marked = final_answer(sample.response)
        if not marked and len(answer) > 100 * max(map(len, labels)) + 1000:
            return 0.0  # far too long to be one of them: no need to normalise it
        return 1.0 if normal_text(answer) in labels else 0.0


def normal_text(text: str) -> str:
    """The spelling in which answers are compared.

    Compatible characters are one (NFKC), case is folded, marks around each word and a leading article are dropped, and
    words stand one space apart. Signs, decimal points and percent signs of numbers stay; thousands separators go.
    """
    words = [word for raw in unicodedata.normalize("NFKC", text).casefold().split() if (word := _normal_word(raw))]
    return " ".join(words[1:] if len(words) > 1 and words[0] in _ARTICLES else words)


def _normal_word(word: str) -> str:
    if not any(character.isdigit() for character in word):
        word = word.strip(_MARKS)
        return f"{word[:-1]}-" if _GRADE.fullmatch(word) else word.strip(_MARKS + _DASHES)
    word = word.translate(str.maketrans(_DASHES, "-" * len(_DASHES))).rstrip(_MARKS + "-").lstrip(_MARKS.replace(".", ""))
    return word.replace(",", "") if _GROUPED.fullmatch(word) else word
