"""Types and constraints of settings, as `vime plugin show` writes them."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from annotated_types import Interval
from pydantic import BaseModel, Field, PositiveInt, StringConstraints

from vime.cli.annotations import constraints, type_name

NUM_GPUS = 0


class Level(Enum):
    LOW = "low"
    HIGH = "high"


class Inner(BaseModel):
    pass


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "int"),
        (list[str], "list[str]"),
        (Optional[int], "int | None"),  # noqa: UP045
        (int | str | None, "int | str | None"),
        (Literal["a", 1, True], 'Literal["a", 1, True]'),
        (dict[str, list[Path]], "dict[str, list[Path]]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (Annotated[list[Annotated[int, Field(ge=1)]], "x"], "list[int]"),
        (Callable[[int], str], "Callable[[int], str]"),
        (Level, 'Level["low", "high"]'),
        (Inner, "Inner"),
        (Any, "Any"),
    ],
)
def test_types(annotation, text):
    assert type_name(annotation) == text


class Settings(BaseModel):
    count: PositiveInt = 1
    share: float = Field(default=0.5, gt=0, le=1)
    names: list[Annotated[str, StringConstraints(min_length=2, pattern="^a")]] = Field(default=[], max_length=3)
    even: Annotated[int | None, Field(multiple_of=2)] = None
    open: Annotated[int, Interval(ge=1, lt=5)] | None = None
    free: str = ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("count", ["above 0"]),
        ("share", ["above 0", "at most 1"]),
        ("names", ["at most 3 long", "each at least 2 long", "each matches ^a"]),
        ("even", ["a multiple of 2"]),
        ("open", ["at least 1", "below 5"]),
        ("free", []),
    ],
)
def test_constraints(name, words):
    field = Settings.model_fields[name]
    assert constraints(field.annotation, field.metadata) == words


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
