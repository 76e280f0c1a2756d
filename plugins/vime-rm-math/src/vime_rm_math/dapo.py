"""The entry point `dapo`: 1 for a right answer at the end of the response, -1 for any other, as in DAPO (Yu et al. 2025)."""

from __future__ import annotations

import re

from pydantic import Field

from vime.api import Sample, hookimpl
from vime_rm_math.extract import extract_answer, last_box_span
from vime_rm_math.grader import accepted_answers, is_numeric
from vime_rm_math.settings import AnswerSettings

_ANSWER_LINE = re.compile(r"(?i:answer)\s*:[\s*]*([^\s*][^\n]*)")
_WORD = re.compile(r"[0-9A-Za-z.,/^_-]+")


class Dapo:
    """Rewards right answers in the last 300 characters with 1, anything else with -1. The reward is a dict: use `--reward-key score`."""

    class Settings(AnswerSettings):
        """`--set dapo.characters=500`."""

        characters: int = Field(default=300, ge=1)
        """The answer has to stand in this many characters at the end of the response."""

    def __init__(self, settings: Settings) -> None:
        self.grader, self.characters = settings.grader(), settings.characters

    @hookimpl
    async def custom_rm(self, sample: Sample) -> dict[str, float | str]:
        """`score`, 1.0 or -1.0; `acc`, 1.0 or 0.0; `pred`, the answer that was found, "" for none."""
        name = f"sample {sample.index}"
        numeric = is_numeric(accepted_answers(sample.label, name=name)[0])
        part = answer_part(sample.response, self.characters)
        right = await self.grader.agrade(part, sample.label, name=name)
        return {"score": 2.0 * right - 1.0, "acc": right, "pred": (extract_answer(part, numeric=numeric) or "").strip()}


def answer_part(response: str, characters: int) -> str:
    r"""What of a response is looked at: the line after the last "Answer:" in its last `characters`, else all of these.

    A word or a `\boxed{` that the cut goes through is left out, so that no half of a number passes for an answer.
    """
    cut = max(0, len(response) - characters)
    box = last_box_span(response) if cut else None
    if box is not None and box[0] - len(r"\boxed{") < cut and not 0 <= box[1] < cut:
        cut = box[1] + 1 if box[1] >= 0 else len(response)
    elif cut and _WORD.match(response[cut - 1]) and (word := _WORD.match(response, cut)):
        cut = word.end()
    tail = response[cut:]
    lines = _ANSWER_LINE.findall(tail)
    return lines[-1] if lines else tail
