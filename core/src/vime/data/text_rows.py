"""Text files of rows, read on demand: what is kept in memory is where each row lies, not the row."""

from __future__ import annotations

import csv
import io
import json
import os
import weakref
from array import array
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import from_json

from vime.data.rows import BadRow, json_type
from vime.errors import DataError

_BOM = b"\xef\xbb\xbf"


class _IndexedText:
    """A text file by the byte offset of each record; a record ends where the next one starts."""

    def __init__(self, path: Path) -> None:
        self.source = str(path)
        self._path = path
        self._starts = array("Q")
        self._end = 0
        self._descriptor: int | None = None

    def __len__(self) -> int:
        return len(self._starts)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_descriptor": None}

    def place(self, row: int) -> str:
        """Counted anew, since only messages need it."""
        with self._path.open("rb") as file:
            left, line = self._starts[row], 1
            while left > 0 and (chunk := file.read(min(left, 1 << 20))):
                left, line = left - len(chunk), line + chunk.count(b"\n")
        return f"line {line}"

    def _bytes(self, row: int) -> bytes:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._descriptor)
        start = self._starts[row]
        end = self._starts[row + 1] if row + 1 < len(self._starts) else self._end
        return os.pread(self._descriptor, end - start, start)


class JsonlRows(_IndexedText):
    """One JSON object a line. Blank lines, a byte-order mark and CRLF are allowed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        position = 0
        with path.open("rb") as file:
            for line in file:
                skip = len(_BOM) if position == 0 and line.startswith(_BOM) else 0
                if line[skip:].strip():
                    self._starts.append(position + skip)
                position += len(line)
        self._end = position

    def read(self, row: int) -> dict[str, Any]:
        raw = self._bytes(row)
        try:
            value = from_json(raw)
        except ValueError as error:
            raise BadRow(_json_problem(raw, error)) from None
        if not isinstance(value, dict):
            raise BadRow(f"it holds a JSON {json_type(value)}, not an object")
        return value


class CsvRows(_IndexedText):
    """A comma-separated file whose first record names the columns. All values are strings."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with path.open("rb") as file:
            lines = _CountedLines(file, self.source)
            records = csv.reader(lines, strict=True)
            while True:
                start, line = lines.position, lines.number + 1
                try:
                    record = next(records, None)
                except csv.Error as error:
                    raise DataError(
                        f"{self.source}, line {line}: {error}", hint="quote fields that contain commas, quotes or line breaks"
                    ) from None
                if record is None:
                    break
                if record and line > 1:
                    self._starts.append(start)
                elif line == 1:
                    self.columns = self._header(record)
        self._end = lines.position

    def _header(self, columns: list[str]) -> list[str]:
        repeated = sorted({name for name in columns if columns.count(name) > 1})
        if repeated:
            raise DataError(f"{self.source}: the column {repeated[0]!r} appears twice in the header")
        return columns

    def read(self, row: int) -> dict[str, Any]:
        values = next(csv.reader(io.StringIO(self._bytes(row).decode(), newline="")))
        if len(values) != len(self.columns):
            raise BadRow(f"it has {len(values)} values for {len(self.columns)} columns")
        return dict(zip(self.columns, values, strict=True))


class _CountedLines:
    """Lines of a binary file as text, with the byte position and the line number after the last one given."""

    def __init__(self, file: BinaryIO, source: str) -> None:
        self._file = file
        self._source = source
        self.number = 0
        self.position = 0

    def __iter__(self) -> _CountedLines:
        return self

    def __next__(self) -> str:
        line = self._file.readline()
        if not line:
            raise StopIteration
        self.number += 1
        self.position += len(line)
        try:
            return line.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{self._source}, line {self.number}: it is not UTF-8") from None


class JsonRows:
    """A JSON file that holds one list of objects; each is kept as its own JSON text."""

    def __init__(self, path: Path) -> None:
        self.source = str(path)
        try:
            text = path.read_bytes().decode("utf-8-sig")
            value = json.loads(text, parse_int=_whole_number)
        except (ValueError, RecursionError) as error:
            line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            problem = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise DataError(
                f"{self.source}{line}: it is not JSON ({problem})",
                hint="a .json file holds one list of objects; one object a line is .jsonl",
            ) from None
        if not isinstance(value, list):
            raise DataError(
                f"{self.source} holds a JSON {json_type(value)}, not a list of objects",
                hint="write [{...}, {...}], or one object a line as .jsonl",
            )
        self._rows = [_packed(row) for row in value]

    def __len__(self) -> int:
        return len(self._rows)

    def place(self, row: int) -> str:
        return f"row {row}"

    def read(self, row: int) -> dict[str, Any]:
        packed = self._rows[row]
        if isinstance(packed, str):
            raise BadRow(packed)
        try:
            value = from_json(packed)
        except ValueError as error:
            raise BadRow(f"it is not JSON ({_reason(error)})") from None
        if not isinstance(value, dict):
            raise BadRow(f"it is a JSON {json_type(value)}, not an object")
        return value


def _whole_number(digits: str) -> Any:
    """The number, or something that is no JSON where it has more digits than Python converts: only its row is bad then."""
    try:
        return int(digits)
    except ValueError:
        return object()


def _packed(row: Any) -> bytes | str:
    """A row as JSON text again, or why it is bad."""
    try:
        return json.dumps(row).encode()
    except TypeError:
        return "it is not JSON (number out of range)"


def _reason(error: ValueError) -> str:
    """What the parser said, without the place in a text that the user never sees."""
    return str(error).partition(" at line ")[0]


def _json_problem(raw: bytes, error: ValueError) -> str:
    """What is wrong with a line, by column where Python's own parser can tell."""
    try:
        json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as problem:
        return f"it is not UTF-8 (byte {problem.start} of the line)"
    except json.JSONDecodeError as problem:
        return f"it is not JSON ({problem.msg} at column {problem.colno})"
    except (ValueError, RecursionError):  # too many digits, too deep
        pass
    return f"it is not JSON ({error})"
