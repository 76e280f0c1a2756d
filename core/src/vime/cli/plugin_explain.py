"""`vime plugin explain`: who is called by one training step, in the order of the calls."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from itertools import groupby
from typing import Any

from vime.cli.flags import parse_flags, resolve
from vime.cli.render import printed_by_plugins, waiting_for
from vime.errors import ConfigError
from vime.plugins.child import Call, call_in_child
from vime.plugins.discovery import discover
from vime.plugins.manager import selected
from vime.plugins.probe import TIMEOUT

_SEVERAL = {"one": "", "agree": "all must agree, in this order", "all": "all are called, in this order", "sum": "side by side"}
EVALUATES_ONLY = "this run evaluates only"
NEVER = "never"
"""What rows say whose hook is not called."""
_HOOK, _CALLED = 32, 24
"""Widths of the columns."""


def explain_command(words: list[str]) -> int:
    """Load the plugins and path functions that a run with these flags would load, in a process of their own, and print who is called.

    Raises what the run would be refused with. Files that the values name, such as the model, are not looked at.
    """
    if words and not words[0].startswith("-"):
        raise ConfigError(f"vime plugin explain {words[0]}: plugins are named by flags", hint=f"vime plugin explain --plugin {words[0]}")
    parsed = parse_flags(words, switches=("json",), seconds=("import-timeout",))
    config, catalog = resolve(parsed, dict(os.environ), check_files=False).config, discover()
    for name in selected(config.plugin, config.no_plugin, catalog):
        catalog.find(name)  # what metadata can tell needs no import
    call = Call("vime.cli.explain_rows:explain", config, "the plugins")
    outcome = call_in_child(call, timeout=parsed.seconds.get("import-timeout", TIMEOUT), on_wait=waiting_for)
    if outcome.error is not None:
        raise outcome.error
    printed_by_plugins(outcome.output)
    sys.stdout.write(json.dumps(outcome.value, indent=2) if "json" in parsed.switches else as_text(outcome.value))
    sys.stdout.write("\n")
    return 0


def as_text(shown: dict[str, Any]) -> str:
    """The rows by phase, with what is worth knowing about each below it."""
    enabled = "  ".join(f"{number}. {_name(who)}" for number, who in enumerate(shown["plugins"], 1))
    lines = [f"enabled, in the order of calls: {enabled or 'no plugin'}"]
    of_this_run = [row for row in shown["hooks"] if row["reason"] != EVALUATES_ONLY]
    for phase, rows in groupby(of_this_run, key=lambda row: row["phase"]):
        lines += ["", phase]
        for row in rows:
            lines += _row(row)
    return "\n".join(lines)


def _row(row: dict[str, Any]) -> list[str]:
    hook = row["hook"] + (f" [{row['dataset']}]" if row["dataset"] else "")
    who = [_name(who) for who in row["who"]]
    if len(who) > 1:
        who = [f"{number}. {name}" for number, name in enumerate(who, 1)] + [f"({_SEVERAL[row['kind']]})"]
    notes = [*row["notes"], *([row["reason"]] if row["reason"] and who else [])]
    if not who:
        reason = f": {row['reason']}" if row["called"] == NEVER else ""
        who = [f"built in: {row['built_in']}" if row["built_in"] else f"nobody{reason}"]
    head = f"  {hook + '  ':<{_HOOK}}{row['called']:<{_CALLED}}{who[0]}"
    more = [" " * (2 + _HOOK + _CALLED) + name for name in who[1:]]
    texts = [line for note in notes for line in textwrap.wrap(note, 88, initial_indent="- ", subsequent_indent="  ")]
    return [head, *more, *(f"      {text}" for text in texts)]


def _name(who: dict[str, str]) -> str:
    if "path" in who:
        return f"{who['path']} ({who['flag']})"
    return f"{who['plugin']} ({who['distribution']} {who['version']})"
