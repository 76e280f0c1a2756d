"""What a field takes, in words and as a parser: from its annotation to "a whole number of at least 1"."""

from __future__ import annotations

import functools
import re
import types
import typing
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

import yaml
from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

_NAMES: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list", dict: "a mapping"}


@dataclass(frozen=True)
class FromText:
    """Annotates a field whose own validator reads the words of the command line. `shape` says how they are written."""

    shape: str


@dataclass(frozen=True)
class Kind:
    """What a field takes: a base type, its bounds, the choices or the items, and whether it may be left open."""

    base: type
    optional: bool = False
    choices: tuple[str | int, ...] = ()
    bounds: tuple[str, ...] = ()
    item: Kind | None = None
    shape: str | None = None
    """How a value is written on the command line, where the field reads that text itself."""

    def expected(self) -> str:
        """The kind in words, for messages."""
        if self.choices:
            return "one of " + ", ".join(map(str, self.choices))
        if self.shape is not None:
            return self.shape
        if self.base is list and self.item is not None:
            return "a list, each " + self.item.expected()
        return " ".join([_NAMES[self.base], *([" and ".join(self.bounds)] if self.bounds else [])])

    def parse(self, text: str) -> Any:
        """The value of one word of the command line. Raises ValueError where it is not of this kind."""
        if self.optional and (not text or (self.base is not str and text.lower() == "none")):
            return None
        if self.shape is not None:
            return text
        if self.choices:
            return next((choice for choice in self.choices if str(choice) == text), text)
        if self.base is bool:
            return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else _refuse(text)
        if self.base is dict:
            value = parse_scalar(text)
            return cast("dict[str, Any]", value) if isinstance(value, dict) else _refuse(text)
        return self.base(text)


def _refuse(text: str) -> Any:
    raise ValueError(text)


def parse_scalar(text: str) -> Any:
    """A word of the command line as YAML reads it: 5, 1e-6, true, [a, b], {a: 1}, text."""
    return yaml.load(text, Loader=ConfigLoader)


class ConfigLoader(yaml.SafeLoader):
    """YAML without its traps: 1e-6 is a number, and a key that comes twice in a mapping is an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue  # `<<: *base`: what it brings may be written over
            key = cast("Any", self.construct_object(key_node, deep=True))  # pyright: ignore[reportUnknownMemberType]
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is a list or a mapping", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} comes twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _add_float_resolver() -> None:
    pattern = re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d+)[eE][-+]?\d+$")
    ConfigLoader.add_implicit_resolver("tag:yaml.org,2002:float", pattern, list("-+0123456789."))  # pyright: ignore[reportUnknownMemberType]


_add_float_resolver()


@functools.cache
def kinds_of(model: type[BaseModel]) -> dict[str, Kind]:
    """The kind of each field of a model, by name."""
    return {name: _of_field(field) for name, field in model.model_fields.items()}


def _of_field(field: FieldInfo) -> Kind:
    return _with_bounds(_of_annotation(field.annotation), field.metadata)


def _of_annotation(annotation: Any) -> Kind:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _with_bounds(_of_annotation(arguments[0]), arguments[1:])
    if origin in (typing.Union, types.UnionType):
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        return replace(_of_annotation(inner), optional=True)
    if origin is Literal:
        return Kind(str if isinstance(arguments[0], str) else int, choices=arguments)
    if origin is list:
        item = _of_annotation(arguments[0])
        return Kind(list, item=item if item.base in _NAMES else None)
    if origin is dict:
        return Kind(dict)
    return Kind(annotation)


def _with_bounds(kind: Kind, metadata: Iterable[Any]) -> Kind:
    words, shape = list(kind.bounds), kind.shape
    for constraint in metadata:
        for bound in constraint.metadata if isinstance(constraint, FieldInfo) else [constraint]:
            match bound:
                case Ge(ge=limit):
                    words.append(f"of at least {limit}")
                case Gt(gt=limit):
                    words.append(f"above {limit}")
                case Le(le=limit):
                    words.append(f"at most {limit}")
                case Lt(lt=limit):
                    words.append(f"below {limit}")
                case MinLen():
                    words.append("that is not empty")
                case FromText():
                    shape = bound.shape
                case _:
                    pass
    return replace(kind, bounds=tuple(words), shape=shape)
