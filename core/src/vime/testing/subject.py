"""What is being checked: an installed plugin by name, a function by path, or a plugin object at hand."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from vime.config.run_config import RunConfig
from vime.errors import ConfigError, PluginError
from vime.plugins.discovery import Catalog, PluginEntry, discover, nearest
from vime.plugins.hookspecs import HOOKS, HookSpecInfo
from vime.plugins.manager import HookFunction, PluginManager
from vime.plugins.markers import PROJECT
from vime.plugins.paths import check_path_function, resolve_path
from vime.plugins.validation import is_marked
from vime.testing.importing import Imported, import_alone

if TYPE_CHECKING:
    from vime.testing.checks.base import SubjectKind


@dataclass(frozen=True)
class Subject:
    """A target of the kit, and the means to load it afresh for every check.

    Exactly one of `entry`, `path` and `obj` is set.
    """

    target: str
    """As it was given; the name of an object."""
    entry: PluginEntry | None = None
    """An installed plugin."""
    path: str | None = None
    """A function by path, checked as its flag would call it."""
    path_hook: str | None = None
    """The hook that the function at `path` is for."""
    obj: Any = None
    """A plugin module or class that was handed over."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Configuration that every check of this target runs with, by field name."""
    catalog: Catalog | None = None
    imported: Imported | None = None
    """What importing it in a process of its own showed; None for what was handed over."""

    @property
    def kind(self) -> SubjectKind:
        """What sort of target this is."""
        if self.entry is not None:
            return "package"
        if self.obj is not None:
            return "object"
        return "path" if self.imported is not None else "function"

    def config(self, **overrides: Any) -> RunConfig:
        """The configuration of a run that enables this target, with `args` and then `overrides` over the defaults."""
        values: dict[str, Any] = {**self.args, **overrides}
        if self.entry is not None:
            values |= {"plugin": [self.entry.name], "plugin_settings": {self.entry.name: dict(self.settings)} if self.settings else {}}
        elif self.path is not None and self.path_hook is not None:
            info = HOOKS[self.path_hook]
            assert info.path_flag is not None
            values[info.path_flag] = [self.path] if info.repeatable else self.path
            if self.path_hook == "policy_loss":
                values["loss_type"] = "custom_loss"
        return RunConfig(**values)

    def with_settings(self, settings: Mapping[str, Any]) -> Subject:
        """The same target with other settings of its own."""
        return dataclasses.replace(self, settings=settings)

    def load(self, config: RunConfig | None = None) -> PluginManager:
        """A manager of its own with this target alone, built as a run would. Raises PluginError for what a run refuses.

        What could not be imported in a process of its own is not imported here.
        """
        if self.imported is not None and self.imported.error is not None:
            raise self.imported.error
        if self.obj is not None:
            manager = PluginManager()
            manager.add(self.obj, name=self.target, settings=self.settings)
            return manager
        return PluginManager.load(config or self.config(), catalog=self.catalog)

    def hooks(self) -> list[str]:
        """The hooks that the target implements, in step order. Raises PluginError where it cannot be loaded."""
        manager = self.load()
        if self.path_hook is not None:
            return [self.path_hook]
        (plugin,) = manager.plugins
        return [hook for hook in HOOKS if hook in plugin.hooks]

    def function(self, hook: str, manager: PluginManager | None = None) -> HookFunction:
        """The target's function for `hook`, from `manager` or freshly loaded."""
        return (manager or self.load()).implementations(hook)[0]


def find_subject(
    target: Any,
    *,
    hook: str | None = None,
    settings: Mapping[str, Any] | None = None,
    args: Mapping[str, Any] | None = None,
    catalog: Catalog | None = None,
    timeout: float = 30.0,
) -> Subject:
    """The subject that `target` names: a plugin's name, `pkg.mod:fn`, `pkg.mod.fn`, `./file.py:fn`, or a module, class or function.

    `hook` says what a function is for; without it the function's own name, or its marker, has to. Names and paths are
    imported in a process of their own first, for `timeout` seconds at most. Raises PluginError for a name or path that
    fits nothing, and where the hook of a function cannot be told.
    """
    settings, args = settings or {}, _checked_args(args or {})
    if not isinstance(target, str):
        return _handed_over(target, hook, settings, args)
    catalog = catalog or discover()
    named = catalog.named(target)
    if named:
        entry = named[0]
        imported = import_alone(entry.target, entry.label, is_path=False, timeout=timeout)
        return Subject(target, entry=entry, settings=settings, args=args, catalog=catalog, imported=imported)
    if ":" not in target and "." not in target:
        raise catalog.unknown(target)
    return _by_path(target, hook, settings, args, catalog, timeout)


def _checked_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """`args`, once every name and value of it is one that a configuration takes."""
    for name in args:
        if name not in RunConfig.model_fields:
            near = nearest(name, RunConfig.model_fields)
            raise ConfigError(f"args: there is no configuration field {name!r}", hint=f"did you mean {near!r}?" if near else None)
    try:
        RunConfig(**args)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"args: {'.'.join(map(str, first['loc']))}: {first['msg']}, got {first['input']!r}") from None
    return args


def _handed_over(target: Any, hook: str | None, settings: Mapping[str, Any], args: Mapping[str, Any]) -> Subject:
    """A module or class as a plugin; a function as the path that names it."""
    if inspect.ismodule(target) or (inspect.isclass(target) and (hook is None or _has_hooks(target))):
        name = target.__qualname__ if inspect.isclass(target) else target.__name__
        return Subject(name, obj=target, settings=settings, args=args)
    if not inspect.isroutine(target) and not inspect.isclass(target):
        raise PluginError(
            f"{target!r} is neither a plugin module or class nor a function", hint="hand over the class itself, or a function of a module"
        )
    path = f"{target.__module__}:{target.__qualname__}"
    if "<" in target.__qualname__:
        raise PluginError(f"{path}: no flag can name a function that is made inside another one", hint="define it at module level")
    _refuse_settings(path, settings)
    return Subject(path, path=path, path_hook=_hook_of(target, hook, path), args=args)


def _by_path(
    path: str, hook: str | None, settings: Mapping[str, Any], args: Mapping[str, Any], catalog: Catalog, timeout: float
) -> Subject:
    if hook is not None:
        _refuse_hook_without_flag(path, hook)
    known = hook or _hook_by_name(path.replace(":", ".").rpartition(".")[2])
    label = f"{HOOKS[known].flag} {path}" if known is not None else path
    imported = import_alone(path, label, is_path=True, timeout=timeout)
    if imported.error is not None:
        if imported.unknown:
            raise imported.error
        return Subject(path, path=path, path_hook=known, args=args, imported=imported)
    with contextlib.redirect_stdout(io.StringIO()):
        obj = resolve_path(path, label)
    if inspect.ismodule(obj) or (inspect.isclass(obj) and _has_hooks(obj)):
        return Subject(path, obj=obj, settings=settings, args=args, catalog=catalog, imported=imported)
    _refuse_settings(path, settings)
    return Subject(path, path=path, path_hook=_hook_of(obj, hook, path), args=args, catalog=catalog, imported=imported)


def _has_hooks(cls: type) -> bool:
    """Whether a class is a plugin; another one is what --data-source-path takes."""
    return any(is_marked(inspect.getattr_static(cls, name)) for name in dir(cls))


def _refuse_settings(path: str, settings: Mapping[str, Any]) -> None:
    if settings:
        raise ConfigError(
            f"{path}: a function has no settings, and {', '.join(settings)} was set", hint="settings belong to a plugin class"
        )


def _hook_of(function: Any, hook: str | None, target: str) -> str:
    """The hook that a function is for, as it was said, or by its marker or name. Raises PluginError with those that it could be for."""
    if hook is not None:
        _refuse_hook_without_flag(target, hook)
        return hook
    name = getattr(function, "__name__", "")
    by_marker: dict[str, Any] = getattr(function, f"{PROJECT}_impl", None) or {}
    declared = _hook_by_name(by_marker.get("specname") or name)
    if declared is not None:
        return declared
    fitting = [info.name for info in HOOKS.values() if info.path_flag and _would_call(function, info)]
    choices = fitting or [info.name for info in HOOKS.values() if info.path_flag]
    raise PluginError(
        f"{target}: which hook is this function for?",
        hint=("its arguments fit --hook " if fitting else "none is called with its arguments; there are --hook ") + " | ".join(choices),
    )


def _hook_by_name(name: str) -> str | None:
    return name if name in HOOKS and HOOKS[name].path_flag else None


def _refuse_hook_without_flag(target: str, hook: str) -> None:
    if _hook_by_name(hook) is None:
        with_flag = [name for name, info in HOOKS.items() if info.path_flag]
        near = nearest(hook, with_flag)
        what = "there is no path flag for the hook" if hook in HOOKS else "there is no hook"
        hint = f"did you mean --hook {near}?" if near and near != hook else "--hook takes: " + ", ".join(with_flag)
        raise PluginError(f"{target}: {what} {hook!r}", hint=hint)


def _would_call(function: Any, info: HookSpecInfo) -> bool:
    """Whether the flag of this hook could call the function with its positional arguments."""
    try:
        check_path_function(function, info, "")
    except PluginError:
        return False
    return True
