"""What is being checked: an installed plugin by name, a function by path, or a plugin object at hand."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vime.config.run_config import RunConfig
from vime.errors import PluginError
from vime.plugins.discovery import Catalog, PluginEntry, discover
from vime.plugins.hookspecs import HOOKS
from vime.plugins.manager import HookFunction, PluginManager
from vime.plugins.paths import resolve_path
from vime.plugins.validation import is_marked
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

    @property
    def kind(self) -> SubjectKind:
        """Whether this is an installed plugin, an object at hand, or a function by path."""
        return "package" if self.entry is not None else "path" if self.path is not None else "object"

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

    def load(self, config: RunConfig | None = None) -> PluginManager:
        """A manager of its own with this target alone, built as a run would. Raises PluginError for what a run refuses."""
        if self.obj is not None:
            manager = PluginManager()
            manager.add(self.obj, name=self.target, settings=self.settings)
            return manager
        return PluginManager.load(config or self.config(), catalog=self.catalog)

    def hooks(self) -> list[str]:
        """The hooks that the target implements, in step order. Raises PluginError where it cannot be loaded."""
        if self.path_hook is not None:
            return [self.path_hook]
        (plugin,) = self.load().plugins
        return [hook for hook in HOOKS if hook in plugin.hooks]

    def hooks_by_declaration(self) -> list[str]:
        """The hooks that are known without loading the target: that of a function by path."""
        return [self.path_hook] if self.path_hook is not None else []

    def function(self, hook: str, manager: PluginManager | None = None) -> HookFunction:
        """The target's function for `hook`, from `manager` or freshly loaded."""
        return (manager or self.load()).implementations(hook)[0]


def find_subject(
    target: str | Any,
    *,
    hook: str | None = None,
    settings: Mapping[str, Any] | None = None,
    args: Mapping[str, Any] | None = None,
    catalog: Catalog | None = None,
) -> Subject:
    """The subject that `target` names: a plugin's name, `pkg.mod:fn`, `pkg.mod.fn`, `./file.py:fn`, or a module or class.

    `hook` says what a function by path is for; without it the function's own name, or its marker, has to. Raises
    PluginError for a name or path that fits nothing, and where the hook of a function cannot be told.
    """
    settings, args = settings or {}, args or {}
    if inspect.isroutine(target):
        target = _path_of(target)
    if not isinstance(target, str):
        name = getattr(target, "__qualname__", None) or target.__name__
        return Subject(name, obj=target, settings=settings, args=args)
    catalog = catalog or discover()
    named = catalog.named(target)
    if named:
        return Subject(target, entry=named[0], settings=settings, args=args, catalog=catalog)
    if ":" not in target and "." not in target:
        raise catalog.unknown(target)
    obj = resolve_path(target, target)
    if inspect.ismodule(obj) or (inspect.isclass(obj) and hook is None and any(is_marked(value) for value in vars(obj).values())):
        return Subject(target, obj=obj, settings=settings, args=args)
    return Subject(target, path=target, path_hook=_hook_of(obj, hook, target), args=args)


def _path_of(function: Callable[..., Any]) -> str:
    """The path by which a flag would name this function."""
    path = f"{function.__module__}:{function.__qualname__}"
    if "<" in function.__qualname__:
        raise PluginError(f"{path}: a function that is made inside another one cannot be named by a flag", hint="define it at module level")
    return path


def _hook_of(function: Callable[..., Any], hook: str | None, target: str) -> str:
    with_flag = [name for name, info in HOOKS.items() if info.path_flag]
    if hook is not None:
        if hook not in with_flag:
            raise PluginError(f"{target}: there is no path flag for a hook {hook!r}", hint="--hook takes: " + ", ".join(with_flag))
        return hook
    name = getattr(function, "__name__", "")
    if name in with_flag:
        return name
    raise PluginError(f"{target}: which hook is this function for?", hint="name it: --hook " + " | ".join(with_flag))
