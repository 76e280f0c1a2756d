"""From a target in an entry point to the object whose hooks are called: import, settings, construction."""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from vime.errors import PluginError, VimeError
from vime.plugins.discovery import missing_module, nearest, split_target
from vime.plugins.settings import Settings

TRACEBACK_HINT = "--traceback shows where it was raised"


def describe(error: BaseException) -> str:
    """Type and message of an exception on one line, without control characters. One whose message cannot be made is named by its type."""
    try:
        text = " ".join(str(error).split())
    except Exception as failure:  # noqa: BLE001 - whatever somebody else's __str__ raises
        text = f"(its message raised {type(failure).__name__})"
    text = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    if len(text) > 300:
        text = text[:297] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def members(obj: Any) -> dict[str, Any]:
    """The attributes of a module or class itself, without asking descriptors or a module's `__getattr__`."""
    return dict(getattr(obj, "__dict__", {}))


def name_here(module: str) -> str | None:
    """The hint for a module of slime, whose packages have the same names here; None for any other module."""
    root, _, rest = module.partition(".")
    if root != "slime":
        return None
    here = f"vime.{rest.replace('sglang', 'vllm')}" if rest else "vime"
    return f"functions written for slime run unchanged but for the name of the package: write {here} in place of {module}"


def import_reporting(module: str, label: str) -> types.ModuleType:
    """Import somebody else's module; whatever it raises becomes a PluginError that names `label`."""
    try:
        return importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except VimeError as error:
        raise PluginError(f"{label}: {error.message}", hint=error.hint) from error
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            missing = missing_module(module) or error.name
            raise PluginError(f"{label}: there is no module {missing!r}", hint="check the spelling, and that it is installed") from error
        hint = f"install the distribution that brings {error.name!r} into this environment"
        raise PluginError(f"{label}: importing {module} raised {describe(error)}", hint=name_here(error.name or "") or hint) from error
    except BaseException as error:
        raise PluginError(f"{label}: importing {module} raised {describe(error)}", hint=TRACEBACK_HINT) from error


def load_target(target: str, label: str) -> types.ModuleType | type:
    """The module or class that an entry point names."""
    module_name, attr = split_target(target)
    obj: Any = import_reporting(module_name, label)
    if attr is None:
        return obj
    for part in attr.split("."):
        if not hasattr(obj, part):
            classes = [name for name, value in members(obj).items() if inspect.isclass(value)]
            near = nearest(part, classes)
            hint = f"did you mean {near!r}?" if near else "the classes there: " + (", ".join(classes) or "none")
            raise PluginError(f"{label}: its entry point names {target!r}, and {module_name} has no {part!r}", hint=hint)
        obj = getattr(obj, part)
    if not (inspect.isclass(obj) or inspect.ismodule(obj)):
        raise PluginError(
            f"{label}: its entry point names {target!r}, a {type(obj).__name__}",
            hint="an entry point names a module with @hookimpl functions, or a class with @hookimpl methods",
        )
    return obj


def settings_class(target: types.ModuleType | type, label: str) -> type[Settings] | None:
    """The `Settings` that a plugin class declares, or None."""
    if inspect.ismodule(target):
        return None
    declared = inspect.getattr_static(target, "Settings", None)
    if declared is None:
        return None
    if not (inspect.isclass(declared) and issubclass(declared, Settings)):
        raise PluginError(
            f"{label}: {target.__name__}.Settings is not a subclass of vime.api.Settings",
            hint="from vime.api import Settings, and derive the inner class from it",
        )
    return declared


def build_settings(declared: type[Settings] | None, raw: Mapping[str, Any], label: str) -> Settings | None:
    """Validate what the user set. Raises PluginError with the valid keys for unknown ones, and with the value for wrong ones."""
    if declared is None:
        if raw:
            raise PluginError(
                f"{label}: it takes no settings, but {', '.join(map(repr, raw))} " + ("was" if len(raw) == 1 else "were") + " set",
                hint="remove them from --set and plugin_settings",
            )
        return None
    try:
        return declared(**raw)
    except ValidationError as error:
        problems = [_problem(item, declared) for item in error.errors()]
        hints = [hint for _, hint in problems if hint]
        raise PluginError(f"{label}: " + "; ".join(text for text, _ in problems), hint=hints[0] if hints else _valid(declared)) from error
    except Exception as error:
        raise PluginError(f"{label}: its Settings raised {describe(error)}", hint=_valid(declared)) from error


def _problem(item: Any, declared: type[Settings]) -> tuple[str, str | None]:
    """One pydantic error as text, and a hint for it."""
    where = ".".join(map(str, item["loc"]))
    if item["type"] == "extra_forbidden":
        near = nearest(where, declared.model_fields)
        return f"unknown setting {where!r}", (f"did you mean {near!r}? " if near else "") + _valid(declared)
    if item["type"] == "missing":
        return f"the setting {where!r} is required", None
    raised = item.get("ctx", {}).get("error")  # what a validator of the plugin raised; pydantic puts words of its own before it
    message = str(raised) if isinstance(raised, Exception) else item["msg"]
    if not where:
        return f"its settings do not fit together: {message}", None
    return f"setting {where!r}: {message}, got {item['input']!r}", None


def _valid(declared: type[Settings]) -> str:
    return "settings: " + (", ".join(declared.model_fields) or "none")


def build(target: types.ModuleType | type, settings: Settings | None, label: str) -> Any:
    """The object whose hooks are called: the module itself, or the class built with its settings."""
    if inspect.ismodule(target):
        return target
    takes = _constructor_takes_settings(target, settings, label)
    try:
        plugin = target(settings=settings) if takes else target()
        if settings is not None and not takes:
            plugin.settings = settings
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(f"{label}: building {target.__name__} raised {describe(error)}", hint=TRACEBACK_HINT) from error
    return plugin


def _constructor_takes_settings(target: type, settings: Settings | None, label: str) -> bool:
    try:
        params = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return False
    takes = False
    for param in params:
        if param.name == "settings" and param.kind is not param.POSITIONAL_ONLY:
            takes = True
        elif param.default is param.empty and param.kind not in (param.VAR_POSITIONAL, param.VAR_KEYWORD):
            raise PluginError(
                f"{label}: {target.__name__} needs the argument {param.name!r}, and vime has nothing to pass for it",
                hint="the constructor of a plugin class takes `settings` or nothing",
            )
    if takes and settings is None:
        raise PluginError(
            f"{label}: the constructor of {target.__name__} takes `settings`, but the class declares none",
            hint="add an inner `class Settings(Settings)` derived from vime.api.Settings",
        )
    return takes
