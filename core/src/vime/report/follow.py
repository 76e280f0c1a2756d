"""Reading a metrics.jsonl that grows, that is not there yet, or that a resumed run cuts back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class MetricsFollower:
    """Hands out each line once, when it is whole. After a resume has written the file anew, it starts over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file_id: tuple[int, int] | None = None
        self._offset = 0
        self._last = b""

    def poll(self) -> tuple[bool, list[dict[str, Any]]]:
        """(whether the lines are those of a file read from its start, the new lines). A file that is missing has none."""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino)
                is_new = identity != self._file_id or status.st_size < self._offset or not self._has_last(file)
                if is_new:
                    self._file_id, self._offset, self._last = identity, 0, b""
                file.seek(self._offset)
                content = file.read()
        except OSError:
            return False, []
        whole = content[: content.rfind(b"\n") + 1]  # the last line may be half written
        self._offset += len(whole)
        if whole:
            self._last = whole[-256:]
        return is_new, [record for record in map(_parse, whole.splitlines()) if record is not None]

    def _has_last(self, file: Any) -> bool:
        """Whether what was read last still stands where it was: a file may be cut back and grow again between two looks."""
        file.seek(self._offset - len(self._last))
        return file.read(len(self._last)) == self._last


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None
