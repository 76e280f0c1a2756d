"""What the sections are made of: the frozen base class and the types of their fields."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import os
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _path_as_str(value: Any) -> Any:
    return os.fspath(cast("os.PathLike[str]", value)) if isinstance(value, os.PathLike) else value


PathStr = Annotated[str, BeforeValidator(_path_as_str)]
"""A path. Stored as a string, so that a configuration is plain data."""
Word = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=-1)]


class Section(BaseModel):
    """Base of every part of the configuration: frozen, no coercion, unknown keys refused.

    The first line of a section's docstring titles its panel in `--help`; the docstring under a field is its help.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=(), defer_build=True)


@functools.cache
def field_docs(section: type[Section]) -> dict[str, str]:
    """The docstring under each field that `section` itself declares, as one line. Reads the source: for help only."""
    source = Path(inspect.getfile(section)).read_text(encoding="utf-8")
    body = next(node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == section.__name__)
    docs: dict[str, str] = {}
    for statement, following in itertools.pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            docs[statement.target.id] = " ".join(str(following.value.value).split())
    return docs
