"""`vime config show`: the resolved configuration, and where each value came from."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vime.cli.flags import parse_flags, resolve
from vime.cli.render import warn
from vime.config.eval import EvalDatasetConfig
from vime.config.load import FIELDS, Resolved
from vime.config.run_config import SECTIONS
from vime.errors import VimeError
from vime.redact import Redactor

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig


def show_command(words: list[str]) -> int:
    """Print every value with its origin; with --json as one object.

    Files that the values name are not looked at, and no plugin is imported: `vime plugin explain` with the same flags
    does that. What metadata tells about the plugins comes as warnings.
    """
    parsed = parse_flags(words, switches=("json",))
    resolved = resolve(parsed, dict(os.environ), check_files=False)
    for line in [*resolved.warnings, *plugin_doubts(resolved.config)]:
        warn(line)
    text = json.dumps(_as_json(resolved), indent=2, ensure_ascii=False) if "json" in parsed.switches else _as_text(resolved)
    sys.stdout.write(text + "\n")
    return 0


def plugin_doubts(config: RunConfig) -> list[str]:
    """Why a run would refuse the plugins, as far as it can be told without importing them."""
    from vime.plugins.discovery import discover
    from vime.plugins.manager import check_settings_names, selected

    catalog = discover()
    doubts: list[VimeError] = []
    names: list[str] = []
    with _collected(doubts):
        names = selected(config.plugin, config.no_plugin, catalog)
    for name in names:
        with _collected(doubts):
            catalog.find(name)
    with _collected(doubts):
        check_settings_names(config.plugin_settings, names, catalog)
    return [f"a run would be refused: {error.message}" + (f" ({error.hint})" if error.hint else "") for error in doubts]


@contextlib.contextmanager
def _collected(errors: list[VimeError]) -> Iterator[None]:
    try:
        yield
    except VimeError as error:
        errors.append(error)


def _as_json(resolved: Resolved) -> dict[str, Any]:
    """`{field: {"value": ..., "origin": ...}}`; datasets under "eval_datasets", by name."""
    values = Redactor.of(os.environ, resolved.config).data(resolved.config.model_dump())
    shown: dict[str, Any] = {name: {"value": values[name], "origin": resolved.origins[name]} for name in (*FIELDS, "quickstart")}
    shown["eval_datasets"] = {
        dataset.name: {
            key: {"value": getattr(dataset, key), "origin": resolved.origins[f"eval_datasets.{dataset.name}.{key}"]}
            for key in EvalDatasetConfig.model_fields
        }
        for dataset in resolved.config.eval_datasets
    }
    return shown


def _as_text(resolved: Resolved) -> str:
    """YAML with the origin of each value as a comment; secrets are masked."""
    lines: list[str] = []
    values = Redactor.of(os.environ, resolved.config).data(resolved.config.model_dump())
    for section in SECTIONS:
        lines += [f"# {section.__doc__}"]
        lines += [_line(name, values[name], resolved.origins[name]) for name in section.model_fields]
        lines += [""]
    for dataset in resolved.config.eval_datasets:
        lines += [f"# evaluation dataset {dataset.name}"]
        for key in EvalDatasetConfig.model_fields:
            lines += [_line(f"  {key}", getattr(dataset, key), resolved.origins[f"eval_datasets.{dataset.name}.{key}"])]
        lines += [""]
    return "\n".join(lines).rstrip()


def _line(name: str, value: Any, origin: str) -> str:
    text = f"{name}: {json.dumps(value, ensure_ascii=False)}"
    return text if origin == "default" else f"{text:<50}  # {origin}"
