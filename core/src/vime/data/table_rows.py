"""Tables of rows: parquet files and data sets of the Hugging Face hub, kept as Arrow columns."""

from __future__ import annotations

import re
from abc import abstractmethod
from pathlib import Path
from typing import Any

from vime.data.rows import BadRow
from vime.errors import DataError, MissingExtraError

_BATCH = 1024


class _TableRows:
    """A table by columns. Only the wanted columns are loaded; `columns` lists all that exist."""

    source: str
    columns: list[str]
    _length: int
    _batch: tuple[int, list[dict[str, Any]]] = (0, [])

    def __len__(self) -> int:
        return self._length

    def place(self, row: int) -> str:
        return f"row {row}"

    def read(self, row: int) -> dict[str, Any]:
        """Rows in table order are converted a batch at a time, others one by one."""
        start, batch = self._batch
        if row % _BATCH == 0:
            start, batch = self._batch = (row, self._take(row, _BATCH))
        values = batch[row - start] if start <= row < start + len(batch) else self._take(row, 1)[0]
        for key, value in values.items():
            if not _is_json(value):
                raise BadRow(f"{key!r} holds a value that JSON does not have ({value!r:.80})")
        return dict.fromkeys(self.columns) | values

    @abstractmethod
    def _take(self, start: int, count: int) -> list[dict[str, Any]]:
        """Rows start .. start + count - 1 (fewer at the end), with the wanted columns only."""


class ParquetRows(_TableRows):
    """A parquet file."""

    def __init__(self, path: Path, wanted: set[str]) -> None:
        self.source = str(path)
        try:
            import pyarrow
            import pyarrow.parquet as parquet
        except ImportError:
            raise MissingExtraError(f"{path} is a parquet file, and pyarrow is not installed", hint="pip install pyarrow") from None
        try:
            file = parquet.ParquetFile(path)
            self.columns = list(file.schema_arrow.names)
            repeated = sorted({column for column in wanted if self.columns.count(column) > 1})
            if repeated:
                raise DataError(f"{path}: the column {repeated[0]!r} is there twice")
            self._table = file.read(columns=[name for name in self.columns if name in wanted])
        except pyarrow.ArrowException as error:
            raise DataError(f"{path} cannot be read as parquet: {error}") from None
        self._length = file.metadata.num_rows

    def _take(self, start: int, count: int) -> list[dict[str, Any]]:
        rows = self._table.slice(start, count).to_pylist()
        return rows or [{} for _ in range(min(count, self._length - start))]


class HubRows(_TableRows):
    """`hf:DATASET[:CONFIG][:SPLIT]`, a data set of the Hugging Face hub or of its cache, through the datasets library."""

    def __init__(self, source: str, wanted: set[str]) -> None:
        self.source = source
        try:
            import datasets
        except ImportError:
            raise MissingExtraError(f"{source} needs the datasets library, which is not installed", hint="pip install datasets") from None
        name, *rest = re.split(r":(?![^\[]*\])", source.removeprefix("hf:"))  # a split may be train[:10%]
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

    def _take(self, start: int, count: int) -> list[dict[str, Any]]:
        columns = self._table[start : start + count]
        names = list(columns)
        rows = [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        return rows or [{} for _ in range(min(count, self._length - start))]


def _is_json(value: Any) -> bool:
    if value is None or isinstance(value, str | int | float):
        return True
    if isinstance(value, list):
        return all(map(_is_json, value))
    return isinstance(value, dict) and all(isinstance(key, str) and _is_json(part) for key, part in value.items())
