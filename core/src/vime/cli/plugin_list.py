"""`vime plugin list`: what is installed, what is wrong with it, and which of it a run would enable."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packaging.utils import canonicalize_name

from vime.cli.flags import parse_flags, resolve
from vime.cli.render import waiting_for, warn
from vime.cli.tables import print_table
from vime.plugins.discovery import Catalog, PluginEntry, Status, discover
from vime.plugins.manager import selected
from vime.plugins.probe import TIMEOUT, Probe, probe_all

HEADER = ("name", "distribution", "enabled", "status", "detail")
_COLOURS = {"ok": "green", "broken": "red", "conflict": "red", "incompatible": "yellow"}


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


def list_command(words: list[str]) -> int:
    """Print a row for each installed plugin. The flags of a run decide what is "enabled", as they do in a run."""
    parsed = parse_flags(words, switches=("json", "probe"), seconds=("import-timeout",))
    config = resolve(parsed, dict(os.environ), check_files=False).config
    catalog = discover()
    names = selected(config.plugin, config.no_plugin, catalog)
    rows = plugin_rows(catalog, names, probe_timeout=parsed.seconds.get("import-timeout", TIMEOUT) if "probe" in parsed.switches else None)
    if "json" in parsed.switches:
        sys.stdout.write(json.dumps([row.to_json() for row in rows], indent=2) + "\n")
    elif not rows:
        sys.stdout.write("no plugin is installed; try: pip install vime-rm-math\n")
    else:
        print_table(HEADER, [_shown(row) for row in rows], styles=_COLOURS)
    for name in names:
        if not catalog.named(name):
            warn(f"plugin {name!r} is enabled and not installed, so a run would be refused: {catalog.suggestion(name)}")
    return 0


def plugin_rows(catalog: Catalog, enabled: Sequence[str], *, probe_timeout: float | None = None) -> list[Row]:
    """The rows of the list, ordered by name. With `probe_timeout` every plugin that looks usable is imported in its own process."""
    keys = {canonicalize_name(name) for name in enabled}
    statuses = {entry: catalog.status(entry) for entry in catalog.entries}
    probes: dict[PluginEntry, Probe] = {}
    if probe_timeout is not None:
        usable = [entry for entry, (status, _) in statuses.items() if status == "ok"]
        probes = probe_all(usable, timeout=probe_timeout, on_wait=waiting_for)
    rows: list[Row] = []
    for entry, (status, detail) in statuses.items():
        result = probes.get(entry)
        if result is not None and result.error is not None:
            status, detail = "broken", result.error
        hooks = None if probe_timeout is None else list(result.hooks) if result else []
        rows.append(Row(entry.name, entry.distribution, entry.version, entry.target, entry.key in keys, status, detail, hooks))
    return rows


def _shown(row: Row) -> tuple[str, ...]:
    detail = row.detail or ""
    if row.hooks and not detail:
        detail = ", ".join(row.hooks)
    return row.name or "(none)", f"{row.distribution} {row.version}", "yes" if row.enabled else "", row.status, detail
