"""An entry of the zoo, and what it has to show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vime.testing.checks.base import Check, RewardCase
from vime.testing.report import Report
from vime.testing.runner import check


@dataclass(frozen=True)
class Wrong:
    """A plugin with one mistake, and exactly what is said about it."""

    name: str
    """What is wrong, in a few words."""
    target: Any
    """A plugin class or module with @hookimpl, a plain function for a path flag (then `hook` is set), or a path as text."""
    check: str
    """The id of the check that fails."""
    message: str
    """The exact message of that check."""
    core: str | None = None
    """The message, or a part of it, with which the run refuses it; None where the run cannot tell."""
    hook: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    cases: Sequence[RewardCase] = ()
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    deterministic: bool = True
    also: tuple[str, ...] = ()
    """Ids of other checks that this mistake makes fail as well."""
    timeout: float = 30.0

    def report(self, **options: Any) -> Report:
        """What the kit says."""
        return check(
            self.target,
            hook=self.hook,
            args=self.args,
            cases=self.cases,
            settings=self.settings,
            deterministic=self.deterministic,
            **{"timeout": self.timeout, **options},
        )

    def assert_refused(self) -> None:
        """The kit fails exactly the named check, with exactly this message, and nothing else but `also`."""
        report = self.report()
        failed = {result.id: result.message for result in report.failures}
        assert failed.get(self.check) == self.message, f"{self.name}: {failed}"
        assert set(failed) - {self.check} == set(self.also), f"{self.name}: {failed}"


def unbroken(checks: Iterable[Check], zoo: Iterable[Wrong]) -> list[str]:
    """The ids of checks that no entry of the zoo breaks. Has to be empty."""
    shown = {entry.check for entry in zoo}
    return [each.id for each in checks if each.id not in shown]
