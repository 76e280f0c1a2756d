"""What a reader of data rows is, and how it says that a row is bad."""

from __future__ import annotations

from typing import Any, Protocol


class BadRow(Exception):
    """One row that cannot be used: what is wrong with it, for whoever knows where it is."""

    def __init__(self, reason: str, hint: str = "correct the row, or leave such rows out: --skip-bad-rows") -> None:
        super().__init__(reason)
        self.hint = hint


class RowReader(Protocol):
    """Random access to the rows of one file or table. Each call gives a dict of its own, which the caller may change."""

    source: str
    """What errors call it: the path, or hf:NAME."""

    def __len__(self) -> int: ...

    def read(self, row: int) -> dict[str, Any]:
        """Row number `row` of the file. Raises BadRow."""
        ...

    def place(self, row: int) -> str:
        """Where that row is, for messages: "line 3" in a text file, "row 2" (from 0) in a table."""
        ...


def json_type(value: Any) -> str:
    """What JSON calls this value."""
    if value is None:
        return "null"
    return {bool: "boolean", int: "number", float: "number", str: "string", list: "list", dict: "object"}.get(
        type(value), type(value).__name__
    )
