"""The entry point `f1`: the token F1 of SQuAD v1.1, the best over the accepted answers."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from vime.api import Sample, hookimpl
from vime_rm_qa.answers import accepted, final_answer

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class F1:
    """Rewards the words that an answer shares with the label, or with the nearest of several: from 0.0 to 1.0."""

    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        """The best F1. Raises ValueError for a label that is missing, or of articles and punctuation only."""
        labels = accepted(sample.label, sample.index, tokens, "f1")
        answer = tokens(final_answer(sample.response)[0])
        return max(token_f1(answer, label) for label in labels)


def tokens(text: str) -> list[str]:
    """The words that count in the evaluation of SQuAD v1.1 (Rajpurkar et al. 2016): in lower case, no ASCII punctuation, no articles."""
    return _ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def token_f1(answer: Sequence[str], label: Sequence[str]) -> float:
    """The harmonic mean of precision and recall of the words of `answer`, each counted as often as it occurs; 0.0 without a common one."""
    common = (Counter(answer) & Counter(label)).total()
    return 2 * common / (len(answer) + len(label)) if common else 0.0
