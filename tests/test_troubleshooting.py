"""Each message of the page on troubleshooting is one that the code can print, word for word."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

NUM_GPUS = 0

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
GAP = "…"


@cache
def templates() -> list[str]:
    """Every text of the core's source, with a gap in the place of each value."""
    found: list[str] = []
    for path in (ROOT / "core" / "src" / "vime").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings are not printed
        for node in ast.walk(tree):
            if id(node) in described:
                continue
            if (text := rendered(node)).strip(GAP):
                found.append(text)
    return found


def rendered(node: ast.AST) -> str:
    """A text as it is printed, with gaps; a gap alone for what is no text."""
    if isinstance(node, ast.JoinedStr):
        return "".join(rendered(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return rendered(node.left) + rendered(node.right)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else GAP


def is_printed(message: str) -> bool:
    """Whether the words between the gaps of a message stand in one text of the source, in their order."""
    words = [part.strip() for part in message.split(GAP) if part.strip(" :;,()")]
    pattern = re.compile(".*".join(map(re.escape, words)), flags=re.DOTALL)
    return bool(words) and any(pattern.search(text) for text in templates())


def messages() -> list[str]:
    """The first cells of the tables of messages, without their backticks."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return [row.split(" | ")[0].removeprefix("| ").strip("`") for row in rows]


def test_every_message_of_the_page_is_in_the_source() -> None:
    assert len(messages()) > 60
    assert [message for message in messages() if not is_printed(message)] == []


def test_a_message_that_nothing_prints_is_noticed() -> None:
    assert is_printed("the tokenizer has no chat template")
    assert not is_printed("the tokenizer has no chat templates")
    assert not is_printed("… returned … for …; expected a chat template")


def test_every_row_says_cause_and_way_out() -> None:
    for row in PAGE.read_text(encoding="utf-8").splitlines():
        if row.startswith("| `"):
            cells = re.split(r"(?<!\\) \| ", row.strip("| "))
            assert len(cells) == 3, row
            assert all(len(cell) > 3 for cell in cells[1:]), row


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
