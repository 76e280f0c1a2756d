"""A trace of one step, `trace_step_N.json`: what happened to each sample and when, for ui.perfetto.dev or chrome://tracing.

The file has the Trace Event Format of Chrome: complete events ("ph": "X") in microseconds since the start of the step.
Every sample is a row, with its spans one inside another; spans that overlap otherwise get a row more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from vime.outputs import Generation
    from vime.sample import Sample

LOOP, HOOKS = "step", "hooks"
"""Rows beside those of the samples: the parts of the step, and every call of a hook."""


class _Times(Protocol):
    trace: Any


@dataclass(frozen=True)
class Span:
    """One row's event between two readings of time.monotonic()."""

    row: str
    name: str
    start: float
    end: float
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


_NOTHING: AbstractContextManager[None] = nullcontext()


class Tracer:
    """Collects the spans of the step that it was asked for. At all other times its methods return at once."""

    def __init__(self, step: int | None = None, folder: Path | None = None) -> None:
        """`step` counts from 0, as in metrics.jsonl; its file goes into `folder`."""
        self._wanted, self._folder = step, folder
        self._spans: list[Span] | None = None

    @property
    def is_on(self) -> bool:
        """Whether the step that is traced is under way."""
        return self._spans is not None

    @contextmanager
    def step(self, number: int, times: _Times) -> Iterator[None]:
        """Trace within the block, where it is the right step, with every hook call that `times` hears of; then write the file."""
        if number != self._wanted or self._folder is None:
            yield
            return
        self._spans, heard, start = [], times.trace, time.monotonic()

        def hear(key: str, seconds: float) -> None:
            now = time.monotonic()
            self.add(HOOKS, key, now - seconds, now)
            if heard is not None:
                heard(key, seconds)

        times.trace = hear
        try:
            yield
        finally:
            times.trace = heard
            self.add(LOOP, f"step {number}", start, time.monotonic())
            spans, self._spans = self._spans, None
            write_trace(self._folder / f"trace_step_{number}.json", spans, start)

    def add(self, row: str, name: str, start: float, end: float, **arguments: Any) -> None:
        """Add a span that is over."""
        if self._spans is not None:
            self._spans.append(Span(row, name, start, end, arguments))

    def part(self, name: str) -> AbstractContextManager[None]:
        """The block is a part of the step: rollout, train, sync."""
        return _NOTHING if self._spans is None else self._timed([LOOP], name, {})

    def of_samples(self, samples: Iterable[Sample], name: str, **arguments: Any) -> AbstractContextManager[None]:
        """The block is spent on these samples."""
        return _NOTHING if self._spans is None else self._timed(dict.fromkeys(map(row_of, samples)), name, arguments)

    def generation(self, sample: Sample, submitted: float, generation: Generation) -> None:
        """One request of a sample: how long it waited for the engine to begin, and how long it was generated."""
        if self._spans is not None:
            end, row = time.monotonic(), row_of(sample)
            began = min(max(generation.began_at or submitted, submitted), end)
            self.add(row, "queueing", submitted, began)
            self.add(row, "generation", began, end, tokens=len(generation.token_ids), finish_reason=generation.finish_reason)

    def finished(self, samples: Iterable[Sample], start: float) -> None:
        """These samples are generated and scored, from `start` till now."""
        if self._spans is not None:
            now = time.monotonic()
            for sample in samples:
                said = {"status": sample.status.value, "reward": sample.reward, "response_length": sample.response_length}
                self.add(row_of(sample), "sample", start, now, index=sample.index, group_index=sample.group_index, **said)

    @contextmanager
    def _timed(self, rows: Iterable[str], name: str, arguments: dict[str, Any]) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            end = time.monotonic()
            for row in rows:
                self.add(row, name, start, end, **arguments)


def row_of(sample: Sample) -> str:
    """The row of a sample."""
    where = "" if sample.group_index is None else f" (group {sample.group_index})"
    return f"sample {sample.index}{where}"


def write_trace(path: Path, spans: Iterable[Span], origin: float) -> None:
    """Write a trace file, aside and renamed. Times are whole microseconds since `origin`; none before it."""

    def microseconds(moment: float) -> int:
        return max(0, int((moment - origin) * 1e6))

    # Outer spans before inner ones; one without any length is no outer one of what begins with it.
    ordered = sorted(spans, key=lambda span: (span.start, span.end > span.start, -span.end))
    lanes: dict[str, list[list[int]]] = {}
    numbers: dict[tuple[str, int], int] = {}
    events: list[dict[str, Any]] = []
    for span in ordered:
        start, end = microseconds(span.start), microseconds(span.end)
        key = (span.row, _lane(lanes.setdefault(span.row, []), start, end))
        thread = numbers.setdefault(key, len(numbers) + 1)
        event = {"name": span.name, "cat": span.row.partition(" ")[0], "ph": "X", "ts": start, "dur": end - start, "pid": 1, "tid": thread}
        events.append({**event, "args": dict(span.arguments)} if span.arguments else event)
    names: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "vime"}}]
    for place, ((row, _), thread) in enumerate(sorted(numbers.items(), key=lambda item: _order(item[0]))):
        names.append({"name": "thread_name", "ph": "M", "pid": 1, "tid": thread, "args": {"name": row}})
        names.append({"name": "thread_sort_index", "ph": "M", "pid": 1, "tid": thread, "args": {"sort_index": place}})
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps({"traceEvents": names + events, "displayTimeUnit": "ms"}, default=str) + "\n", encoding="utf-8")
    aside.replace(path)


def _lane(lanes: list[list[int]], start: int, end: int) -> int:
    """The first lane of a row where a span lies within or behind what is there. A lane is the stack of the ends of open spans."""
    for number, open_ends in enumerate(lanes):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if not open_ends or end <= open_ends[-1]:
            open_ends.append(end)
            return number
    lanes.append([end])
    return len(lanes) - 1


def _order(key: tuple[str, int]) -> tuple[int, int, str, int]:
    """The step first, then the hooks, then the samples by their number."""
    row, lane = key
    number = row.split()[1] if row.startswith("sample ") else ""
    return [LOOP, HOOKS].index(row) if row in (LOOP, HOOKS) else 2, int(number) if number.isdigit() else -1, row, lane
