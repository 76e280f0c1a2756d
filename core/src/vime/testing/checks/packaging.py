"""Checks of the package: its metadata, what importing it does, its hooks, settings and state."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import sys
import types
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ValidationError

from vime.errors import PluginError
from vime.plugins.discovery import PluginEntry, plugin_label
from vime.plugins.loading import build_settings, load_target, members, settings_class
from vime.plugins.settings import Settings, settings_as_json
from vime.plugins.validation import check_hooks
from vime.testing.checks.base import EVERY_KIND, Bench, Check, SubjectKind, fail, skip
from vime.testing.importing import Imported, import_alone

if TYPE_CHECKING:
    from email.message import Message

IMPORT_SECONDS = 0.3
"""Processor time that importing an entry module may take, and time that it may spend waiting."""
_ATTEMPTS = 3
_UPPER = ("<", "<=", "==", "===", "~=")
_PROJECT_LINES = {
    "Summary": 'description = "..."',
    "Requires-Python": 'requires-python = ">=3.11"',
    "licence": 'license = "Apache-2.0"',
    "description": 'readme = "README.md"',
}
"""What an author writes under [project] in pyproject.toml, by what the metadata lacks."""


def one_owner(bench: Bench) -> None:
    """No other installed distribution claims the plugin's name."""
    entry, catalog = _entry(bench), bench.subject.catalog
    assert catalog is not None
    if catalog.status(entry)[0] == "conflict":
        catalog.find(entry.name)


def entry_point(bench: Bench) -> None:
    """The entry point names a module or a class that exists."""
    entry, catalog, imported = _entry(bench), bench.subject.catalog, bench.subject.imported
    assert catalog is not None and imported is not None
    if catalog.status(entry)[0] == "broken":
        catalog.find(entry.name)
    if imported.error is not None:
        if imported.unknown:
            raise imported.error
        skip("its module cannot be imported")


def metadata(bench: Bench) -> None:
    """The metadata has a version, a summary, the Python versions, a licence and a description."""
    entry = _entry(bench)
    found = cast("Message", _distribution(entry).metadata)
    origin = f"{entry.distribution} {entry.version}"
    try:
        Version(found["Version"] or "")
    except InvalidVersion:
        fail(f"{origin}: its version {found['Version']!r} is not one that pip understands", 'version = "0.1.0" under [project]')
    classified = any(line.startswith("License ::") for line in found.get_all("Classifier") or ())
    there: dict[str, Any] = {
        "Summary": found.get("Summary"),
        "Requires-Python": found.get("Requires-Python"),
        "licence": found.get("License-Expression") or found.get("License") or classified,
        "description": found.get("Description") or _body(found),
    }
    missing = [name for name, value in there.items() if not value or value == "UNKNOWN"]
    if missing:
        lines = ", ".join(_PROJECT_LINES[name] for name in missing)
        fail(f"{origin}: its metadata has no {' and no '.join(missing)}", f"under [project] in pyproject.toml: {lines}")


def requires_vime(bench: Bench) -> None:
    """The distribution requires vime with an upper bound, and this vime is in the range."""
    entry, catalog = _entry(bench), bench.subject.catalog
    assert catalog is not None
    origin = f"{entry.distribution} {entry.version}"
    major, minor = (*Version(catalog.version).release, 0)[:2]
    good = f'dependencies = ["vime>={major}.{minor},<{major}.{minor + 1}"]'
    if entry.fault is not None:
        skip(entry.fault)
    if entry.requires_vime is None:
        fail(f"{origin} does not require vime", f"under [project] in pyproject.toml: {good}")
    specifiers = Requirement(f"vime{entry.requires_vime}").specifier
    if not any(each.operator in _UPPER for each in specifiers):
        fail(f"{origin} requires vime{entry.requires_vime} without an upper bound", f"a next vime may break it: {good}")
    if catalog.status(entry)[0] == "incompatible":
        catalog.find(entry.name)


def imports(bench: Bench) -> None:
    """Importing it works, in a process of its own, and leaves the process alive."""
    imported = _imported(bench)
    if imported.error is not None:
        raise imported.error


def imports_light(bench: Bench) -> None:
    """Importing it loads none of torch, vllm, deepspeed and ray."""
    imported = _imported(bench)
    if imported.heavy:
        fail(f"importing it loads {', '.join(imported.heavy)}", "import it inside the function that needs it")
    _refuse_unimportable(imported)


def imports_fast(bench: Bench) -> None:
    """Importing it takes less than 0.3 s, without the time of vime itself."""
    entry, imported = _entry(bench), _imported(bench)
    _refuse_unimportable(imported)
    busy, idle = imported.busy_seconds, imported.idle_seconds
    for _ in range(_ATTEMPTS - 1):
        if max(busy, idle) <= IMPORT_SECONDS:
            return
        again = import_alone(entry.target, entry.label, is_path=False, timeout=60.0)
        busy, idle = min(busy, again.busy_seconds), min(idle, again.idle_seconds)
    if busy > IMPORT_SECONDS:
        fail(f"importing it takes {busy:.1f} s of processor time, more than {IMPORT_SECONDS} s", _SLOW)
    if idle > IMPORT_SECONDS:
        fail(f"importing it sleeps or waits for {idle:.1f} s, more than {IMPORT_SECONDS} s", _SLOW)


_SLOW = "move imports and preparations into the constructor or the hook that needs them"


def imports_quietly(bench: Bench) -> None:
    """Importing it prints nothing."""
    imported = _imported(bench)
    lines = imported.printed.strip().splitlines()
    if lines:
        fail(f"importing it prints {lines[0][:80]!r}", "remove the print, or use logging inside a hook")
    _refuse_unimportable(imported)


def imports_harmlessly(bench: Bench) -> None:
    """Importing it changes nothing else in the process: no environment, signals, logging, seeds or builtins."""
    imported = _imported(bench)
    if imported.effects:
        fail(f"importing it {imported.effects[0]}", "every run that has it installed would get this; do it inside a hook, or not at all")
    _refuse_unimportable(imported)


def hooks(bench: Bench) -> None:
    """Every hook has a name, a marker and parameters that vime knows, or the arguments of its path flag."""
    _refuse_unimportable(bench.subject.imported)
    if bench.subject.path is not None:
        bench.load()
    else:
        target, label = _target(bench)
        check_hooks(target, label)


def settings_documented(bench: Bench) -> None:
    """The settings are built, every field is described, and they go through JSON."""
    target, label = _usable_target(bench)
    declared = settings_class(target, label)
    built = build_settings(declared, bench.subject.settings, label)
    if declared is None or built is None:
        skip("it has no settings")
    silent = [name for name, field in declared.model_fields.items() if not (field.description or "").strip()]
    if silent:
        fail(f"the settings {', '.join(silent)} have no description", "write a docstring under the field; `vime plugin show` prints it")
    again = build_settings(declared, json.loads(settings_as_json(built)), label)
    if again != built:
        fail(
            f"the settings {_differences(built, again)} do not come back from JSON",
            "worker processes get settings as JSON: use plain types",
        )


def builds(bench: Bench) -> None:
    """It loads as in a run: the class is built with its settings and registered."""
    target, label = _usable_target(bench)
    try:
        build_settings(settings_class(target, label), bench.subject.settings, label)
    except PluginError:
        skip("its settings are refused")
    bench.load()


def loads_twice_alike(bench: Bench) -> None:
    """Two loads have the same hooks, settings and lock."""
    first, second = _loaded(bench), _loaded(bench)
    for one, other in zip(first.lock()["plugins"], second.lock()["plugins"], strict=True):
        differing = _unequal(one["settings"], other["settings"])
        if differing:
            fail(
                f"the default of the setting {differing[0]} differs from load to load",
                "a default is a constant; compute in the constructor",
            )
    if [list(plugin.hooks) for plugin in first.plugins] != [list(plugin.hooks) for plugin in second.plugins]:
        fail("two loads have different hooks", "define hooks unconditionally, and let them do nothing where there is nothing to do")


def instances_are_apart(bench: Bench) -> None:
    """Building a second instance, with other settings, leaves the first one as it is."""
    target, label = _usable_target(bench)
    if inspect.ismodule(target):
        skip("it is a module, and there is one of it")
    obj = _loaded(bench).plugins[0].obj
    before = _visible(obj)
    declared = settings_class(target, label)
    for other in _other_settings(declared, bench.subject.settings, label):
        _loaded(replace(bench, subject=bench.subject.with_settings(other)))
    after = _visible(obj)
    changed = [where for where in before | after if before.get(where) != after.get(where)]
    if changed:
        fail(f"building it a second time changes {changed[0]} of the first", "keep what belongs to an instance in self")


def state_round_trips(bench: Bench) -> None:
    """The state goes through JSON, and load_state_dict() gives it back."""
    _usable_target(bench)
    first, second = _loaded(bench), _loaded(bench)
    state = first.state_dict()
    if not state:
        skip("it has no state_dict")
    second.load_state_dict(json.loads(json.dumps(state)))
    again = second.state_dict()
    if again != state:
        fail(f"load_state_dict({_only(state)!r}) is followed by state_dict() == {_only(again)!r}", _LOADS_ALL)
    moved = _moved(state)
    try:
        second.load_state_dict(json.loads(json.dumps(moved)))
    except Exception:  # noqa: BLE001 - numbers that were made up need not be a state
        return
    if moved != state and second.state_dict() == state:
        fail(f"load_state_dict({_only(moved)!r}) has no effect: state_dict() still gives {_only(state)!r}", _LOADS_ALL)


_LOADS_ALL = "load_state_dict has to set all that state_dict returns"


def _only(state: dict[str, Any]) -> Any:
    """The state of the one plugin in a manager's state."""
    return next(iter(state.values()))


def _moved(value: Any) -> Any:
    """JSON data with every number one higher."""
    if isinstance(value, dict):
        return {key: _moved(inner) for key, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_moved(inner) for inner in cast("list[Any]", value)]
    return value + 1 if isinstance(value, int | float) and not isinstance(value, bool) else value


def _entry(bench: Bench) -> PluginEntry:
    assert bench.subject.entry is not None
    return bench.subject.entry


def _distribution(entry: PluginEntry) -> importlib.metadata.Distribution:
    key = canonicalize_name(entry.distribution)
    for found in importlib.metadata.distributions(path=[entry.location]):
        if canonicalize_name(found.metadata["Name"] or "") == key:
            return found
    return skip(f"the metadata of {entry.distribution} is not in a directory")


def _body(found: Message) -> str:
    """The text below the headers of a METADATA file, where the readme is."""
    payload: Any = found.get_payload()
    return payload.strip() if isinstance(payload, str) else ""


def _imported(bench: Bench) -> Imported:
    imported = bench.subject.imported
    assert imported is not None
    if imported.unknown:
        skip("there is nothing to import")
    return imported


def _refuse_unimportable(imported: Imported | None) -> None:
    if imported is not None and imported.error is not None:
        skip("it cannot be imported")


def _target(bench: Bench) -> tuple[types.ModuleType | type, str]:
    """The plugin's module or class, and how messages name it."""
    subject = bench.subject
    if subject.entry is not None:
        return load_target(subject.entry.target, subject.entry.label), subject.entry.label
    return subject.obj, plugin_label(subject.target, None, None)


def _usable_target(bench: Bench) -> tuple[types.ModuleType | type, str]:
    """`_target`, where it can be imported and its hooks are accepted; skipped otherwise."""
    _refuse_unimportable(bench.subject.imported)
    entry, catalog = bench.subject.entry, bench.subject.catalog
    if entry is not None and catalog is not None and catalog.status(entry)[0] != "ok":
        skip("a run does not enable it as it is installed")
    target, label = _target(bench)
    try:
        check_hooks(target, label)
    except PluginError:
        skip("its hooks are refused")
    return target, label


def _loaded(bench: Bench) -> Any:
    try:
        return bench.load()
    except PluginError:
        return skip("it cannot be loaded")


def _unequal(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [key for key in {**one, **other} if one.get(key) != other.get(key)]


def _differences(one: BaseModel, other: BaseModel | None) -> str:
    return ", ".join(_unequal(dict(one), {} if other is None else dict(other))) or type(one).__name__


def _other_settings(declared: type[Settings] | None, given: Mapping[str, Any], label: str) -> list[dict[str, Any]]:
    """Valid settings that differ from the given ones in one field each, and the given ones themselves."""
    found: list[dict[str, Any]] = [dict(given)]
    if declared is None:
        return found
    base = build_settings(declared, given, label)
    for name in declared.model_fields:
        value = getattr(base, name)
        for other in _near(value):
            try:
                declared(**{**given, name: other})
            except (ValidationError, ValueError):
                continue
            found.append({**given, name: other})
            break
    return found


def _near(value: Any) -> list[Any]:
    """Values of the same type that are not this one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value - 1, value / 2]
    if isinstance(value, str):
        return [value + "x"]
    return []


def _visible(obj: Any) -> dict[str, str]:
    """The plain data that an instance can reach in itself, its classes and its module, by a name to show."""
    found = {f"the attribute {name}": _shown(value) for name, value in members(obj).items()}
    for holder in type(obj).__mro__:
        if holder.__module__ in sys.stdlib_module_names or holder is object:
            continue
        found |= {f"the class attribute {name}": _shown(value) for name, value in vars(holder).items() if not name.startswith("__")}
    module = sys.modules.get(type(obj).__module__)
    if module is not None:
        found |= {f"the global {name}": _shown(value) for name, value in vars(module).items() if not name.startswith("__")}
    return found


def _shown(value: Any) -> str:
    """Plain data by value, anything else by identity."""
    if value is None or isinstance(value, str | int | float | list | dict | set | tuple | BaseModel):
        return repr(value)  # pyright: ignore[reportUnknownArgumentType]
    return str(id(value))


_PACKAGE: frozenset[SubjectKind] = frozenset({"package"})
_IMPORTED: frozenset[SubjectKind] = frozenset({"package", "path"})
_PLUGIN: frozenset[SubjectKind] = frozenset({"package", "object"})

CHECKS: tuple[Check, ...] = (
    Check("package-name", None, one_owner, _PACKAGE),
    Check("package-entry-point", None, entry_point, _PACKAGE),
    Check("package-metadata", None, metadata, _PACKAGE),
    Check("package-requires", None, requires_vime, _PACKAGE),
    Check("package-import", None, imports, _IMPORTED),
    Check("package-import-light", None, imports_light, _PACKAGE),
    Check("package-import-fast", None, imports_fast, _PACKAGE),
    Check("package-import-quiet", None, imports_quietly, _PACKAGE),
    Check("package-import-harmless", None, imports_harmlessly, _PACKAGE),
    Check("package-hooks", None, hooks, EVERY_KIND),
    Check("package-settings", None, settings_documented, _PLUGIN),
    Check("package-builds", None, builds, _PLUGIN),
    Check("package-reload", None, loads_twice_alike, _PLUGIN),
    Check("package-instances", None, instances_are_apart, _PLUGIN),
    Check("package-state", None, state_round_trips, _PLUGIN),
)
