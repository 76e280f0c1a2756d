"""What plugin authors and vime's own tests build on: the contract checks, an engine without a model, and makers of samples.

    from vime.testing import check
    assert check("math").passed

`vime.testing.contracts` has the pytest classes, `vime.testing.strategies` the hypothesis strategies.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vime.testing.checks.base import RewardCase
    from vime.testing.factories import fan_out_group, finished_group, finished_groups, finished_sample, make_group, make_sample
    from vime.testing.fakes import FakeEngine, FakeTokenizer
    from vime.testing.report import CheckResult, Report
    from vime.testing.runner import check

__all__ = [
    "CheckResult",
    "FakeEngine",
    "FakeTokenizer",
    "Report",
    "RewardCase",
    "check",
    "fan_out_group",
    "finished_group",
    "finished_groups",
    "finished_sample",
    "make_group",
    "make_sample",
]

_HOMES = {
    "RewardCase": "checks.base",
    "check": "runner",
    "CheckResult": "report",
    "Report": "report",
    "FakeEngine": "fakes",
    "FakeTokenizer": "fakes",
}


def __getattr__(name: str) -> Any:
    """Import a public name where it is first asked for, so that the fake engine does not bring the checks along."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'factories')}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
