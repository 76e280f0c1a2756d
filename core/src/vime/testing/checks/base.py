"""What a check is: an id, the hook it belongs to, and a function that ends well, fails or is skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.plugins.manager import HookFunction, PluginManager
    from vime.testing.subject import Subject

SubjectKind = Literal["package", "object", "path", "function"]
"""An installed plugin, a plugin module or class, a function by path, or a function that was handed over."""
EVERY_KIND: frozenset[SubjectKind] = frozenset({"package", "object", "path", "function"})


class CheckFailed(Exception):
    """The plugin breaks its contract. The message is one line that says what was expected and what came."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class CheckSkipped(Exception):
    """The check does not apply to this plugin, or lacks something; the message says why."""


def fail(message: str, hint: str = "") -> NoReturn:
    """End a check as failed."""
    raise CheckFailed(message, hint)


def skip(reason: str) -> NoReturn:
    """End a check as skipped."""
    raise CheckSkipped(reason)


@dataclass(frozen=True)
class RewardCase:
    """A known answer: what a reward must give for this response, as the author says."""

    prompt: str | list[dict[str, Any]]
    response: str
    label: Any
    reward: float | dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Bench:
    """What a check works with. Every check gets a bench of its own, with a freshly loaded plugin."""

    subject: Subject
    hook: str
    """The hook under test; "" for the checks of the package itself."""
    cases: Sequence[RewardCase] = ()
    deterministic: bool = True
    """False where the author declares that the same input may give another answer."""

    def config(self, **overrides: Any) -> RunConfig:
        """A run's configuration with this plugin enabled."""
        return self.subject.config(**overrides)

    def load(self, config: RunConfig | None = None) -> PluginManager:
        """A plugin manager of its own with this plugin alone."""
        return self.subject.load(config)

    def function(self, manager: PluginManager | None = None) -> HookFunction:
        """The function under test, freshly loaded unless `manager` is given."""
        return self.subject.function(self.hook, manager)


@dataclass(frozen=True)
class Check:
    """One check of the kit."""

    id: str
    """Stable and public, such as "reward-finite": authors name it in expected_failures."""
    hook: str | None
    """The hook whose implementations are checked; None for the package itself."""
    run: Callable[[Bench], None]
    """Returns for a pass. CheckFailed, CheckSkipped and VimeError end it otherwise; any other exception is the plugin's and a failure."""
    kinds: frozenset[SubjectKind] = EVERY_KIND
    """The kinds of subject that it makes sense for; others do not get it at all."""

    @property
    def doc(self) -> str:
        """What is checked, in a sentence: the first line of the function's docstring."""
        return (self.run.__doc__ or "").strip().partition("\n")[0]
