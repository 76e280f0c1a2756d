r"""Where the answer of a response stands, and which answers a label accepts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def final_answer(response: str) -> tuple[str, bool]:
    r"""The answer of a response, and whether it was marked as one.

    Marked are the content of the last `<answer>...</answer>`, else that of the last `\boxed{...}`; a mark that is never
    closed holds no answer, "". Without a mark it is the whole response. Only what follows the last `</think>` counts: a
    response that is still thinking has no answer.
    """
    text = after_thinking(response)
    if (start := text.rfind("<answer>")) >= 0:
        end = text.find("</answer>", start)
        return (text[start + len("<answer>") : end] if end >= 0 else ""), True
    boxes = list(_BOX.finditer(text))
    if boxes:
        return _braced(text, boxes[-1].end()), True
    return text, False


def after_thinking(response: str) -> str:
    """What follows the last `</think>`; "" where thinking was opened and never closed; else the whole response."""
    _, closed, rest = response.rpartition("</think>")
    return "" if "<think>" in rest and not closed else rest.partition("<think>")[0]


def accepted(label: Any, index: int | None, normalise: Callable[[str], Any], reward: str) -> list[Any]:
    """The normalised answers that a label accepts: a text, a number, or each of a list.

    Raises ValueError, naming the sample and the reward, for a label that is missing, is of another type, or holds
    nothing to compare with once it is normalised.
    """
    texts = _texts(label, f"sample {index}", reward)
    found = [normal for text in texts if (normal := normalise(text))]
    if not found:
        raise ValueError(f"sample {index} has the label {str(label)[:80]!r}: nothing of it is left to compare with once it is normalised")
    return found


def _texts(label: Any, who: str, reward: str) -> list[str]:
    if label is None:
        raise ValueError(f"{who} has no label: the reward {reward!r} compares with it; set --label-key to the field that holds the answer")
    if isinstance(label, str | bool | int):
        return [str(label)]
    if isinstance(label, float):
        if not math.isfinite(label):
            raise ValueError(f"{who} has the label {label!r}, which is not a finite number")
        return [str(int(label)), f"{label:f}".rstrip("0") + "0"] if label.is_integer() else [repr(label)]
    if hasattr(label, "tolist"):  # numpy's arrays and numbers, as tables hold them
        return _texts(label.tolist(), who, reward)
    if isinstance(label, list | tuple | set | frozenset):
        if not label:
            raise ValueError(f"{who} has an empty list as its label: there is no right answer to compare with")
        return [text for one in label for text in _texts(one, who, reward)]
    raise ValueError(f"{who} has a label of type {type(label).__name__}: the reward {reward!r} takes a text, a number, or a list of these")


def _braced(text: str, start: int) -> str:
    """What stands between the brace before `start` and the one that closes it; "" where none does."""
    depth = 1
    for match in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return text[start : match.start()]
    return ""
