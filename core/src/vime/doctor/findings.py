"""What `vime doctor` says about what it saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from vime.errors import VimeError


@dataclass(frozen=True)
class Finding:
    """`stops`: the run would not start. `warning`: it would, and may be slow, wrong or die. `note`: good to know."""

    level: Literal["stops", "warning", "note"]
    text: str
    hint: str | None = None


class Findings:
    """Collects findings, each once."""

    def __init__(self) -> None:
        self.all: list[Finding] = []

    def add(self, finding: Finding | None) -> None:
        if finding is not None and finding not in self.all:
            self.all.append(finding)

    def refused(self, error: VimeError) -> None:
        """An error that `vime train` would end with."""
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        self.add(Finding("stops", error.message + notes, error.hint))

    def collect(self, check: Callable[[], object]) -> None:
        """Make a check that raises what is wrong."""
        try:
            check()
        except VimeError as error:
            self.refused(error)

    @property
    def stops(self) -> bool:
        return any(finding.level == "stops" for finding in self.all)


def size_text(gib: float) -> str:
    """A size in words. Example: 0.5 is "512 MiB"."""
    return f"{gib:.1f} GiB" if gib >= 1 else f"{gib * 1024:.0f} MiB"
