"""What a run of the contract kit found: one result per check, as text for a terminal and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

CheckStatus = Literal["pass", "fail", "skip", "xfail"]


@dataclass(frozen=True)
class CheckResult:
    """How one check ended. `message` says what was wrong, or why it was skipped; `hint` what to do."""

    id: str
    status: CheckStatus
    message: str = ""
    hint: str = ""
    output: str = ""
    """What the plugin printed, logged and warned of during a check that failed."""


@dataclass(frozen=True)
class Report:
    """All results for one plugin or function, in the order in which the checks ran."""

    target: str
    checks: list[CheckResult] = field(default_factory=list[CheckResult])

    @property
    def passed(self) -> bool:
        """Whether nothing failed. Skipped checks and expected failures do not count as failures."""
        return not self.failures

    @property
    def failures(self) -> list[CheckResult]:
        """The checks that failed."""
        return [result for result in self.checks if result.status == "fail"]

    def __getitem__(self, check_id: str) -> CheckResult:
        """The result of one check. Raises KeyError, with the ids that there are, for an unknown one."""
        for result in self.checks:
            if result.id == check_id:
                return result
        raise KeyError(f"{check_id}; the checks were {', '.join(result.id for result in self.checks)}")

    def to_json(self) -> dict[str, Any]:
        """The public form of `vime plugin check --json`."""
        checks = [{"id": each.id, "status": each.status, "message": each.message, "hint": each.hint} for each in self.checks]
        return {"target": self.target, "passed": self.passed, "checks": checks}
