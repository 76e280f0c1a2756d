"""`vime plugin list` and `vime plugin show`: what is installed, and what one plugin offers."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from packaging.utils import canonicalize_name

from vime.cli.check import check_plugin
from vime.cli.new import new_plugin
from vime.plugins.discovery import Catalog, PluginEntry, Status, discover
from vime.plugins.probe import Probe, probe_all

if TYPE_CHECKING:
    from vime.plugins.validation import CheckedHook

plugin_app = typer.Typer(name="plugin", help="List and show plugins.", no_args_is_help=True)
plugin_app.command("check")(check_plugin)
plugin_app.command("new")(new_plugin)


@dataclass(frozen=True)
class Row:
    """One line of `vime plugin list`."""

    name: str
    distribution: str
    version: str
    target: str
    enabled: bool
    status: Status
    detail: str | None
    hooks: list[str] | None = None

    def to_json(self) -> dict[str, Any]:
        """The public form; `hooks` only where they were looked at."""
        data = dict(vars(self))
        if self.hooks is None:
            del data["hooks"]
        return data


@plugin_app.command("list")
def list_plugins(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    with_probe: Annotated[
        bool, typer.Option("--probe", help="Also import each plugin, in a process of its own, and list its hooks.")
    ] = False,
) -> None:
    """List the installed plugins, broken and conflicting ones too. Without --probe none is imported."""
    catalog = discover()
    rows = plugin_rows(catalog, probe_them=with_probe)
    if as_json:
        sys.stdout.write(json.dumps([row.to_json() for row in rows], indent=2) + "\n")
    elif not rows:
        sys.stdout.write("no plugin is installed; try: pip install vime-rm-math\n")
    elif sys.stdout.isatty():
        _print_table(rows)
    else:
        sys.stdout.write(_plain_table(rows))


@plugin_app.command("show")
def show_plugin(
    name: Annotated[str, typer.Argument(help="The name that --plugin takes.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Show one plugin: its hooks, its settings with defaults, its distribution and where it was found."""
    entry = discover().find(name)
    with contextlib.redirect_stdout(sys.stderr):  # what a plugin prints when it is imported is not the answer
        described = describe_plugin(entry)
    sys.stdout.write(json.dumps(described, indent=2) + "\n" if as_json else _show_text(described))


def plugin_rows(catalog: Catalog, *, probe_them: bool = False) -> list[Row]:
    """The rows of the list, ordered by name."""
    enabled = _enabled_names()
    statuses = {entry: catalog.status(entry) for entry in catalog.entries}
    probes: dict[PluginEntry, Probe] = {}
    if probe_them:
        probes = probe_all([entry for entry, (status, _) in statuses.items() if status == "ok"])
    rows: list[Row] = []
    for entry, (status, detail) in statuses.items():
        result = probes.get(entry)
        if result is not None and result.error is not None:
            status, detail = "broken", result.error
        hooks = None if not probe_them else list(result.hooks) if result else []
        rows.append(Row(entry.name, entry.distribution, entry.version, entry.target, entry.key in enabled, status, detail, hooks))
    return rows


def _enabled_names() -> set[str]:
    """The plugins that VIME_PLUGINS enables, as PEP 503 compares names."""
    return {canonicalize_name(name.strip()) for name in os.environ.get("VIME_PLUGINS", "").split(",") if name.strip()}


def _shown(row: Row) -> tuple[str, ...]:
    detail = row.detail or ""
    if row.hooks and not detail:
        detail = ", ".join(row.hooks)
    return row.name, f"{row.distribution} {row.version}", "yes" if row.enabled else "", row.status, detail


HEADER = ("name", "distribution", "enabled", "status", "detail")


def _plain_table(rows: list[Row]) -> str:
    """Columns of equal width, for pipes and files."""
    lines = [HEADER, *(_shown(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    return "".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines)


def _print_table(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    colours = {"ok": "green", "broken": "red", "conflict": "red", "incompatible": "yellow"}
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in HEADER:
        table.add_column(column, overflow="fold")
    for row in rows:
        cells = [escape(cell) for cell in _shown(row)]
        cells[3] = f"[{colours[row.status]}]{cells[3]}[/]"
        table.add_row(*cells)
    Console(file=sys.stdout, highlight=False).print(table)


def describe_plugin(entry: PluginEntry) -> dict[str, Any]:
    """Import one plugin and describe it. Raises PluginError when it is broken; the class itself is not built."""
    from vime.plugins.loading import load_target, settings_class
    from vime.plugins.validation import check_hooks

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
        "doc": (target.__doc__ or "").strip(),
        "hooks": [_hook(hook, target) for hook in hooks],
        "settings": [] if declared is None else [_setting(name, field) for name, field in declared.model_fields.items()],
    }


def _hook(hook: CheckedHook, target: Any) -> dict[str, Any]:
    from vime.plugins.hookspecs import HOOKS

    doc = inspect.getdoc(getattr(target, hook.attribute)) or ""
    return {"name": hook.hook, "params": list(hook.params), "kind": HOOKS[hook.hook].kind, "doc": doc.strip()}


def _setting(name: str, field: Any) -> dict[str, Any]:
    annotation = field.annotation
    shown = annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    return {"name": name, "type": shown, "required": field.is_required(), "default": _plain(default), "doc": field.description or ""}


def _plain(value: Any) -> Any:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value


def _show_text(shown: dict[str, Any]) -> str:
    """The text form of `describe_plugin`."""
    lines = [f"{shown['name']}  ({shown['distribution']} {shown['version']})"]
    lines += [f"  {line}" if line else "" for line in shown["doc"].splitlines()]
    lines += [
        "",
        f"target    {shown['target']}",
        f"found in  {shown['location']}",
        f"needs     vime {shown['requires_vime'] or '(any version)'}",
        "",
        "hooks",
    ]
    for hook in shown["hooks"]:
        lines.append(f"  {hook['name']}({', '.join(hook['params'])})")
        lines += [f"      {line}" for line in hook["doc"].splitlines()[:1]]
    lines += ["", "settings" if shown["settings"] else "settings: none"]
    for setting in shown["settings"]:
        default = "required" if setting["required"] else f"default {setting['default']!r}"
        lines.append(f"  {setting['name']}: {setting['type']}  ({default})    --set {shown['name']}.{setting['name']}=...")
        lines += [f"      {line}" for line in setting["doc"].splitlines()]
    return "\n".join(lines) + "\n"
