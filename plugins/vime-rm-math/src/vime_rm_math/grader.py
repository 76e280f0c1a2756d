"""From a response and a label to a verdict."""

from __future__ import annotations

import asyncio
import functools
import math
import numbers
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from vime.api import IsolatedPool
from vime_rm_math import guard, notation
from vime_rm_math.compare import is_list, same_answer
from vime_rm_math.exact import MOST_DIGITS, PLAIN, exact_number
from vime_rm_math.extract import extract_answer, joined_boxes, last_box, percent_behind_box
from vime_rm_math.units import split_unit
from vime_rm_math.worker import same_in_worker

_LONG = 100_000
"""Characters of a text that a thread reads, so that the event loop goes on."""
_BARE_BOX = re.compile(r"\\boxed\s*([-+]?[0-9]+(?:\.[0-9]+)?|[A-Za-z])(?![A-Za-z0-9])")
r"""A box without braces, as some worked solutions have it: `\boxed 5`."""


class Grader:
    """Decides answers. Plain ones at once in the calling thread; the others in worker processes that can be killed.

    Args:
        timeout: limit in seconds for one answer in a worker. It counts processor time, so that a busy machine changes no
            verdict; the wall clock may show five times as much.
        workers: number of worker processes. They start with the first answer that needs one.
    """

    def __init__(self, *, timeout: float = 2.0, workers: int = 2) -> None:
        self.pool = IsolatedPool(workers, timeout=5 * timeout, processor_timeout=timeout, memory_mib=2048, preload=("vime_rm_math.warm",))

    def grade(self, response: str, label: Any, *, name: str = "the answer") -> float:
        """1.0 where the response's final answer equals the label, or one of a list of labels; else 0.0.

        Safe in any thread and process. `name` stands for the sample in errors. Raises ValueError for a label that is
        missing or no answer at all, and vime.isolation.IsolatedTimeout where the answer takes longer than the limit.
        """
        verdict, question = decide(response, label, name=name)
        if verdict is None:
            verdict = self.pool.call(same_in_worker, *question)
        return 1.0 if verdict else 0.0

    async def agrade(self, response: str, label: Any, *, name: str = "the answer") -> float:
        """`grade` for event loops: the loop goes on while a worker decides."""
        long = len(response) > _LONG or (isinstance(label, str) and len(label) > _LONG)
        verdict, question = await asyncio.to_thread(decide, response, label, name=name) if long else decide(response, label, name=name)
        if verdict is None:
            verdict = await self.pool.acall(same_in_worker, *question)
        return 1.0 if verdict else 0.0


@functools.cache
def default_grader() -> Grader:
    """The grader behind `vime_rm_math.grade`, one for each process."""
    return Grader()


def grade(response: str, label: Any) -> float:
    """1.0 where the final answer of `response` equals `label`, else 0.0: `Grader().grade` with the default limits."""
    return default_grader().grade(response, label)


def decide(response: str, label: Any, *, name: str = "the answer") -> tuple[bool | None, tuple[str, tuple[str, ...]]]:
    """The verdict without mathematics, or None with the question that is left: the answer and the labels to compare."""
    accepted = accepted_answers(label, name=name)
    answers = {numeric: extract_answer(response, numeric=numeric) for numeric in {is_numeric(text) for text in accepted}}
    left: list[tuple[str, str]] = []
    for text in accepted:
        numeric = is_numeric(text)
        answer = _joined(response, text, numeric=numeric) or answers[numeric]
        verdict = False if answer is None else _at_once(answer, text)
        if verdict is False and numeric and answer is not None and percent_behind_box(response):
            verdict = _at_once(answer + r"\%", text)
        if verdict:
            return True, ("", ())
        if verdict is None and answer is not None:
            left.append((answer, text))
    if not left:
        return False, ("", ())
    return None, (left[0][0], tuple(text for answer, text in left if answer == left[0][0]))


def _joined(response: str, label: str, *, numeric: bool) -> str | None:
    """Several boxes as one list, where the label is one, or where there is an "or" between them."""
    if response.count("boxed") < 2 or not (numeric or is_list(label)):
        return None
    return joined_boxes(response, alternatives=numeric)


def _at_once(answer: str, label: str) -> bool | None:
    if max(len(answer), len(label)) > MOST_DIGITS:
        return notation.without_spaces(answer) == notation.without_spaces(label)
    verdict = same_answer(answer, label)
    if verdict is None and (guard.refusal(notation.clean(answer)) or guard.refusal(notation.clean(label))):
        return False
    return verdict


@functools.lru_cache(maxsize=1024)
def is_numeric(text: str) -> bool:
    """Whether a label is a plain number, with or without a unit. Remembered: the samples of a group share their label."""
    if PLAIN.fullmatch(text):
        return True
    head, _ = split_unit(notation.clean(text))
    return exact_number(head) is not None


def accepted_answers(label: Any, *, name: str = "the answer") -> tuple[str, ...]:
    r"""The texts that count as right: a number or a string, or each of a list. A worked solution gives its final answer.

    Raises ValueError, with `name`, for None, an empty label, a number that is not finite, and other types.
    """
    if isinstance(label, list | tuple | set | frozenset) or (hasattr(label, "tolist") and getattr(label, "ndim", 0)):
        several: Sequence[Any] = label.tolist() if hasattr(label, "tolist") else list(label)  # pyright: ignore[reportAttributeAccessIssue]
        if not several:
            raise ValueError(f"{name} has an empty list as its label: there is no right answer to compare with")
        return tuple(text for one in several for text in accepted_answers(one, name=name))
    if label is None:
        raise ValueError(f"{name} has no label: the math reward compares with it; set --label-key to the field that holds the right answer")
    if isinstance(label, bool | str):
        return (_label_text(str(label), name),)
    if isinstance(label, numbers.Integral):
        return (str(Decimal(int(label))),)
    if isinstance(label, numbers.Rational):
        return (f"{Decimal(int(label.numerator))}/{Decimal(int(label.denominator))}",)
    if isinstance(label, numbers.Real | Decimal):
        if not math.isfinite(label):
            raise ValueError(f"{name} has the label {label!r}, which is not a finite number")
        return (f"{Decimal(str(label)):f}",)
    raise ValueError(f"{name} has a label of type {type(label).__name__}: the math reward takes a string, a number, or a list of these")


def _label_text(label: str, name: str) -> str:
    if PLAIN.fullmatch(label):
        return label
    found, content = last_box(label)
    text = (content or "") if found else label
    if not found and (bare := _BARE_BOX.search(label)):
        text = bare.group(1)
    elif not found and "####" in label:
        text = label.rpartition("####")[2]
    if not notation.clean(text).strip("$ "):
        raise ValueError(f"{name} has the label {label[:80]!r}, which holds no answer")
    return text
