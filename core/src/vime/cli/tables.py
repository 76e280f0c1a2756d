"""Tables on stdout: columns of equal width in a pipe or a file, rich on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = (), styles: Mapping[str, str] | None = None
) -> None:
    """Print rows under a header. Columns in `numbers` go to the right; a cell that is a key of `styles` gets that style."""
    if not sys.stdout.isatty():
        sys.stdout.write(plain_table(header, rows, numbers=numbers))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in header:
        table.add_column(column, overflow="fold", justify="right" if column in numbers else "left")
    for row in rows:
        table.add_row(*(Text(cell, (styles or {}).get(cell, "")) for cell in row))
    Console(file=sys.stdout, highlight=False).print(table)


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()) -> str:
    """The table as text, two blanks between columns."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    sides = ["rjust" if name in numbers else "ljust" for name in header]
    return "".join(
        "  ".join(getattr(cell, side)(width) for cell, side, width in zip(line, sides, widths, strict=True)).rstrip() + "\n"
        for line in lines
    )
