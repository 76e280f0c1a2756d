"""The plugin manager of one run: who implements which hook, in the user's order."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pluggy
from packaging.utils import canonicalize_name

from vime.errors import ConfigError, ContractError, PluginError
from vime.plugins.discovery import Catalog, PluginEntry, discover, nearest, plugin_label
from vime.plugins.function import HookFunction, HookTimes
from vime.plugins.hookspecs import EVAL_PATH_FLAG, HOOKS, VimeSpec
from vime.plugins.loading import build, build_settings, describe, load_target, settings_class
from vime.plugins.lock import make_lock
from vime.plugins.markers import PROJECT
from vime.plugins.paths import load_path_function
from vime.plugins.reference import HookReference
from vime.plugins.settings import Settings, settings_as_json
from vime.plugins.validation import CheckedHook, check_hooks

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig

__all__ = ["HookFunction", "LoadedPlugin", "PluginManager", "load_reference"]

ROUTED = "custom_rm"
"""The hook of kind "one" that several enabled plugins may implement: the rm_type of a sample chooses."""


@dataclass(frozen=True)
class LoadedPlugin:
    """An enabled plugin: where it comes from, the object that was built, and its functions by hook."""

    name: str
    distribution: str | None
    """None for an object that was handed over with `add`."""
    version: str | None
    target: str
    obj: Any
    settings: Settings | None = None
    hooks: dict[str, HookFunction] = field(default_factory=dict[str, HookFunction])

    @property
    def label(self) -> str:
        """How messages name this plugin: `plugin 'math' (vime-rm-math 0.1.0)`."""
        return plugin_label(self.name, self.distribution, self.version)


class PluginManager:
    """The plugins and path functions of one run.

    `load` builds it from a configuration. An empty one takes plugin objects from `add`, which tests and the contract
    kit use; what `load` refuses, `add` refuses too.
    """

    def __init__(self) -> None:
        self.times = HookTimes()
        self._pluggy = pluggy.PluginManager(PROJECT)
        self._pluggy.add_hookspecs(VimeSpec)
        self._plugins: list[LoadedPlugin] = []
        self._by_path: dict[tuple[str, str], HookFunction] = {}
        self._path_functions: dict[str, list[HookFunction]] = {}
        self._eval_function: HookFunction | None = None

    @classmethod
    def load(cls, config: RunConfig, *, catalog: Catalog | None = None, announce: Callable[[str], None] | None = None) -> PluginManager:
        """Import, check and build the plugins and path functions that `config` names, and nothing else.

        `announce` is told the label of each before it is imported.
        Raises PluginError for a plugin or path function that is missing, broken or refused and for conflicts,
        ConfigError for plugin names and settings that fit nothing.
        """
        manager = cls()
        catalog = catalog or discover()
        names = selected(config.plugin, config.no_plugin, catalog)
        settings = {canonicalize_name(name): values for name, values in config.plugin_settings.items()}
        check_settings_names(config.plugin_settings, names, catalog)
        for name in names:
            entry = catalog.find(name)
            if announce is not None:
                announce(entry.label)
            manager.enable(entry, settings.get(canonicalize_name(name), {}))
        for info in HOOKS.values():
            given = getattr(config, info.path_flag) if info.path_flag else None
            for path in [given] if isinstance(given, str) else given or ():
                if announce is not None:
                    announce(f"{info.flag} {path}")
                manager._path_functions.setdefault(info.name, []).append(manager.path_function(path, info.name))
        eval_path = getattr(config, EVAL_PATH_FLAG)
        if eval_path:
            if announce is not None:
                announce(f"--eval-function-path {eval_path}")
            manager._eval_function = manager.path_function(eval_path, "generate_rollout", path_flag=EVAL_PATH_FLAG)
        manager.check_conflicts()
        return manager

    def enable(self, entry: PluginEntry, settings: Mapping[str, Any] | None = None) -> LoadedPlugin:
        """Import an installed plugin, build it with its settings and register it. A refused one leaves no trace."""
        target = load_target(entry.target, entry.label)
        return self._register(target, entry.name, entry.distribution, entry.version, entry.target, settings or {})

    def add(self, target: Any, *, name: str, settings: Mapping[str, Any] | None = None) -> LoadedPlugin:
        """Register a plugin module or class that was not discovered, under this name."""
        return self._register(target, name, None, None, getattr(target, "__qualname__", target.__name__), settings or {})

    def _register(
        self, target: Any, name: str, distribution: str | None, version: str | None, where: str, raw: Mapping[str, Any]
    ) -> LoadedPlugin:
        label = plugin_label(name, distribution, version)
        if self.get(name) is not None:
            raise PluginError(f"{label}: a plugin of this name is already enabled", hint="enable each plugin once")
        checked = check_hooks(target, label)
        settings = build_settings(settings_class(target, label), raw, label)
        obj = build(target, settings, label)
        functions = self._register_in_pluggy(obj, name, label, checked)
        as_json = settings_as_json(settings)
        loaded = LoadedPlugin(name, distribution, version, where, obj, settings)
        for hook in checked:
            reference = None
            if distribution is not None:
                reference = HookReference(hook.hook, plugin=name, distribution=distribution, version=version, settings=as_json)
            loaded.hooks[hook.hook] = HookFunction(
                plugin=name,
                label=label,
                hook=hook.hook,
                function=functions[hook.hook],
                order=hook.params,
                times=self.times,
                reference=reference,
            )
        self._plugins.append(loaded)
        return loaded

    def _register_in_pluggy(self, obj: Any, name: str, label: str, checked: Sequence[CheckedHook]) -> dict[str, Callable[..., Any]]:
        """Let pluggy bind the functions and compare them with the specs; returns the bound functions by hook."""
        try:
            self._pluggy.register(obj, name)
            self._pluggy.check_pending()
            callers = self._pluggy.get_hookcallers(obj) or []
            functions = {caller.name: impl.function for caller in callers for impl in caller.get_hookimpls() if impl.plugin is obj}
            if set(functions) != {hook.hook for hook in checked}:
                raise ValueError(f"pluggy found {sorted(functions)}")
        except (pluggy.PluginValidationError, ValueError) as error:
            if self._pluggy.has_plugin(name):
                self._pluggy.unregister(name=name)
            raise PluginError(f"{label}: it cannot be registered: {describe(error)}") from error
        return cast("dict[str, Callable[..., Any]]", functions)

    def check_conflicts(self) -> None:
        """Refuse two plugins that claim one hook, unless a path function takes it from both."""
        for info in HOOKS.values():
            claimants = [plugin for plugin in self._plugins if info.name in plugin.hooks]
            if info.kind == "one" and info.name != ROUTED and len(claimants) > 1 and not self._path_functions.get(info.name):
                raise PluginError(
                    f"{' and '.join(plugin.label for plugin in claimants)} both implement {info.name}, which only one plugin can",
                    hint=f"leave one of them out: --no-plugin {claimants[-1].name}"
                    + (f", or choose a function with {info.flag}" if info.flag else ""),
                )

    @property
    def plugins(self) -> tuple[LoadedPlugin, ...]:
        """The enabled plugins in the user's order."""
        return tuple(self._plugins)

    def get(self, name: str) -> LoadedPlugin | None:
        """The enabled plugin of this name, compared as PEP 503 does."""
        key = canonicalize_name(name)
        return next((plugin for plugin in self._plugins if canonicalize_name(plugin.name) == key), None)

    def implementations(self, hook: str) -> list[HookFunction]:
        """All functions for this hook: plugins in the user's order, then path functions."""
        functions = [plugin.hooks[hook] for plugin in self._plugins if hook in plugin.hooks]
        return functions + self._path_functions.get(_known(hook), [])

    def claimed(self, hook: str, *, evaluation: bool = False) -> HookFunction | None:
        """The one function for a hook of kind "one": the path function, else the plugin's, else None for the built-in.

        `evaluation` matters to generate_rollout, whose --eval-function-path goes first then. Of custom_rm it is the path
        function, or the only plugin's; with several plugins it is None, and the rm_type of each sample chooses.
        """
        if evaluation and hook == "generate_rollout" and self._eval_function is not None:
            return self._eval_function
        by_path = self._path_functions.get(_known(hook))
        if by_path:
            return by_path[-1]
        functions = self.implementations(hook)
        return functions[0] if len(functions) == 1 else None

    def path_function(self, path: str, hook: str, *, path_flag: str | None = None) -> HookFunction:
        """The function that `path` names, checked for `hook` and adapted to it. Resolved once.

        `path_flag` is the attribute of the configuration that named it, where it is not the hook's own.
        """
        key = (path, _known(hook))
        if key not in self._by_path:
            self._by_path[key] = load_path_function(path, hook, self.times, path_flag=path_flag)
        return self._by_path[key]

    def path_labels(self) -> list[str]:
        """The path functions that flags name, each with its flag's value."""
        functions = [function for given in self._path_functions.values() for function in given]
        return [function.label for function in [*functions, *([self._eval_function] if self._eval_function else [])]]

    def state_dict(self) -> dict[str, Any]:
        """A copy of the state of every plugin that has one, by plugin name: plain JSON data.

        Raises ContractError, naming the plugin, for a state that JSON does not give back (tuples come back as lists).
        """
        return {plugin.name: _state_of(plugin) for plugin in self._plugins if _stateful(plugin)}

    def load_state_dict(self, state: Mapping[str, Any], *, ignore_missing: bool = False) -> None:
        """Give every plugin its part of `state_dict()` back.

        Raises PluginError for a state whose plugin is not enabled, unless `ignore_missing`. A plugin without a state
        there keeps the one it was built with.
        """
        for name, value in state.items():
            plugin = self.get(name)
            if plugin is not None and _stateful(plugin):
                try:
                    plugin.obj.load_state_dict(value)
                except Exception as error:
                    error.add_note(f"in load_state_dict of {plugin.label}")
                    raise
            elif not ignore_missing:
                who, what = (f"plugin {name!r}", "is not enabled") if plugin is None else (plugin.label, "no longer has one")
                hint = f"--plugin {name}, or --ignore-plugin-lock"
                raise PluginError(f"the checkpoint holds a state of {who}, which {what}", hint=hint)

    def lock(self) -> dict[str, Any]:
        """What identifies the plugins of this run: names, distributions, versions, settings, path functions."""
        plugins = [
            {
                "name": plugin.name,
                "distribution": plugin.distribution,
                "version": plugin.version,
                "target": plugin.target,
                "settings": {} if plugin.settings is None else plugin.settings.model_dump(mode="json"),
            }
            for plugin in self._plugins
        ]
        paths = {
            (HOOKS[hook].path_flag or hook): [function.plugin.removeprefix("path:") for function in functions]
            for hook, functions in self._path_functions.items()
        }
        if self._eval_function is not None:
            paths[EVAL_PATH_FLAG] = [self._eval_function.plugin.removeprefix("path:")]
        return make_lock(plugins, paths)

    def take_timings(self) -> dict[str, float]:
        """Milliseconds by `<plugin>/<hook>_ms` since the last call."""
        return self.times.take()


def selected(plugins: Sequence[str], removed: Sequence[str], catalog: Catalog) -> list[str]:
    """The names to enable: `plugins` in order, each once, without `removed`. Raises PluginError for a removal that fits nothing."""
    names = list({canonicalize_name(name): name for name in reversed(plugins)}.values())[::-1]
    keys = [canonicalize_name(name) for name in names]
    for name in removed:
        if canonicalize_name(name) not in keys and not catalog.named(name):
            near = nearest(canonicalize_name(name), keys)
            raise PluginError(f"--no-plugin {name}: there is no plugin of this name", hint=f"did you mean {near!r}?" if near else None)
    without = {canonicalize_name(name) for name in removed}
    return [name for name, key in zip(names, keys, strict=True) if key not in without]


def check_settings_names(settings: Mapping[str, Any], enabled: Sequence[str], catalog: Catalog) -> None:
    """Refuse settings of a plugin that does not exist. Those of an installed one that is not enabled have no effect."""
    keys = {canonicalize_name(name) for name in enabled}
    for name in settings:
        if canonicalize_name(name) not in keys and not catalog.named(name):
            near = nearest(name, [*enabled, *(entry.name for entry in catalog.entries)])
            listing = ", ".join(enabled) or "none"
            raise ConfigError(
                f"settings are given for the plugin {name!r}, which is not enabled; enabled: {listing}",
                hint=f"did you mean {near!r}?" if near else f"enable it with --plugin {name}, or remove its settings",
            )


def load_reference(reference: HookReference) -> HookFunction:
    """Find a plugin's function again in another process. Raises PluginError when it is not the same plugin there."""
    assert reference.plugin is not None
    entry = discover().find(reference.plugin)
    if (entry.distribution, entry.version) != (reference.distribution, reference.version):
        wanted = plugin_label(reference.plugin, reference.distribution, reference.version)
        raise PluginError(
            f"{wanted} is needed in this process, and {entry.distribution} {entry.version} is installed", hint="install the same version"
        )
    return PluginManager().enable(entry, json.loads(reference.settings)).hooks[reference.hook]


def _stateful(plugin: LoadedPlugin) -> bool:
    return not inspect.ismodule(plugin.obj) and callable(getattr(plugin.obj, "state_dict", None))


def _state_of(plugin: LoadedPlugin) -> Any:
    try:
        state: Any = plugin.obj.state_dict()
    except Exception as error:
        error.add_note(f"in state_dict of {plugin.label}")
        raise
    try:
        _refuse_odd_keys(state)
        return json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ContractError(
            f"{plugin.label}: its state_dict() is not plain JSON data: {error}",
            hint="return dicts with string keys, lists, strings, finite numbers, booleans and None",
        ) from error


def _refuse_odd_keys(value: Any) -> None:
    """Raise TypeError for a key in a nested value that is not a string: JSON would turn it into one in silence."""
    if isinstance(value, dict):
        for key, inner in cast("dict[Any, Any]", value).items():
            if not isinstance(key, str):
                raise TypeError(f"{key!r} is a key and not a string")
            _refuse_odd_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in cast("list[Any]", value):
            _refuse_odd_keys(inner)


def _known(hook: str) -> str:
    if hook not in HOOKS:
        raise KeyError(f"there is no hook {hook!r}")
    return hook
