"""What a person sees of a run: rich on a terminal, plain lines in a log. Everything goes to stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from vime.redact import Redactor
from vime.track.alerts import AlertWatch
from vime.track.lines import (
    LOSS,
    Cell,
    all_metrics,
    evaluation_details,
    evaluation_names,
    format_dropped,
    format_number,
    format_seconds,
    sparkline,
    step_cells,
)

if TYPE_CHECKING:
    from rich.text import Text

_ACCENT = "cyan"
_PLAIN_PROGRESS_EVERY = 30.0
"""Seconds between progress lines in a log."""


class RolloutProgress:
    """The progress of one rollout; made by `Console.rollout_progress`."""

    def update(self, kept: int, dropped: Mapping[str, int] | None = None, tokens_per_second: float | None = None) -> None:
        """Groups kept so far, groups dropped by reason, and the engine's speed."""


class Console:
    """Prints the story of a run. `config` (may be None) gives the names of evaluation data, and `quiet`: warnings and summary only."""

    def __init__(
        self,
        config: Any = None,
        *,
        hides: Redactor | None = None,
        file: TextIO | None = None,
        terminal: bool | None = None,
        width: int | None = None,
    ) -> None:
        """`hides` knows the secrets. `file` (default stderr), `terminal` (default: whether file is one) and `width` are for tests."""
        from rich.console import Console as RichConsole

        self._rich = RichConsole(file=file or _own_stderr(), force_terminal=terminal, width=width, highlight=False)
        self.hides = hides or Redactor()
        self.terminal = self._rich.is_terminal
        self._quiet = bool(getattr(config, "quiet", False))
        self._verbose = bool(getattr(config, "verbose", False))
        self._unicode = (self._rich.encoding or "").lower().startswith("utf")
        self._eval_names = [dataset.name for dataset in getattr(config, "eval_datasets", None) or ()]
        self._warned: set[str] = set()
        self._rewards: list[float] = []
        self._first_scores: dict[str, float] = {}
        self._alerts = AlertWatch()

    # Messages

    def info(self, text: str) -> None:
        self._say(("", text))

    def warn(self, text: str) -> None:
        """A warning; the same text is shown once in a run."""
        if text not in self._warned:
            self._warned.add(text)
            self._line(("yellow bold", "warning "), ("", text))

    # Start

    def header(self, rows: Mapping[str, str]) -> None:
        """What is run: model, data, plugins with versions, engine, trainer, batch sizes, run folder."""
        if not self._quiet:
            self._panel("vime", rows)

    @contextmanager
    def phase(self, text: str) -> Iterator[Callable[[int, int], None]]:
        """Something that takes its time, such as `starting vLLM`: a bar while it lasts, then a line with the time that it took.

        The block may call what it gets with how much is done, of how much.
        """
        start = time.monotonic()
        if self._quiet or not self.terminal:
            self._say(("", f"{text} ..."))
            yield lambda done, total: None
            self._say(("", f"{text}: {format_seconds(time.monotonic() - start)}"))
            return
        try:
            with self._bar(f"{text} ...") as show:
                yield show
        except BaseException:
            self._line(("red", "✗ " if self._unicode else "x "), ("", text), ("dim", f"  after {format_seconds(time.monotonic() - start)}"))
            raise
        self._line(("green", "✓ " if self._unicode else "* "), ("", text), ("dim", f"  {format_seconds(time.monotonic() - start)}"))

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """A bar without an end while a part of a step lasts, on a terminal; it leaves nothing behind."""
        if self._quiet or not self.terminal:
            yield
            return
        with self._bar(f"  {text}"):
            yield

    @contextmanager
    def _bar(self, text: str) -> Iterator[Callable[[int, int], None]]:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn("dots" if self._unicode else "line", style=_ACCENT),
            TextColumn("{task.description}", style="dim", markup=False),
            BarColumn(bar_width=24, complete_style=_ACCENT, finished_style=_ACCENT, pulse_style="dim"),
            TextColumn("{task.fields[count]}", style="dim", markup=False),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._rich, transient=True, refresh_per_second=8) as progress:
            task = progress.add_task(self.hides.text(text), total=None, count="")
            yield lambda done, total: progress.update(task, completed=done, total=total, count=f"{done}/{total}")

    # The loop

    @contextmanager
    def rollout_progress(self, total: int) -> Iterator[RolloutProgress]:
        """A bar of groups kept of `total` needed, while a rollout runs; it leaves nothing behind."""
        if self._quiet or not self.terminal:
            yield _PlainProgress(self, total)
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("  rollout", style="dim"),
            BarColumn(bar_width=24, complete_style=_ACCENT, finished_style=_ACCENT, pulse_style="dim"),
            MofNCompleteColumn(),
            TextColumn("kept", style="dim"),
            TextColumn("{task.fields[speed]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[dropped]}", style="yellow", markup=False),
        )
        with Progress(*columns, console=self._rich, transient=True, refresh_per_second=8) as progress:
            yield _BarProgress(progress, total)

    def step(self, step: int, total: int | None, metrics: Mapping[str, float]) -> None:
        """One aligned line for a training step, and the alerts that it gives rise to, each kind once in a run.

        `metrics` are the step's by full key (`rollout/raw_reward`, ...); `step` counts from 1.
        """
        number = f"{step}/{total}".rjust(2 * len(str(total)) + 1) if total else str(step)
        parts = [("dim", "step "), ("bold", number)]
        reward = metrics.get("rollout/raw_reward")
        if reward is not None:
            self._rewards.append(reward)
            parts += [("dim", "  reward "), ("bold", format_number(reward, "score").rjust(7))]
            if self.terminal and self._unicode:
                parts.append((_ACCENT, " " + sparkline(self._rewards)))
        skipped = metrics.get("train/skipped_steps", 0)
        tail = [("yellow", "  optimizer step skipped")] if skipped else []
        room = self._rich.width - sum(len(text) for _, text in parts + tail) if self.terminal else None
        for cell in _fitting(step_cells(metrics), room):
            label = cell.label if self._unicode else cell.label.replace("Δ", "d")
            parts += [("dim", f"  {label} "), (cell.style, cell.value)]
        self._say(*parts, *tail)
        if self._verbose:
            for line in all_metrics(metrics):
                self._say(("dim", f"  {line}"))
        for alert in self._alerts.feed(step - 1, metrics):
            if alert.kind not in self._warned:
                self._warned.add(alert.kind)
                self._line(("yellow bold", "alert "), ("", alert.text))

    def start_scores(self, scores: Mapping[str, float]) -> None:
        """The first scores of a run that is resumed: what later evaluations are compared with."""
        self._first_scores.update(scores)

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """A line per data set: its first score, an arrow, the score now."""
        names = evaluation_names(metrics, self._eval_names)
        arrow = "→" if self.terminal and self._unicode else "->"
        for name in names:
            score = metrics[f"eval/{name}"]
            first = self._first_scores.get(name)
            parts = [("dim", "eval "), ("bold", name.ljust(max(map(len, names))))]
            if first is None:
                self._first_scores[name] = score
                parts += [("", "  "), ("bold", f"{score:.3f}")]
            else:
                gain = first - score if name.endswith(LOSS) else score - first
                style = "green" if gain > 0 else "red" if gain < 0 else "dim"
                parts += [("dim", f"  {first:.3f} {arrow} "), ("bold", f"{score:.3f}"), (style, f"  {score - first:+.3f}")]
            details = evaluation_details(name, metrics)
            self._say(*parts, ("dim", "".join(f"  {detail}" for detail in details)))

    def summary(self, rows: Mapping[str, str]) -> None:
        """The end of a run: before and after, and where everything is."""
        self._panel("done", rows)

    # Drawing

    def _panel(self, title: str, rows: Mapping[str, str]) -> None:
        if not self.terminal:
            for name, value in rows.items():
                self._line(("", f"{name}: {value}"))
            return
        from rich import box
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in rows.items():
            grid.add_row(Text(name), Text(self.hides.text(str(value))))
        style = box.ROUNDED if self._unicode else box.ASCII
        self._rich.print(
            Panel(
                grid,
                title=Text(title, style=f"bold {_ACCENT}"),
                title_align="left",
                box=style,
                border_style="dim",
                padding=(0, 1),
                expand=False,
            )
        )

    def _say(self, *parts: tuple[str, str]) -> None:
        if not self._quiet:
            self._line(*parts)

    def _line(self, *parts: tuple[str, str]) -> None:
        text = self._text(*parts)
        text.rstrip()
        self._rich.print(text, soft_wrap=not self.terminal)

    def _text(self, *parts: tuple[str, str]) -> Text:
        from rich.text import Text

        return Text.assemble(*((self.hides.text(text), style) for style, text in parts))


class _BarProgress(RolloutProgress):
    def __init__(self, progress: Any, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total, speed="", dropped="")

    def update(self, kept: int, dropped: Mapping[str, int] | None = None, tokens_per_second: float | None = None) -> None:
        speed = "" if tokens_per_second is None else f"{tokens_per_second:,.0f} tok/s"
        self._progress.update(self._task, completed=kept, speed=speed, dropped=format_dropped(dropped or {}))


class _PlainProgress(RolloutProgress):
    """A line now and then, for rollouts that take long."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._last = time.monotonic()

    def update(self, kept: int, dropped: Mapping[str, int] | None = None, tokens_per_second: float | None = None) -> None:
        now = time.monotonic()
        if now - self._last < _PLAIN_PROGRESS_EVERY:
            return
        self._last = now
        speed = "" if tokens_per_second is None else f"{tokens_per_second:,.0f} tok/s"
        parts = [f"rollout {kept}/{self._total} groups", speed, format_dropped(dropped or {})]
        self._console.info("  ".join(part for part in parts if part))


def _own_stderr() -> TextIO:
    """stderr through a descriptor of its own: what C++ code writes to number 2 can be led elsewhere, and the console stays."""
    try:
        if sys.stderr.fileno() == 2:
            return os.fdopen(os.dup(2), "w", buffering=1, encoding=sys.stderr.encoding, errors=sys.stderr.errors)
    except (OSError, ValueError, AttributeError):
        pass
    return sys.stderr


def _fitting(cells: list[Cell], room: int | None) -> list[Cell]:
    """The cells that fit into `room` columns, in their order; None is room for all."""
    if room is None:
        return cells
    kept = list(cells)
    while kept and sum(cell.width + 2 for cell in kept) > room:
        kept.remove(max(kept, key=lambda cell: cell.rank))
    return kept
