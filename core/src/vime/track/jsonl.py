"""metrics.jsonl: one JSON object a line, for a namespace and a step, with finite numbers only."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


class JsonlWriter:
    """Appends lines and flushes each one, so that a killed run keeps all that it logged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        _end_last_line(path)
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Append `{"step": ..., "time": ..., **metrics}`."""
        self._file.write(json.dumps({"step": step, "time": round(time.time(), 3), **metrics}, allow_nan=False) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Bring what is written to the disk: a checkpoint must not outlive the lines before it in a power cut."""
        os.fsync(self._file.fileno())

    def truncate_after(self, step: int, *, keep_evaluation: bool = False) -> int:
        """Remove the lines of later steps, and a half-written last line. Returns how many lines went.

        `keep_evaluation` keeps the evaluation of step + 1: the one made at the boundary after `step`.
        """
        self._file.close()
        kept, removed = [], 0
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            record = _parse(line)
            limit = step + 1 if keep_evaluation and record and any(key.startswith("eval/") for key in record) else step
            if record is not None and record["step"] <= limit:
                kept.append(line)
            else:
                removed += 1
        aside = self._path.with_suffix(".tmp")
        with aside.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in kept)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self._path)
        self._file = self._path.open("a", encoding="utf-8")
        return removed

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a metrics.jsonl, in order; a half-written last line is left out."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        record = _parse(line)
        if record is not None:
            yield record


def last_steps(path: Path) -> dict[str, int]:
    """The highest step of each namespace in a metrics.jsonl, which may not be there yet."""
    steps: dict[str, int] = {}
    for record in read_metrics(path) if path.is_file() else ():
        for namespace in {key.partition("/")[0] for key in record if "/" in key}:
            steps[namespace] = max(record["step"], steps.get(namespace, record["step"]))
    return steps


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _end_last_line(path: Path) -> None:
    """A line that a kill cut short must not swallow the next one."""
    if not path.is_file() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")
