"""The plugin lock: which plugins, in which version and with which settings, a run or a checkpoint was made with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from packaging.utils import canonicalize_name

from vime.errors import CheckpointError, PluginError
from vime.plugins.discovery import vime_version
from vime.redact import Redactor

FORMAT = 1


def make_lock(plugins: Sequence[Mapping[str, Any]], paths: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """A lock: `plugins` have name, distribution, version, target and settings; `paths` are path functions by flag.

    Secrets among the settings are masked, so that another key of the same service makes no difference.
    """
    lock = {
        "format": FORMAT,
        "vime": vime_version(),
        "plugins": [dict(plugin) for plugin in plugins],
        "paths": {flag: list(values) for flag, values in paths.items()},
    }
    return Redactor.of(os.environ, lock).data(lock)


def compare_locks(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Compare a checkpoint's lock with the plugins of this run.

    Returns a warning for each plugin of another version, distribution or settings, each new plugin and each changed
    path function. Raises PluginError for a plugin of the checkpoint that is not enabled now, CheckpointError for a
    `saved` that is no lock.
    """
    if not _is_lock(saved):
        raise CheckpointError(
            f"the checkpoint holds no plugin lock of format {FORMAT}", hint="--ignore-plugin-lock goes on without comparing the plugins"
        )
    hides = Redactor.of(os.environ, saved, current)
    saved, current = hides.data(saved), hides.data(current)
    now = {canonicalize_name(plugin["name"]): plugin for plugin in current["plugins"]}
    before = {canonicalize_name(plugin["name"]): plugin for plugin in saved["plugins"]}
    missing = [plugin for key, plugin in before.items() if key not in now]
    if missing:
        raise PluginError(
            "the checkpoint was made with " + " and ".join(_origin(plugin) for plugin in missing) + ", which this run does not enable",
            hint=" ".join(f"--plugin {plugin['name']}" for plugin in missing) + ", or --ignore-plugin-lock to go on without",
        )
    warnings: list[str] = []
    for key, plugin in now.items():
        if key not in before:
            warnings.append(f"{_origin(plugin)} is enabled, and the checkpoint was made without it")
            continue
        old = before[key]
        if (old["distribution"], old["version"]) != (plugin["distribution"], plugin["version"]):
            warnings.append(f"the checkpoint was made with {_origin(old)}, and this run has {_origin(plugin)}")
        changed = [name for name in old["settings"] | plugin["settings"] if old["settings"].get(name) != plugin["settings"].get(name)]
        warnings.extend(
            f"{_origin(plugin)}: setting {name} is {plugin['settings'].get(name)!r}, in the checkpoint {old['settings'].get(name)!r}"
            for name in changed
        )
    if list(before) != [key for key in now if key in before]:
        warnings.append(
            "the plugins are in another order than in the checkpoint: " + ", ".join(plugin["name"] for plugin in before.values())
        )
    for flag in saved["paths"] | current["paths"]:
        old_paths, new_paths = saved["paths"].get(flag, []), current["paths"].get(flag, [])
        if old_paths != new_paths:
            name = "--" + flag.replace("_", "-")
            warnings.append(f"{name} is {', '.join(new_paths) or 'not set'}, and was {', '.join(old_paths) or 'not set'} in the checkpoint")
    return warnings


def require_same(expected: Mapping[str, Any], here: Mapping[str, Any], where: str) -> None:
    """Refuse any difference: what each worker process must load is exactly what the driver has. `where` names the worker."""
    difference = _difference(expected, here)
    if difference is not None:
        raise PluginError(
            f"{where} does not have the driver's plugins: {difference}", hint="install the same versions, and the same files, on every node"
        )


def _difference(expected: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """The first thing in which a worker's lock is not the driver's, in words; None where they are the same."""
    if expected["vime"] != here["vime"]:
        return f"vime is {here['vime']}, and {expected['vime']} in the driver"
    found = {canonicalize_name(plugin["name"]): plugin for plugin in here["plugins"]}
    wanted = {canonicalize_name(plugin["name"]): plugin for plugin in expected["plugins"]}
    for key, plugin in wanted.items():
        if key not in found:
            return f"{_origin(plugin)} is missing"
        if _origin(found[key]) != _origin(plugin):
            return f"it has {_origin(found[key])}, the driver {_origin(plugin)}"
        if found[key] != plugin:
            odd = next(name for name in plugin if found[key].get(name) != plugin[name])
            return f"{_origin(plugin)} has {odd} {found[key].get(odd)!r} there, and {plugin[odd]!r} in the driver"
    if list(found) != list(wanted):
        return "it has " + ", ".join(map(_origin, found.values())) + ", the driver " + ", ".join(map(_origin, wanted.values()))
    if here["paths"] != expected["paths"]:
        return f"its path functions are {here['paths']}, those of the driver {expected['paths']}"
    return None


def _origin(plugin: Mapping[str, Any]) -> str:
    return f"plugin {plugin['name']!r}" + (f" ({plugin['distribution']} {plugin['version']})" if plugin["distribution"] else "")


def _is_lock(lock: Any) -> bool:
    """Whether it has what `compare_locks` reads."""
    if not (isinstance(lock, dict) and lock.get("format") == FORMAT and isinstance(lock.get("vime"), str)):  # pyright: ignore[reportUnknownMemberType]
        return False
    plugins, paths = cast("dict[str, Any]", lock).get("plugins"), cast("dict[str, Any]", lock).get("paths")
    return (
        isinstance(plugins, list)
        and isinstance(paths, dict)
        and all(isinstance(value, list) for value in cast("dict[str, Any]", paths).values())
        and all(_is_plugin(plugin) for plugin in cast("list[Any]", plugins))
    )


def _is_plugin(plugin: Any) -> bool:
    if not isinstance(plugin, dict):
        return False
    given = cast("dict[str, Any]", plugin)
    return isinstance(given.get("name"), str) and isinstance(given.get("settings"), dict) and {"distribution", "version"} <= given.keys()
