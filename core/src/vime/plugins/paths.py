"""Functions that a flag names by path: `pkg.mod.fn`, `pkg.mod:attr`, `./file.py:fn`.

They are called in upstream's style: positionally, in the order of the hook's `path_args`, whatever the function calls
its own parameters. `evaluation`, `engine` and the like go by keyword, to functions that have a parameter of that name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import inspect
import pkgutil
import sys
import types
from pathlib import Path
from typing import Any

from vime.errors import PluginError, VimeError
from vime.plugins.discovery import missing_module, nearest
from vime.plugins.function import HookFunction, HookTimes
from vime.plugins.hookspecs import HOOKS, HookSpecInfo
from vime.plugins.loading import TRACEBACK_HINT, describe, import_reporting, members, name_here
from vime.plugins.reference import HookReference
from vime.plugins.validation import check_function, is_marked, refuse_generator

FORMS = "write pkg.module.function, pkg.module:function or ./file.py:function"
_FILE_PREFIX = "vime_file_"
DATA_SOURCE_METHODS = ("get_samples", "add_samples", "save", "load", "__len__")


def load_path_function(path: str, hook: str, times: HookTimes | None = None, *, path_flag: str | None = None) -> HookFunction:
    """The function that `path` names, checked for `hook` and adapted to it. Raises PluginError with the part that failed.

    Errors name the hook's path flag, or `path_flag` where another one named the function.
    """
    info = HOOKS[hook] if path_flag is None else dataclasses.replace(HOOKS[hook], path_flag=path_flag)
    where = info.flag or hook
    obj = resolve_path(path, f"{where} {path}")
    order, keywords = check_path_function(obj, info, f"{where} {path}")
    return HookFunction(
        plugin=f"path:{path}",
        label=f"path function {path}",
        hook=hook,
        function=obj,
        order=order,
        keywords=keywords,
        times=times,
        reference=HookReference(hook=hook, path=_absolute(path)),
    )


def _absolute(path: str) -> str:
    """The same path from any working directory."""
    file, colon, attr = path.rpartition(":")
    return f"{Path(file).expanduser().resolve()}:{attr}" if colon and file.endswith(".py") else path


def resolve_path(path: str, label: str) -> Any:
    """The object at `path`. Modules are looked for as Python does, and then in the current directory."""
    if not isinstance(path, str) or not path.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PluginError(f"{label}: {path!r} is not a path to a function", hint=FORMS)
    here = _current_directory()
    if here is not None:
        _add_to_path(here)
    head, colon, attr = path.rpartition(":")
    if ":" in head:
        raise PluginError(f"{label}: there is more than one colon in it", hint=FORMS)
    if path.endswith(".py") or head.endswith(".py"):
        if not colon or not attr or path.endswith(".py"):
            raise PluginError(f"{label}: it names a file and no function in it", hint=f"{path.rstrip(':')}:FUNCTION")
        return _attribute(_load_file(head, label), attr, label)
    if colon:
        if not head or not attr:
            raise PluginError(f"{label}: nothing {'after' if head else 'before'} the colon", hint=FORMS)
        return _attribute(_import(head, label), attr, label)
    return _resolve_dotted(path, label)


def _resolve_dotted(path: str, label: str) -> Any:
    """`pkg.mod.fn` or `pkg.mod.Class.method`: the longest part that is a module is imported, the rest are attributes."""
    file, _, in_file = path.rpartition(".py.")
    if file and Path(f"{file}.py").is_file():
        here = f"{file}.py" if "/" in file else f"./{file}.py"
        raise PluginError(f"{label}: {file}.py is a file, whose function stands after a colon", hint=f"did you mean {here}:{in_file}?")
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise PluginError(f"{label}: {path!r} is not a path to a function", hint=FORMS)
    if parts[0] == "slime" and missing_module("slime") is not None:
        raise PluginError(f"{label}: there is no module 'slime'", hint=name_here(path))
    module = _import(parts[0], label)
    rest = parts[1:]
    while rest:
        name = f"{module.__name__}.{rest[0]}"
        if rest[0] in members(module) and (len(rest) == 1 or not inspect.ismodule(members(module)[rest[0]])):
            break
        if missing_module(name) is not None and (len(rest) == 1 or hasattr(module, rest[0])):
            break
        module = _import(name, label)
        rest = rest[1:]
    if not rest:
        raise PluginError(f"{label}: {path} is a module", hint=f"name a function in it: {_offer(module)}")
    return _attribute(module, ".".join(rest), label)


def _import(name: str, label: str) -> types.ModuleType:
    missing = missing_module(name)
    if missing is None:
        return import_reporting(name, label)
    parent, _, last = missing.rpartition(".")
    if not parent:
        here = _current_directory()
        near = nearest(missing, [found.name for found in pkgutil.iter_modules([str(here)])]) if here is not None else None
        hint = f"did you mean {near!r}?" if near else f"run from the directory that holds {missing}, install it, or set PYTHONPATH"
        raise PluginError(f"{label}: there is no module {missing!r}", hint=hint)
    package = import_reporting(parent, label)
    if not hasattr(package, "__path__"):
        raise PluginError(f"{label}: there is no module {missing!r}; {parent} is a module, not a package", hint=FORMS)
    modules = [found.name for found in pkgutil.iter_modules(package.__path__)]
    raise PluginError(
        f"{label}: there is no module {missing!r}; {parent} has {', '.join(modules) or 'no modules'}",
        hint=_near_hint(last.replace("sglang", "vllm"), modules),
    )


def _attribute(module: types.ModuleType, attr: str, label: str) -> Any:
    obj: Any = module
    walked = module.__name__
    for part in attr.split("."):
        try:
            obj = getattr(obj, part)
        except AttributeError as error:
            offers = _public_callables(obj)
            what = walked if not inspect.ismodule(obj) else _file_name(obj) or f"module {walked}"
            listing = ", ".join(offers) or "no function"
            raise PluginError(f"{label}: {what} has no {part!r}; it offers {listing}", hint=_near_hint(part, offers)) from error
        except VimeError as error:
            raise PluginError(f"{label}: {error.message}", hint=error.hint) from error
        walked += f".{part}"
    return obj


def _file_name(module: types.ModuleType) -> str | None:
    """The file's name of a module that was loaded from a file."""
    return Path(str(module.__file__)).name if module.__name__.startswith(_FILE_PREFIX) else None


def _load_file(name: str, label: str) -> types.ModuleType:
    """Import a .py file under a name made from its full path, once; its own directory is searched for what it imports."""
    file = Path(name).expanduser()
    if not file.is_file():
        files = sorted(found.name for found in file.parent.glob("*.py")) if file.parent.is_dir() else []
        where = f"{file.parent} has {', '.join(files) or 'no .py file'}" if file.parent.is_dir() else f"there is no directory {file.parent}"
        raise PluginError(f"{label}: there is no file {file}; {where}", hint=_near_hint(file.name, files))
    file = file.resolve()
    module_name = f"{_FILE_PREFIX}{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    _add_to_path(file.parent)
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[module_name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise PluginError(f"{label}: importing {name} raised {describe(error)}", hint=TRACEBACK_HINT) from error
    return module


def _current_directory() -> Path | None:
    """None where it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _add_to_path(directory: Path) -> None:
    """Let modules of this directory be imported, after everything that is installed."""
    if "" not in sys.path and str(directory) not in sys.path:
        sys.path.append(str(directory))


def check_path_function(obj: Any, info: HookSpecInfo, label: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a path function takes positionally and by keyword. Raises PluginError when it cannot be called as its hook is."""
    if not callable(obj):
        raise PluginError(f"{label}: it is of the type {type(obj).__name__}, which cannot be called", hint="name a function")
    if info.name == "make_data_source":
        _check_data_source(obj, label)
    elif inspect.isclass(obj):
        raise PluginError(f"{label}: it is a class", hint=f"name a function: {info.flag} calls it with ({', '.join(info.path_args)})")
    _refuse_unbound(obj, label)
    refuse_generator(obj, info.name, label)
    if is_marked(obj):  # a plugin's own function, named by path: it takes what it declares, by name
        return check_function(None, info.name, obj, obj, label), ()
    try:
        signature = inspect.signature(obj)
    except (TypeError, ValueError):  # some builtins have no signature to look at
        return info.path_args, ()
    return _bind(list(signature.parameters.values()), info, label)


def _refuse_unbound(obj: Any, label: str) -> None:
    """A method that was taken from its class has nobody to be `self`."""
    holder = obj.__qualname__.rpartition(".")[0] if inspect.isfunction(obj) else ""
    if holder and not holder.endswith("<locals>") and next(iter(inspect.signature(obj).parameters), None) == "self":
        raise PluginError(
            f"{label}: it is a method of the class {holder}, and there is no object to call it on",
            hint=f"name a function, a @staticmethod of {holder}, or the method of an object in the module: object.{obj.__name__}",
        )


def _bind(params: list[inspect.Parameter], info: HookSpecInfo, label: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Divide the hook's arguments into positional and keyword ones, as this function declares them.

    Keyword-only parameters with the name of a spec parameter are filled by name, `def f(args, *, pg_loss, **kwargs)`;
    the remaining `path_args` go positionally. A function with `**kwargs` also gets `evaluation` and `rollout_id`.
    """
    kinds = inspect.Parameter
    slots = [param for param in params if param.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    only = {param.name: param for param in params if param.kind is kinds.KEYWORD_ONLY}
    open_ended = any(param.kind is kinds.VAR_POSITIONAL for param in params)
    order = tuple(name for name in info.path_args if name not in only)
    call = f"{info.flag} calls it with ({', '.join(info.path_args)})"
    catches = any(param.kind is kinds.VAR_KEYWORD for param in params)
    if info.path_by_name and not open_ended and _names_what_is_passed(slots, only, info, catches):
        return _bind_by_name(slots, only, info, catches, label)
    named = tuple(name for name in only if name in info.path_args)
    later = {param.name: param for param in slots[len(order) :]} | only
    if len(order) > len(slots) and not open_ended:
        if not (named and catches):
            raise PluginError(f"{label}: it takes {_count(len(slots))}, and gets {len(order)}", hint=call)
        named, order = named + order[len(slots) :], order[: len(slots)]
    for name, param in later.items():
        if name not in named and name not in info.path_keywords and param.default is param.empty:
            more = f", and {', '.join(info.path_keywords)} by keyword" if info.path_keywords else ""
            raise PluginError(
                f"{label}: it needs the argument {name!r}, which is not passed", hint=f"{call}{more}; give {name!r} a default"
            )
    keywords = tuple(name for name in info.path_keywords if name in later or (catches and name != "engine"))
    return order, named + keywords


def _names_what_is_passed(slots: list[inspect.Parameter], only: dict[str, inspect.Parameter], info: HookSpecInfo, catches: bool) -> bool:
    """Whether the parameters that must be filled have the names of the hook's arguments, and take all of these."""
    passed = {*info.path_args, *info.path_keywords}
    must = [param for param in slots if param.default is param.empty]
    takes_all = catches or {param.name for param in slots} | only.keys() >= set(info.path_args)
    return takes_all and all(param.name in passed and param.kind is not param.POSITIONAL_ONLY for param in must)


def _bind_by_name(
    slots: list[inspect.Parameter], only: dict[str, inspect.Parameter], info: HookSpecInfo, catches: bool, label: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The same for a function that upstream calls by keyword: it takes what it names, in any order, and `**kwargs` the rest."""
    passed = (*info.path_args, *info.path_keywords)
    declared = {param.name: param for param in slots} | only
    for name, param in declared.items():
        if name not in passed and param.default is param.empty:
            raise PluginError(
                f"{label}: it needs the argument {name!r}, which is not passed",
                hint=f"{info.flag} passes {', '.join(passed)}; give {name!r} a default",
            )
    return (), tuple(name for name in passed if catches or name in declared)


def _count(number: int) -> str:
    return "1 positional argument" if number == 1 else f"{number} positional arguments"


def _check_data_source(obj: Any, label: str) -> None:
    if inspect.isclass(obj):
        missing = [name for name in DATA_SOURCE_METHODS if not callable(getattr(obj, name, None))]
        if missing:
            raise PluginError(
                f"{label}: class {obj.__name__} has no {', '.join(missing)}", hint="a data source has " + ", ".join(DATA_SOURCE_METHODS)
            )


def _public_callables(obj: Any) -> list[str]:
    """The functions and classes that a module or class offers, its own first."""
    own = members(obj)
    names = [*own, *(name for name in dir(obj) if name not in own)]
    found = {name: own.get(name) for name in names if not name.startswith("_") and (callable(own.get(name)) or name not in own)}
    if not inspect.ismodule(obj):
        return list(found)
    return [name for name, value in found.items() if value is None or getattr(value, "__module__", None) == obj.__name__] or list(found)


def _offer(module: types.ModuleType) -> str:
    return ", ".join(f"{module.__name__}.{name}" for name in _public_callables(module)[:8]) or "it has none"


def _near_hint(name: str, offers: list[str]) -> str:
    near = nearest(name, offers)
    return f"did you mean {near!r}?" if near else FORMS
