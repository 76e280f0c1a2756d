"""Which plugins are installed, from the metadata of the distributions alone: nothing is imported here."""

from __future__ import annotations

import difflib
import importlib.metadata
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from vime.config.upstream import REWARD_ALIASES, REWARD_DISTRIBUTIONS
from vime.errors import PluginError

GROUP = "vime.plugins"
"""The entry-point group. The name of an entry point is what `--plugin` takes."""

FIRST_PARTY: dict[str, str] = {
    "math": "vime-rm-math",
    "dapo": "vime-rm-math",
    "deepscaler": "vime-rm-math",
    "remote": "vime-rm-remote",
    "exact": "vime-rm-qa",
    "f1": "vime-rm-qa",
    "choice": "vime-rm-qa",
    "format": "vime-rm-qa",
    "random": "vime-rm-qa",
    "nonzero-std": "vime-filters-basic",
    "reward-range": "vime-filters-basic",
    "length": "vime-filters-basic",
    "truncated": "vime-filters-basic",
    "overlong": "vime-filters-basic",
    "dedup": "vime-filters-basic",
    "freshest": "vime-filters-basic",
    "sft": "vime-rollout-sft",
}
"""The distribution that brings each plugin of this project."""

Status = Literal["ok", "broken", "conflict", "incompatible"]

_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
_TARGET = re.compile(r"^\s*(?P<module>\w+(\.\w+)*)\s*(:\s*(?P<attr>\w+(\.\w+)*))?\s*(\[.*\])?\s*$")


def vime_version() -> str:
    """The version of the installed distribution `vime`, "0" when vime runs from a source tree that is not installed."""
    try:
        return importlib.metadata.version("vime")
    except importlib.metadata.PackageNotFoundError:
        return "0"


@dataclass(frozen=True)
class PluginEntry:
    """One entry point of the group `vime.plugins`, as its distribution declares it."""

    name: str
    target: str
    distribution: str
    version: str
    location: str
    """The directory that the distribution was found in."""
    requires_vime: str | None = None
    """The version range that the distribution asks of vime, "" for any, None when it does not mention vime."""
    fault: str | None = None
    """What is wrong with the declaration itself."""

    @property
    def key(self) -> str:
        """The name as PEP 503 compares it."""
        return canonicalize_name(self.name)

    @property
    def label(self) -> str:
        """How messages name this plugin: `plugin 'math' (vime-rm-math 0.1.0)`."""
        return plugin_label(self.name, self.distribution, self.version)


def plugin_label(name: str, distribution: str | None, version: str | None) -> str:
    """How messages name a plugin; one that was handed over as an object has no distribution."""
    return f"plugin {name!r}" if distribution is None else f"plugin {name!r} ({distribution} {version})"


@dataclass(frozen=True)
class Catalog:
    """The installed plugins, and the version of vime that they meet."""

    entries: tuple[PluginEntry, ...]
    version: str

    def named(self, name: str) -> list[PluginEntry]:
        """All entries that answer to this name; more than one is a conflict."""
        key = canonicalize_name(name)
        return [entry for entry in self.entries if entry.key == key]

    def status(self, entry: PluginEntry) -> tuple[Status, str | None]:
        """What metadata can tell about an entry, and the reason when it is not usable. Imports nothing."""
        rivals = [other for other in self.named(entry.name) if other != entry]
        if rivals:
            return "conflict", "the name is also claimed by " + ", ".join(_origin(other) for other in rivals)
        if entry.fault is not None:
            return "broken", entry.fault
        if entry.requires_vime and not Requirement(f"vime{entry.requires_vime}").specifier.contains(self.version, prereleases=True):
            return "incompatible", f"needs vime {entry.requires_vime}, and this is vime {self.version}"
        missing = missing_module(split_target(entry.target)[0])
        if missing is not None:
            return "broken", f"its entry point names {entry.target!r}, and there is no module {missing!r}"
        return "ok", None

    def find(self, name: str) -> PluginEntry:
        """The one usable entry of this name. Raises PluginError when there is none, or several, or it cannot work here."""
        found = self.named(name)
        if not found:
            raise self.unknown(name)
        entry = found[0]
        status, detail = self.status(entry)
        if status == "conflict":
            own = {other.distribution for other in found} == {entry.distribution}
            uninstall = f"uninstall one of them: pip uninstall {found[-1].distribution}"
            raise PluginError(
                f"plugin {name!r} is claimed by " + " and ".join(f"{_origin(other)} (target {other.target})" for other in found),
                hint=f"{entry.distribution} declares the name twice: report it to its authors" if own else uninstall,
            )
        if status == "incompatible":
            raise PluginError(f"{entry.label}: {detail}", hint=f"pip install --upgrade {entry.distribution} vime")
        if status == "broken":
            reinstall = f"pip install --force-reinstall {entry.distribution}"
            raise PluginError(f"{entry.label}: {detail}", hint=f"reinstall it: {reinstall}, or report it to its authors")
        return entry

    def unknown(self, name: str) -> PluginError:
        """The error for a name that nothing installed answers to: what is installed, and what would help."""
        installed = sorted({entry.name for entry in self.entries if entry.name})
        listing = "installed: " + ", ".join(installed) if installed else "no plugin is installed"
        return PluginError(f"there is no plugin {name!r}; {listing}", hint=self.suggestion(name))

    def suggestion(self, name: str) -> str:
        """What a user who asked for the plugin `name` should do: a pip line, or the name that was meant."""
        key: str = canonicalize_name(name)
        installed = {entry.distribution: entry for entry in self.entries}
        distributions: dict[str, str] = {canonicalize_name(dist): dist for dist in [*FIRST_PARTY.values(), *installed]}
        for candidate in (key, f"vime-{key}"):
            if candidate in distributions:
                return self._distribution_hint(distributions[candidate])
        if key in FIRST_PARTY:
            dist = FIRST_PARTY[key]
            if dist in installed:
                return f"{dist} {installed[dist].version} does not have it: pip install --upgrade {dist}"
            return f"pip install {dist}"
        name = REWARD_ALIASES.get(key, key)
        if self.named(name):
            return f"it is --plugin {name} here"
        if name in REWARD_DISTRIBUTIONS:
            return f"pip install {REWARD_DISTRIBUTIONS[name]}" + (f", then --plugin {name}" if name != key else "")
        near = nearest(key, [*(entry.name for entry in self.entries), *FIRST_PARTY])
        if near is None:
            return "see `vime plugin list` for what is installed, and pip install the distribution that brings it"
        if self.named(near):
            return f"did you mean --plugin {near}?"
        return f"did you mean {near!r}? pip install {FIRST_PARTY[near]}"

    def _distribution_hint(self, dist: str) -> str:
        names = [entry.name for entry in self.entries if entry.distribution == dist]
        if names:
            return f"{dist} is a distribution; --plugin takes the names of its plugins: " + ", ".join(names)
        return f"pip install {dist}, then --plugin " + " or ".join(name for name, owner in FIRST_PARTY.items() if owner == dist)


def discover(path: Sequence[str] | None = None) -> Catalog:
    """Read the entry points of all distributions on `path` (default: sys.path).

    A distribution that is found twice counts where Python would import it from, the first time. One whose metadata
    cannot be read becomes an entry with a fault, and never an error here.
    """
    entries: list[PluginEntry] = []
    seen: set[str] = set()
    for dist in importlib.metadata.distributions(path=list(sys.path if path is None else path)):
        text = _entry_points_text(dist)
        if GROUP not in text:
            continue
        metadata = _Metadata.of(dist)
        if canonicalize_name(metadata.name) not in seen:
            seen.add(canonicalize_name(metadata.name))
            entries.extend(_entries(dist, metadata, text))
    ordered = sorted(dict.fromkeys(entries), key=lambda entry: (entry.key, entry.distribution))
    return Catalog(tuple(ordered), vime_version())


def split_target(target: str) -> tuple[str, str | None]:
    """`pkg.mod:Class` -> ("pkg.mod", "Class"); `pkg.mod` -> ("pkg.mod", None)."""
    match = _TARGET.match(target)
    if match is None:
        return target, None
    return match["module"], match["attr"]


def missing_module(module: str) -> str | None:
    """The first part of a dotted module name that cannot be found, or None. Finds without importing, parents included."""
    path: Sequence[str] | None = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        if name in sys.modules:
            path = list(getattr(sys.modules[name], "__path__", ()))
            continue
        spec = _find_spec(name, path)
        if spec is None:
            return name
        path = list(spec.submodule_search_locations or ())
    return None


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The most similar of these words, or None when none is similar."""
    found = difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)
    return found[0] if found else None


def _find_spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    if path is not None and not path:
        return None
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path, None)
        if spec is not None:
            return spec
    return None


def unreadable_entry_points() -> PluginError | None:
    """The error for a distribution whose entry points Python itself cannot read, which breaks every library that lists its own."""
    for dist in importlib.metadata.distributions():
        try:
            list(dist.entry_points)
        except Exception as error:  # noqa: BLE001 - what it is depends on the version of Python
            metadata = _Metadata.of(dist)
            return PluginError(
                f"distribution {metadata.name} {metadata.version}: Python cannot read its entry_points.txt ({type(error).__name__}), "
                "and so none beside it: vLLM and others list theirs",
                hint=f"pip uninstall {metadata.name}, or report it to its authors",
            )
    return None


def _entry_points_text(dist: importlib.metadata.Distribution) -> str:
    """The text of entry_points.txt, "" where there is none. Bytes that are not UTF-8 are replaced."""
    try:
        return dist.read_text("entry_points.txt") or ""
    except UnicodeDecodeError:
        return (_folder(dist) / "entry_points.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@dataclass(frozen=True)
class _Metadata:
    """What a distribution says of itself, read once: Python parses the whole file, README and all, for every look at it."""

    name: str
    version: str
    """Both are those of the folder's name where the metadata does not give them."""
    requires: list[str]
    fault: str | None
    """What is wrong with it."""

    @classmethod
    def of(cls, dist: importlib.metadata.Distribution) -> _Metadata:
        given: dict[str, str | None] = {}
        requires: list[str] = []
        fault: str | None = None
        try:
            message: Any = dist.metadata
            given = {key: message.get(key) for key in ("Name", "Version")}
            requires = dist.requires or []
        except FileNotFoundError:  # so says importlib_metadata, which answers in Python's place where it has been imported
            given = {"Name": None, "Version": None}
        except (OSError, UnicodeDecodeError, KeyError) as error:
            fault = f"its metadata cannot be read: {error}"
        missing = [key for key, value in given.items() if not value]
        if fault is None:
            fault = f"its metadata has no {' and no '.join(missing)}" if missing else _bad_requirement(requires)
        folder = _folder(dist).name
        in_name = re.match(r"[^-]+-(.+)\.(dist|egg)-info$", folder)
        name = given.get("Name") or folder.split("-")[0] or "unknown"
        return cls(name, given.get("Version") or (in_name[1] if in_name else "unknown"), requires, fault)


def _folder(dist: importlib.metadata.Distribution) -> Path:
    """The .dist-info directory, or Path() for distributions that do not come from a directory."""
    return Path(str(getattr(dist, "_path", "")))


def _entries(dist: importlib.metadata.Distribution, metadata: _Metadata, text: str) -> list[PluginEntry]:
    location = str(_folder(dist).parent)
    requires = None if metadata.fault else _requires_vime(metadata.requires)
    found: list[PluginEntry] = []
    for line in _section(text):
        entry_name, equals, target = (part.strip() for part in line.partition("="))
        problem = metadata.fault
        if not equals or not entry_name or not _TARGET.match(target):
            problem = f"its entry point {line!r} is not of the form name = module or name = module:Class"
        elif not _NAME.match(entry_name):
            problem = f"its name {entry_name!r} has other characters than ASCII letters, digits, '.', '_' and '-' between them"
        found.append(PluginEntry(entry_name, target, metadata.name, metadata.version, location, requires, problem))
    return found


def _bad_requirement(requires: Iterable[str]) -> str | None:
    """What is wrong with a list of Requires-Dist lines, or None."""
    for line in requires:
        try:
            Requirement(line)
        except InvalidRequirement:
            return f"its metadata has the requirement {line!r}, which is none"
    return None


def _section(text: str) -> list[str]:
    """The lines of our group in an entry_points.txt."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("["):
            inside = line == f"[{GROUP}]"
        elif inside and line and line[0] not in "#;":
            lines.append(line)
    return lines


def _requires_vime(requires: Iterable[str]) -> str | None:
    """The range of vime versions in a list of Requires-Dist lines that apply without extras."""
    found: list[str] = []
    for line in requires:
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) != "vime":
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found.append(str(requirement.specifier))
    return ",".join(part for part in found if part) if found else None


def _origin(entry: PluginEntry) -> str:
    return f"{entry.distribution} {entry.version}"
