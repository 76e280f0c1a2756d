"""What is checked of a plugin before it is registered: that every hook it means to have will really be called.

pluggy registers a misspelt hook, a forgotten marker or a parameter that nothing fills without a word; here each of them
is refused with the plugin's name and the fix.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vime.errors import PluginError
from vime.plugins.discovery import nearest
from vime.plugins.hookspecs import HOOKS
from vime.plugins.loading import members
from vime.plugins.markers import PROJECT

_MARKER = f"{PROJECT}_impl"
_ORDER_OPTIONS = ("tryfirst", "trylast", "hookwrapper", "wrapper")


@dataclass(frozen=True)
class CheckedHook:
    """A function that passed: the hook it implements, its attribute name, and the spec parameters it takes in order."""

    hook: str
    attribute: str
    params: tuple[str, ...]


def check_hooks(target: types.ModuleType | type, label: str) -> list[CheckedHook]:
    """Check every function of a plugin's module or class. Raises PluginError for the first that cannot work."""
    found: dict[str, CheckedHook] = {}
    names = list(vars(target)) if inspect.ismodule(target) else dir(target)
    for name in names:
        static = inspect.getattr_static(target, name)
        function = _function_of(static)
        options = _options(static)
        if options is None:
            _check_unmarked(target, name, function, label)
            continue
        if function is None:
            raise PluginError(
                f"{label}: {name} has the marker @hookimpl, but it is a {type(static).__name__} and would never be called",
                hint="put @hookimpl on a plain function or method",
            )
        hook = options.get("specname") or name
        _check_name(hook, label)
        _check_options(hook, options, label)
        if hook in found:
            raise PluginError(
                f"{label}: {found[hook].attribute} and {name} both implement {hook}",
                hint="a plugin has one function for a hook: remove one",
            )
        found[hook] = CheckedHook(hook, name, check_function(target, hook, static, function, label))
    if not found:
        raise _nothing(target, names, label)
    _check_state(target, label)
    return [found[hook] for hook in HOOKS if hook in found]


def check_function(
    target: types.ModuleType | type | None, hook: str, static: object, function: Callable[..., Any], label: str
) -> tuple[str, ...]:
    """The spec parameters that an implementation takes, in its own order."""
    refuse_generator(function, hook, label)
    params = list(inspect.signature(function).parameters.values())
    if inspect.isclass(target) and not isinstance(static, staticmethod):
        if not params or params[0].name in HOOKS[hook].params:
            raise PluginError(f"{label}: the method {hook} has no `self`", hint=f"def {hook}(self, ...), or make it a @staticmethod")
        params = params[1:]
    taken: list[str] = []
    for param in params:
        if param.kind is param.VAR_KEYWORD:
            continue
        _check_parameter(param, hook, label)
        taken.append(param.name)
    return tuple(taken)


def refuse_generator(function: Callable[..., Any], hook: str, label: str) -> None:
    """Refuse functions with `yield`: calling one runs nothing."""
    inner = inspect.unwrap(function)
    for candidate in (function, inner):
        if inspect.isgeneratorfunction(candidate) or inspect.isasyncgenfunction(candidate):
            kind = "an async generator" if inspect.isasyncgenfunction(candidate) else "a generator"
            raise PluginError(
                f"{label}: {hook} is {kind} (it has `yield`), which would never run", hint="return the result instead of yielding it"
            )


def _check_parameter(param: inspect.Parameter, hook: str, label: str) -> None:
    allowed = HOOKS[hook].params
    listing = f"{hook} may take: " + ", ".join(allowed)
    if param.kind is param.VAR_POSITIONAL:
        raise PluginError(f"{label}: {hook} takes *{param.name}, which nothing fills", hint="name the parameters; " + listing)
    if param.name not in allowed:
        near = nearest(param.name, allowed)
        raise PluginError(
            f"{label}: {hook} has the parameter {param.name!r}, which this hook does not pass",
            hint=(f"did you mean {near!r}? " if near else "") + listing,
        )
    if param.kind is param.KEYWORD_ONLY:
        raise PluginError(
            f"{label}: the parameter {param.name!r} of {hook} is keyword-only, and is never filled that way",
            hint="remove the `*` before it",
        )


def _check_name(hook: str, label: str) -> None:
    if hook not in HOOKS:
        near = nearest(hook, HOOKS)
        raise PluginError(
            f"{label}: there is no hook {hook!r}", hint=f"did you mean {near!r}?" if near else "the hooks are: " + ", ".join(HOOKS)
        )


def _check_options(hook: str, options: dict[str, Any], label: str) -> None:
    for option in _ORDER_OPTIONS:
        if options.get(option):
            raise PluginError(
                f"{label}: {hook} is marked @hookimpl({option}=True)",
                hint="use a plain @hookimpl; the order of calls is the user's order of --plugin, and there are no wrappers",
            )


def _check_unmarked(target: types.ModuleType | type, name: str, function: Callable[..., Any] | None, label: str) -> None:
    """Refuse a function of the plugin's own that has the name of a hook and no marker."""
    if function is None or name not in HOOKS or not _is_own(target, function):
        return
    others = [key for key in vars(function) if key.endswith("_impl")]
    if others:
        raise PluginError(
            f"{label}: {name} is marked for another project ({others[0]})", hint="from vime.api import hookimpl, and mark it with that"
        )
    raise PluginError(
        f"{label}: {name} has the name of a hook but no marker, so it would never be called",
        hint=f"put @hookimpl (from vime.api) on {name}, or give it another name",
    )


def _is_own(target: types.ModuleType | type[Any], function: Callable[..., Any]) -> bool:
    """Whether a function was written for this plugin: in its class, or for a module in the same package."""
    return inspect.isclass(target) or function.__module__.partition(".")[0] == target.__name__.partition(".")[0]


def _check_state(target: types.ModuleType | type, label: str) -> None:
    if inspect.ismodule(target):
        for name in ("state_dict", "load_state_dict"):
            function = members(target).get(name)
            if inspect.isfunction(function) and _is_own(target, function):
                raise PluginError(
                    f"{label}: the module has a function {name}, which is never called: a module has no state in a checkpoint",
                    hint="make the plugin a class with the methods state_dict and load_state_dict, or give the function another name",
                )
    else:
        has = [name for name in ("state_dict", "load_state_dict") if callable(getattr(target, name, None))]
        if len(has) == 1:
            missing = "load_state_dict" if has[0] == "state_dict" else "state_dict"
            raise PluginError(f"{label}: it has {has[0]} but no {missing}, so its state could not be resumed", hint=f"add {missing}")


def _nothing(target: types.ModuleType | type, names: list[str], label: str) -> PluginError:
    where = f"{'module' if inspect.ismodule(target) else 'class'} {target.__name__}"
    own = [name for name in names if _function_of(inspect.getattr_static(target, name)) is not None]
    pairs = [(name, near) for name in own if not name.startswith("_") and (near := nearest(name, HOOKS))]
    hint = "mark its functions with @hookimpl (from vime.api); the hooks are: " + ", ".join(HOOKS)
    if pairs:
        hint = f"{pairs[0][0]} looks like the hook {pairs[0][1]}: give it that name and @hookimpl"
    return PluginError(f"{label}: {where} implements no hook", hint=hint)


def _function_of(static: object) -> Callable[..., Any] | None:
    if isinstance(static, staticmethod | classmethod):
        return static.__func__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return static if inspect.isfunction(static) else None


def is_marked(obj: object) -> bool:
    """Whether an object carries vime's @hookimpl."""
    return _options(obj) is not None


def _options(static: object) -> dict[str, Any] | None:
    """What @hookimpl left on an attribute. Instances are asked through their own dictionary, so that no property runs."""
    for holder in (static, _function_of(static)):
        options = getattr(holder, "__dict__", {}).get(_MARKER)
        if isinstance(options, dict):
            return options  # pyright: ignore[reportUnknownVariableType]
    return None
