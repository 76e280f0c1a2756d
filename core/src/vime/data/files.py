"""From a path to the reader of its rows: formats, slices, and what is said about a path that is none."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from vime.data.rows import RowReader
from vime.data.table_rows import HubRows, ParquetRows
from vime.data.text_rows import CsvRows, JsonlRows, JsonRows
from vime.errors import DataError

SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_SLICE = re.compile(r"^(?P<path>.*)@\[(?P<start>-?\d*):(?P<stop>-?\d*)\]$", re.DOTALL)


def open_rows(path: str, wanted: set[str], *, may_be_empty: bool = False) -> tuple[RowReader, range]:
    """The reader of `path` and the rows that its slice selects. Raises DataError for anything that is not such a file.

    A slice that selects nothing out of rows is always an error.
    """
    base, bounds = split_slice(path)
    rows = _reader(base, wanted)
    if len(rows) == 0 and may_be_empty:
        return rows, range(0)
    if len(rows) == 0:
        raise DataError(f"{rows.source} has no rows", hint="an empty file cannot be used as data")
    selected = range(len(rows))[bounds]
    if len(selected) == 0:
        raise DataError(f"{path} selects no row: {rows.source} has {len(rows)} rows")
    return rows, selected


def split_slice(path: str) -> tuple[str, slice]:
    """`file.jsonl@[10:200]` as ("file.jsonl", slice(10, 200)); both ends may be left out or negative."""
    match = _SLICE.match(path)
    is_file = os.path.isfile(path)  # noqa: PTH113 - False for what no file can be called, where Path raises
    if match is None or is_file:
        if re.search(r"@\[[^/]*$", path) and not is_file:
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
    try:
        if not file.is_file():
            raise _missing(file)
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
                    hint="decompress it: rows are read at any place of the file"
                    if suffix in PACKED
                    else f"use {', '.join(SUFFIXES)}, or hf:DATASET",
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
    if file.exists():
        return DataError(f"{file} is not a regular file", hint="data is read at any place of a file, again and again: use a file on disk")
    if not file.parent.is_dir():
        return DataError(f"{file} does not exist: there is no folder {file.parent}", hint="check the path of the data file")
    present = sorted(p.name for p in file.parent.iterdir() if p.suffix in SUFFIXES)
    near = difflib.get_close_matches(file.name, present, n=3, cutoff=0.5) or present[:5]
    hint = f"that folder holds {', '.join(near)}" if near else f"that folder holds no file of {', '.join(SUFFIXES)}"
    return DataError(f"{file} does not exist", hint=hint)
