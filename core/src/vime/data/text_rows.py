"""Text files of rows, read on demand: what is kept in memory is where each row lies, not the row."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import weakref
from array import array
from collections.abc import Callable, Iterator
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
        file, position, line = self._open(), 0, 1
        while position < self._starts[row] and (chunk := os.pread(file, min(self._starts[row] - position, 1 << 20), position)):
            position, line = position + len(chunk), line + chunk.count(b"\n")
        return f"line {line}"

    def _bytes(self, row: int) -> bytes:
        start = self._starts[row]
        end = self._starts[row + 1] if row + 1 < len(self._starts) else self._end
        return os.pread(self._open(), end - start, start)

    def _open(self) -> int:
        """The open file: one that is deleted or replaced during a run is still read as it was."""
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY)
            except OSError as error:
                raise DataError(f"{self.source} cannot be read any more: {error.strerror}") from None
            weakref.finalize(self, os.close, self._descriptor)
        return self._descriptor


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
                    hint = "quote fields that contain commas, quotes or line breaks"
                    if "field limit" in str(error):
                        hint = "a csv field has at most 131072 characters, or a quote is not closed; .jsonl has no such limit"
                    raise DataError(f"{self.source}, line {line}: {error}", hint=hint) from None
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


class JsonRows(_IndexedText):
    """A JSON file that holds one list of objects."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        raw = path.read_bytes()
        # One character a byte, so that places in the text are places in the file. Only row by row is it read as UTF-8.
        text = raw.removeprefix(_BOM).decode("latin-1")
        try:
            ends = list(self._index(text, len(raw) - len(text)))
        except (ValueError, RecursionError) as error:
            line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            problem = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise DataError(
                f"{self.source}{line}: it is not JSON ({problem})",
                hint="a .json file holds one list of objects; one object a line is .jsonl",
            ) from None
        self._end = ends[-1] if ends else 0

    def _index(self, text: str, shift: int) -> Iterator[int]:
        """Fill the list of starts, a value at a time; gives the end of the last one."""
        decoder = json.JSONDecoder(parse_int=len)  # digits are not converted, however many they are
        skip = re.compile(r"[ \t\n\r]*").match
        place = _end_of(skip, text, 0)
        if text[place : place + 1] != "[":
            value, place = decoder.raw_decode(text, place)
            _refuse_more(text, _end_of(skip, text, place))
            raise DataError(
                f"{self.source} holds a JSON {json_type(value)}, not a list of objects",
                hint="write [{...}, {...}], or one object a line as .jsonl",
            )
        place, end = _end_of(skip, text, place + 1), 0
        while text[place : place + 1] != "]" or end:
            _, end = decoder.raw_decode(text, place)
            self._starts.append(place + shift)
            place = _end_of(skip, text, end)
            if text[place : place + 1] == "]":
                yield end + shift
                break
            if text[place : place + 1] != ",":
                raise json.JSONDecodeError("Expecting ',' delimiter", text, place)
            place = _end_of(skip, text, place + 1)
        _refuse_more(text, _end_of(skip, text, place + 1))

    def place(self, row: int) -> str:
        return f"row {row}"

    def read(self, row: int) -> dict[str, Any]:
        raw = self._bytes(row).rstrip(b" \t\n\r").removesuffix(b",")
        try:
            value = from_json(raw)
        except ValueError as error:
            raise BadRow(f"it is not JSON ({_reason(error)})") from None
        if not isinstance(value, dict):
            raise BadRow(f"it is a JSON {json_type(value)}, not an object")
        return value


def _end_of(skip: Callable[[str, int], re.Match[str] | None], text: str, place: int) -> int:
    match = skip(text, place)
    return place if match is None else match.end()


def _refuse_more(text: str, place: int) -> None:
    if place < len(text):
        raise json.JSONDecodeError("Extra data", text, place)


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
