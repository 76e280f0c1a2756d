"""`vime report RUN [RUN ...]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from vime.cli.render import warn
from vime.errors import ConfigError


def report_runs(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or their names below runs/.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write the page. Default: report.html in the run's folder; for several runs, here."),
    ] = None,
) -> None:
    """Write one HTML page about a run, or about several laid over each other. It needs no network and no training packages."""
    from importlib.util import find_spec

    from vime.report.page import write_report

    if find_spec("pyarrow") is None:
        warn("the page has no samples: reading them needs pyarrow; pip install pyarrow")
    try:
        path = write_report(runs, out)
    except OSError as error:
        place = error.filename or out
        raise ConfigError(f"{place}: {error.strerror}", hint="choose another place: --out FILE") from error
    sys.stdout.write(f"{path}\n")
