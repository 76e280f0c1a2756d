"""`vime watch RUN`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vime.errors import ConfigError
from vime.report.follow import MetricsFollower
from vime.report.terminal import Line, RunView

if TYPE_CHECKING:
    from rich.text import Text

EVERY = 0.5
"""Seconds between two looks at the file."""


def watch_run(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, or its name below runs/. It may not be there yet.")],
    once: Annotated[bool, typer.Option("--once", help="Print how it stands and return.")] = False,
) -> None:
    """Show a run in the terminal, from its metrics.jsonl alone: reward, evaluation, times, drops, alerts. Ctrl-C ends it."""
    folder = run if run.is_dir() or not (Path("runs") / run).is_dir() else Path("runs") / run
    if run.is_file() or (once and not folder.is_dir()):
        raise ConfigError(f"there is no run folder {run}", hint="give the folder that vime train named as its run folder")
    follower, view = MetricsFollower(folder / "metrics.jsonl"), RunView(folder.resolve().name)
    if once or not sys.stdout.isatty():
        _print_once(follower, view)
        return
    try:
        _follow(follower, view)
    except KeyboardInterrupt:
        return  # the run goes on; only the looking ends


def _print_once(follower: MetricsFollower, view: RunView) -> None:
    from rich.console import Console

    from_start, lines = follower.poll()
    view.feed(lines, from_start=from_start)
    console = Console(highlight=False)
    for text in _texts(view, console):
        text.rstrip()
        console.print(text, soft_wrap=True)


def _follow(follower: MetricsFollower, view: RunView) -> None:
    from rich.console import Console, Group
    from rich.live import Live

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            from_start, lines = follower.poll()
            view.feed(lines, from_start=from_start)
            live.update(Group(*_texts(view, console)), refresh=True)
            time.sleep(EVERY)


def _texts(view: RunView, console: Any) -> list[Text]:
    return [_text(line) for line in view.lines(time.time(), unicode=console.encoding.lower().startswith("utf"))]


def _text(line: Line) -> Text:
    from rich.text import Text

    return Text.assemble(*((text, style) for style, text in line))
