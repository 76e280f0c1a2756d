"""Rows of a data file, read on demand: what is kept in memory is where each row lies, not the row.

A reader knows its file's length and gives row i as a dict of plain JSON values. Bad rows are reported by number, so
that the dataset decides whether to stop or to skip.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import os
import re
from array import array
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from pydantic_core import from_json

from vime.errors import DataError, MissingExtraError

SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")
_SLICE = re.compile(r"^(?P<path>.*)@\[(?P<start>-?\d*):(?P<stop>-?\d*)\]$", re.DOTALL)
_BOM = b"\xef\xbb\xbf"


class BadRow(Exception):
    """One row that cannot be used: what is wrong with it, for whoever knows where it is."""


class RowReader(Protocol):
    """Random access to the rows of one file or table."""

    source: str
    """What errors call it: the path, or hf:NAME."""

    def __len__(self) -> int: ...

    def read(self, row: int) -> dict[str, Any]:
        """Row number `row` of the file. Raises BadRow."""
        ...

    def place(self, row: int) -> str:
        """Where that row is, for messages: "line 3" in a text file, "row 2" (from 0) in a table."""
        ...


class _IndexedText:
    """A text file by the byte offset of each record; a record ends where the next one starts."""

    def __init__(self, path: Path) -> None:
        self.source = str(path)
        self._path = path
        self._starts = array("Q")
        self._end = 0
        self._file: BinaryIO | None = None

    def __len__(self) -> int:
        return len(self._starts)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_file": None}

    def place(self, row: int) -> str:
        """Counted anew, since only messages need it."""
        with self._path.open("rb") as file:
            left, line = self._starts[row], 1
            while left > 0 and (chunk := file.read(min(left, 1 << 20))):
                left, line = left - len(chunk), line + chunk.count(b"\n")
        return f"line {line}"

    def _bytes(self, row: int) -> bytes:
        if self._file is None:
            self._file = self._path.open("rb")
        start = self._starts[row]
        end = self._starts[row + 1] if row + 1 < len(self._starts) else self._end
        return os.pread(self._file.fileno(), end - start, start)


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
            raise BadRow(f"it holds a JSON {_json_type(value)}, not an object")
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
    """A JSON file that holds one list of objects."""

    def __init__(self, path: Path) -> None:
        self.source = str(path)
        try:
            value = json.loads(path.read_bytes().decode("utf-8-sig"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            raise DataError(
                f"{self.source}{line}: it is not JSON ({error})",
                hint="a .json file holds one list of objects; one object a line is .jsonl",
            ) from None
        if not isinstance(value, list):
            raise DataError(
                f"{self.source} holds a JSON {_json_type(value)}, not a list of objects",
                hint="write [{...}, {...}], or one object a line as .jsonl",
            )
        self._rows = value

    def __len__(self) -> int:
        return len(self._rows)

    def place(self, row: int) -> str:
        return f"row {row}"

    def read(self, row: int) -> dict[str, Any]:
        value = self._rows[row]
        if not isinstance(value, dict):
            raise BadRow(f"it is a JSON {_json_type(value)}, not an object")
        return value


class ParquetRows:
    """A parquet file, held as Arrow columns. Only the wanted columns are loaded; `columns` lists all that exist."""

    _BATCH = 1024

    def __init__(self, path: Path, wanted: set[str]) -> None:
        self.source = str(path)
        try:
            import pyarrow
            import pyarrow.parquet as parquet
        except ImportError:
            raise MissingExtraError(f"{path} is a parquet file, and pyarrow is not installed", hint="pip install pyarrow") from None
        try:
            file = parquet.ParquetFile(path, memory_map=True)
            self.columns = list(file.schema_arrow.names)
            self._table = file.read(columns=[name for name in self.columns if name in wanted])
        except pyarrow.ArrowException as error:
            raise DataError(f"{path} cannot be read as parquet: {error}") from None
        self._length = file.metadata.num_rows
        self._batch: tuple[int, list[dict[str, Any]]] = (0, [])

    def __len__(self) -> int:
        return self._length

    def place(self, row: int) -> str:
        return f"row {row}"

    def read(self, row: int) -> dict[str, Any]:
        """Rows in file order are converted a batch at a time, others one by one."""
        names: dict[str, Any] = dict.fromkeys(self.columns)
        if self._table.num_columns == 0:
            return names
        start, batch = self._batch
        if row % self._BATCH == 0:
            start, batch = self._batch = (row, self._table.slice(row, self._BATCH).to_pylist())
        if start <= row < start + len(batch):
            return names | _json_values(batch[row - start])
        return names | _json_values(self._table.slice(row, 1).to_pylist()[0])


class HubRows:
    """`hf:DATASET[:CONFIG][:SPLIT]`, a data set of the Hugging Face hub or of its cache, through the datasets library."""

    def __init__(self, source: str, wanted: set[str]) -> None:
        self.source = source
        try:
            import datasets  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise MissingExtraError(f"{source} needs the datasets library, which is not installed", hint="pip install datasets") from None
        name, *rest = source.removeprefix("hf:").split(":")
        if not name or len(rest) > 2 or not all(rest):
            raise DataError(f"{source!r} does not name a data set", hint="write hf:DATASET, hf:DATASET:SPLIT or hf:DATASET:CONFIG:SPLIT")
        split = rest[-1] if rest else "train"
        config = rest[0] if len(rest) == 2 else None
        try:
            table = datasets.load_dataset(name, config, split=split)
        except Exception as error:  # the library raises errors of many packages; each one means that there is no data
            raise DataError(f"{source} cannot be loaded: {error}", hint="check the name, its configuration and its split") from error
        self.columns = list(table.column_names)
        self._table = table.select_columns([name for name in self.columns if name in wanted])
        self._length = len(table)

    def __len__(self) -> int:
        return self._length

    def place(self, row: int) -> str:
        return f"row {row}"

    def read(self, row: int) -> dict[str, Any]:
        return dict.fromkeys(self.columns) | _json_values(self._table[row] if self._table.column_names else {})


def open_rows(path: str, wanted: set[str]) -> tuple[RowReader, range]:
    """The reader of `path` and the rows that its slice selects. Raises DataError for anything that is not such a file."""
    base, bounds = split_slice(path)
    rows = _reader(base, wanted)
    if len(rows) == 0:
        raise DataError(f"{rows.source} has no rows", hint="an empty file cannot be used as data")
    selected = range(len(rows))[bounds]
    if len(selected) == 0:
        raise DataError(f"{path} selects no row: {rows.source} has {len(rows)} rows")
    return rows, selected


def split_slice(path: str) -> tuple[str, slice]:
    """`file.jsonl@[10:200]` as ("file.jsonl", slice(10, 200)); both ends may be left out or negative."""
    match = _SLICE.match(path)
    if match is None or Path(path).is_file():
        if re.search(r"@\[[^/]*$", path) and not Path(path).is_file():
            raise DataError(
                f"{path!r} ends in something that is not a slice", hint="write FILE@[START:STOP], for example train.jsonl@[0:1000]"
            )
        return path, slice(None)
    start, stop = match["start"], match["stop"]
    if "-" in (start, stop):
        raise DataError(f"{path!r} ends in something that is not a slice", hint="write FILE@[START:STOP], for example train.jsonl@[0:1000]")
    return match["path"], slice(int(start) if start else None, int(stop) if stop else None)


def _reader(path: str, wanted: set[str]) -> RowReader:
    if path.startswith("hf:"):
        return HubRows(path, wanted)
    file = Path(path).expanduser()
    if not file.is_file():
        raise _missing(file)
    try:
        match file.suffix.lower():
            case ".jsonl":
                return JsonlRows(file)
            case ".json":
                return JsonRows(file)
            case ".csv":
                return CsvRows(file)
            case ".parquet":
                return ParquetRows(file, wanted)
            case suffix:
                raise DataError(
                    f"{path} ends in {suffix or 'no suffix'!r}, which is not a data format",
                    hint=f"use {', '.join(SUFFIXES)}, or hf:DATASET",
                )
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def _missing(file: Path) -> DataError:
    if file.is_dir():
        inside = sorted(p.name for p in file.iterdir() if p.suffix in SUFFIXES)
        return DataError(
            f"{file} is a folder, not a data file",
            hint=f"it holds {', '.join(inside[:5])}" if inside else f"name a file of {', '.join(SUFFIXES)}",
        )
    if not file.parent.is_dir():
        return DataError(f"{file} does not exist: there is no folder {file.parent}", hint="check the path of the data file")
    present = sorted(p.name for p in file.parent.iterdir() if p.suffix in SUFFIXES)
    near = difflib.get_close_matches(file.name, present, n=3, cutoff=0.5) or present[:5]
    hint = f"that folder holds {', '.join(near)}" if near else f"that folder holds no file of {', '.join(SUFFIXES)}"
    return DataError(f"{file} does not exist", hint=hint)


def _json_problem(raw: bytes, error: ValueError) -> str:
    """What is wrong with a line, by column where Python's own parser can tell."""
    try:
        json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as problem:
        return f"it is not UTF-8 (byte {problem.start} of the line)"
    except json.JSONDecodeError as problem:
        return f"it is not JSON ({problem.msg} at column {problem.colno})"
    except RecursionError:
        pass
    return f"it is not JSON ({error})"


def _json_values(row: dict[str, Any]) -> dict[str, Any]:
    """Refuse what tables have and JSON has not: a sample must survive a checkpoint."""
    for key, value in row.items():
        if not _is_json(value):
            raise BadRow(f"{key!r} holds a value that JSON does not have ({value!r:.80})")
    return row


def _is_json(value: Any) -> bool:
    if value is None or isinstance(value, str | int | float):
        return True
    if isinstance(value, list):
        return all(map(_is_json, value))
    return isinstance(value, dict) and all(isinstance(key, str) and _is_json(part) for key, part in value.items())


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    return {bool: "boolean", int: "number", float: "number", str: "string", list: "list", dict: "object"}.get(
        type(value), type(value).__name__
    )
