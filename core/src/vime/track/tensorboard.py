"""TensorBoard event files, through the tensorboard package's own writer (torch is not needed for it)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any


class TensorBoardWriter:
    """Writes scalars. Raises ImportError when tensorboard is not installed."""

    def __init__(self, directory: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2  # their classes are made at run time
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event: Any = vars(event_pb2)["Event"]
        self._session: Any = vars(event_pb2)["SessionLog"]
        self._summary: Any = vars(summary_pb2)["Summary"]
        self._writer = EventFileWriter(str(directory))

    def write(self, step: int, metrics: dict[str, float]) -> None:
        values = [self._summary.Value(tag=key, simple_value=value) for key, value in metrics.items()]
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))
        self._writer.flush()

    def truncate_after(self, step: int) -> None:
        """Make readers forget what earlier files of this folder hold beyond `step`."""
        start = self._session(status=self._session.START)
        self._writer.add_event(self._event(wall_time=time.time(), step=step + 1, session_log=start))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
