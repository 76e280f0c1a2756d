"""Types and constraints of settings in words: `list[str]`, `one of "a", "b"`, `at least 1`."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterable
from enum import Enum
from typing import Annotated, Any, Literal

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt, MaxLen, MinLen, MultipleOf


def type_name(annotation: Any) -> str:
    """How an annotation is written in Python, without module names: `int | None`, `Literal["a", "b"]`, `dict[str, list[int]]`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is Ellipsis:
        return "..."
    if origin is Annotated:
        return type_name(arguments[0])
    if origin is Literal:
        return f"Literal[{', '.join(_quoted(argument) for argument in arguments)}]"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(type_name, arguments))
    if isinstance(annotation, list):  # the parameters of a Callable
        return f"[{', '.join(map(type_name, annotation))}]"
    if origin is not None:
        inner = ", ".join(map(type_name, arguments))
        return f"{_name(origin)}[{inner}]" if inner else _name(origin)
    return _name(annotation)


def constraints(annotation: Any, metadata: Iterable[Any]) -> list[str]:
    """The bounds that a value, or what is in it, has to keep."""
    words = [text for item in metadata for text in _in_words(item)]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return [*words, *constraints(arguments[0], arguments[1:])]
    if origin in (typing.Union, types.UnionType):
        return [*words, *(text for argument in arguments for text in constraints(argument, ()))]
    if origin is Literal:
        return words
    return [*words, *(f"each {text}" for argument in arguments for text in constraints(argument, ()))]


def _in_words(item: Any) -> list[str]:
    match item:
        case Ge(ge=limit):
            return [f"at least {limit}"]
        case Gt(gt=limit):
            return [f"above {limit}"]
        case Le(le=limit):
            return [f"at most {limit}"]
        case Lt(lt=limit):
            return [f"below {limit}"]
        case MultipleOf(multiple_of=number):
            return [f"a multiple of {number}"]
        case MinLen(min_length=length):
            return [f"at least {length} long"]
        case MaxLen(max_length=length):
            return [f"at most {length} long"]
        case GroupedMetadata():
            return [text for part in item for text in _in_words(part)]
        case _:
            inner = getattr(item, "metadata", None)  # a Field() inside of Annotated
            texts = [text for part in inner for text in _in_words(part)] if isinstance(inner, list) else []
            pattern = getattr(item, "pattern", None)
            return [*texts, *([f"matches {pattern}"] if isinstance(pattern, str) else [])]


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _name(annotation: Any) -> str:
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return f"{annotation.__name__}[{', '.join(_quoted(member.value) for member in annotation)}]"
    if inspect.isclass(annotation):
        return annotation.__name__
    return str(annotation).removeprefix("typing.")
