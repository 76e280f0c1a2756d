"""`vime plugin show NAME`: what one plugin offers, and how it is used."""

from __future__ import annotations

import inspect
import json
import sys
from typing import TYPE_CHECKING, Any

from vime.cli.annotations import constraints, type_name
from vime.cli.render import printed_by_plugins, waiting_for
from vime.plugins.child import Announce, Call, call_in_child
from vime.plugins.discovery import PluginEntry, discover

if TYPE_CHECKING:
    from vime.plugins.validation import CheckedHook

SEVERAL = {
    "one": "one plugin claims it; two that are enabled are a conflict",
    "agree": "all enabled plugins must agree; they are asked in the user's order, and the first refusal decides",
    "all": "all enabled plugins are called, in the user's order",
}
"""What several enabled plugins mean, by the kind of a hook."""
SEVERAL_REWARDS = "several may be enabled: the rm_type of a sample, or --rm-type, chooses by plugin name"


def show(name: str, *, as_json: bool, timeout: float) -> None:
    """Print the description of an installed plugin. Raises PluginError for one that is missing, broken or refused."""
    entry = discover().find(name)
    outcome = call_in_child(Call("vime.cli.plugin_show:describe_plugin", entry, entry.label), timeout=timeout, on_wait=waiting_for)
    if outcome.error is not None:
        raise outcome.error
    printed_by_plugins(outcome.output)
    sys.stdout.write(json.dumps(outcome.value, indent=2) + "\n" if as_json else _as_text(outcome.value))


def describe_plugin(entry: PluginEntry, announce: Announce) -> dict[str, Any]:
    """Import one plugin and describe it. Raises PluginError when it is broken; the class itself is not built."""
    from vime.plugins.loading import load_target, settings_class
    from vime.plugins.validation import check_hooks

    announce(entry.label)
    target = load_target(entry.target, entry.label)
    hooks = check_hooks(target, entry.label)
    declared = settings_class(target, entry.label)
    return {
        "name": entry.name,
        "distribution": entry.distribution,
        "version": entry.version,
        "target": entry.target,
        "location": entry.location,
        "requires_vime": entry.requires_vime,
        "doc": inspect.cleandoc(str(target.__doc__ or "")),
        "stateful": inspect.isclass(target) and callable(getattr(target, "state_dict", None)),
        "hooks": [_hook(hook, target) for hook in hooks],
        "settings": [] if declared is None else [_setting(name, field) for name, field in declared.model_fields.items()],
    }


def _hook(hook: CheckedHook, target: Any) -> dict[str, Any]:
    from vime.plugins.hookspecs import HOOKS
    from vime.plugins.manager import ROUTED

    function = inspect.getattr_static(target, hook.attribute)
    doc = inspect.cleandoc(str(getattr(function, "__doc__", None) or ""))
    kind = HOOKS[hook.hook].kind
    several = SEVERAL_REWARDS if hook.hook == ROUTED else SEVERAL[kind]
    return {"name": hook.hook, "params": list(hook.params), "kind": kind, "several": several, "doc": doc}


def _setting(name: str, field: Any) -> dict[str, Any]:
    is_required = bool(field.is_required())
    return {
        "name": name,
        "type": type_name(field.annotation),
        "constraints": constraints(field.annotation, field.metadata),
        "required": is_required,
        "default": None if is_required else _plain(_default(field)),
        "doc": inspect.cleandoc(field.description or ""),
    }


def _default(field: Any) -> Any:
    """The default; where it is made from other fields there is none to show."""
    if field.default_factory is not None and field.default_factory_takes_validated_data:
        return "(from the other settings)"
    return field.get_default(call_default_factory=True)


def _plain(value: Any) -> Any:
    """JSON data as it is, anything else as text."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)
    return value


def _as_text(shown: dict[str, Any]) -> str:
    """The text form of `describe_plugin`."""
    key = shown["name"].replace(".", "-")  # --set takes the first dot for the end of the plugin's name
    lines = [f"{shown['name']}  ({shown['distribution']} {shown['version']})"]
    lines += [f"  {line}" if line else "" for line in shown["doc"].splitlines()]
    requires = {None: "nothing said about vime", "": "vime (any version)"}.get(shown["requires_vime"], f"vime {shown['requires_vime']}")
    lines += [
        "",
        f"enable    vime train --plugin {shown['name']}",
        f"target    {shown['target']}",
        f"found in  {shown['location']}",
        f"requires  {requires}",
        f"state     {'in every checkpoint (state_dict, load_state_dict)' if shown['stateful'] else 'none'}",
        "",
        "hooks",
    ]
    for hook in shown["hooks"]:
        lines.append(f"  {hook['name']}({', '.join(hook['params'])})")
        lines += [f"      {line}" for line in hook["doc"].splitlines()[:1]]
        lines.append(f"      {hook['several']}")
    lines += ["", "settings" if shown["settings"] else "settings: none"]
    for setting in shown["settings"]:
        default = "required" if setting["required"] else f"default {json.dumps(setting['default'], ensure_ascii=False)}"
        about = ", ".join([*setting["constraints"], default])
        lines.append(f"  {setting['name']}: {setting['type']}  ({about})    --set {key}.{setting['name']}=...")
        lines += [f"      {line}" for line in setting["doc"].splitlines()]
    return "\n".join(lines) + "\n"
