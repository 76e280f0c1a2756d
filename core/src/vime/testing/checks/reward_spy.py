"""What a reward looks at, and which exceptions it keeps to itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, cast

from vime.sample import Sample

OUTPUT_FIELDS = frozenset(
    {"response", "tokens", "response_length", "status", "loss_mask", "rollout_log_probs", "effective_response_length", "__dict__"}
)
"""What generation wrote. A reward that reads none of it has not looked at the response."""
_CONTROL_FLOW = (StopIteration, StopAsyncIteration, GeneratorExit)


@dataclass
class Reads:
    """What was read of a sample."""

    fields: set[str] = field(default_factory=set[str])
    missing: list[str] = field(default_factory=list[str])
    """Keys of its metadata that were asked for and are not there."""

    @property
    def label(self) -> bool:
        """Whether the label was looked at."""
        return "label" in self.fields or "__dict__" in self.fields

    @property
    def blind(self) -> bool:
        """Whether nothing was looked at that generation wrote."""
        return not self.fields & OUTPUT_FIELDS


def spied(sample: Sample) -> tuple[Sample, Reads]:
    """The sample as one that notes what is read of it, and the notes."""
    reads = Reads()

    class Spied(Sample):
        def __getattribute__(self, name: str) -> Any:
            reads.fields.add(name)
            return object.__getattribute__(self, name)

    class Metadata(dict[str, Any]):
        def __missing__(self, key: str) -> Any:
            self._note(key)
            raise KeyError(key)

        def get(self, key: str, default: Any = None) -> Any:
            self._note(key)
            return super().get(key, default)

        def __contains__(self, key: object) -> bool:
            self._note(key)
            return super().__contains__(key)

        def _note(self, key: object) -> None:
            if not super().__contains__(key) and key not in reads.missing:
                reads.missing.append(str(key))

    copied = Spied(**{name: value for name, value in vars(sample).items() if name in Sample.__dataclass_fields__})
    copied.metadata = Metadata(sample.metadata)
    reads.fields.clear()
    return copied, reads


@contextmanager
def exceptions_in(function: Callable[..., Any]) -> Generator[list[BaseException]]:
    """Collect what is raised in the code of the package that `function` belongs to, caught or not, in this thread."""
    home = _home(getattr(function, "__module__", None))
    found: list[BaseException] = []

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "call":
            return trace if _home(frame.f_globals.get("__name__")) == home else None
        if event == "exception":
            error = cast("tuple[type, BaseException, object]", argument)[1]
            if not isinstance(error, _CONTROL_FLOW) and all(error is not known for known in found):
                found.append(error)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield found
    finally:
        sys.settrace(before)


def _home(module: str | None) -> str:
    return (module or "").partition(".")[0]
