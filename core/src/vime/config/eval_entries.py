"""The entries of evaluation datasets as a file or the command line gives them, with the level that each setting comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from vime.config.eval import EvalDatasetConfig
from vime.config.kinds import ConfigLoader
from vime.config.names import nearest
from vime.errors import ConfigError

ENTRY, DEFAULTS = "dataset entry", "eval.defaults"
"""The two levels over the flags."""
_SETTINGS = [key for key in EvalDatasetConfig.model_fields if key not in ("name", "path")]
_EXAMPLE = "for example datasets: [{name: gsm8k, path: gsm8k.jsonl}]"
_DATA_FILE = re.compile(r"\.(jsonl|json|parquet|csv)(@\[[^/]*)?$")


@dataclass(frozen=True)
class EvalEntry:
    """The values of one dataset, defaults filled in, for EvalDatasetConfig; and the level of each, `ENTRY` or `DEFAULTS`."""

    values: dict[str, Any]
    levels: dict[str, str] = field(default_factory=dict[str, str])


def read_entries(given: Mapping[str, Any]) -> list[EvalEntry]:
    """The entries of `eval`, `eval_config`, `eval_prompt_data` or `eval_datasets`, of which one may be set; [] where none is."""
    sources = [key for key in ("eval", "eval_config", "eval_prompt_data", "eval_datasets") if given.get(key)]
    if len(sources) > 1:
        raise ConfigError(f"evaluation datasets are given twice: by {' and by '.join(sources)}", hint="keep one of them")
    match sources:
        case ["eval"]:
            return entries_from_section(given["eval"], "eval")
        case ["eval_config"]:
            return entries_from_file(str(given["eval_config"]))
        case ["eval_prompt_data"] if isinstance(given["eval_prompt_data"], list):
            return entries_from_words(cast("list[str]", given["eval_prompt_data"]))
        case ["eval_datasets"]:
            return entries_from_datasets(given["eval_datasets"], "eval_datasets")
        case _:
            return []


def entries_from_words(words: Sequence[str]) -> list[EvalEntry]:
    """The datasets of `--eval-prompt-data NAME PATH [NAME PATH ...]`, or of a single path."""
    if len(words) == 1:
        return [_entry({}, {"name": _name_of_path(words[0]), "path": words[0]})]
    if len(words) % 2:
        raise ConfigError(
            f"--eval-prompt-data: expected names and paths in turn, got {len(words)} words: {' '.join(words)}",
            hint="for example --eval-prompt-data gsm8k test.jsonl easy easy.jsonl",
        )
    pairs = list(zip(words[::2], words[1::2], strict=True))
    for name, path in pairs:
        if _DATA_FILE.search(name):
            raise ConfigError(
                f"--eval-prompt-data: {name!r} stands where the name of {path!r} is expected, and looks like a path",
                hint=f"names and paths in turn: --eval-prompt-data {_name_of_path(name)} {name} ...",
            )
    return [_entry({}, {"name": name, "path": path}) for name, path in pairs]


def _name_of_path(path: str) -> str:
    return Path(path.partition("@[")[0].removeprefix("hf:").replace(":", "-")).stem


def entries_from_file(path: str) -> list[EvalEntry]:
    """The datasets of an `--eval-config` file: at its root, or under `eval:`."""
    flag = f"--eval-config {path}"
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=ConfigLoader)
    except OSError as error:
        raise ConfigError(f"{flag}: {error.strerror}", hint="give the path of a YAML file with `datasets`") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{flag} is not UTF-8 (byte {error.start})", hint="save the file as UTF-8") from error
    except (yaml.YAMLError, RecursionError) as error:
        has_slice = "'['" in str(error) and "@[" in str(error)
        hint = 'between braces a path with a slice needs quotes: {path: "test.jsonl@[0:100]"}' if has_slice else None
        raise ConfigError(f"{flag} is not YAML: {' '.join(str(error).split())}", hint=hint) from error
    if content is None:
        raise ConfigError(f"{flag} is empty", hint=_EXAMPLE)
    if not isinstance(content, dict) or "eval" not in content:
        return entries_from_section(content, path)
    root = cast("dict[Any, Any]", content)
    others = [str(key) for key in root if key != "eval"]
    if others:
        hint = "put it under eval:" if others[0] in ("defaults", "datasets") else "that file has evaluation datasets only"
        raise ConfigError(f"{path}: unknown key {others[0]!r} beside eval", hint=hint)
    return entries_from_section(root["eval"], f"{path}: eval")


def entries_from_section(section: Any, where: str) -> list[EvalEntry]:
    """The datasets of `{defaults: {...}, datasets: ...}`. `where` begins the messages."""
    section = _mapping(section, where)
    _refuse_unknown(section, ("defaults", "datasets"), where)
    inside = f"{where}." if where.endswith("eval") else f"{where}: "
    defaults = _mapping(section.get("defaults") or {}, f"{inside}defaults")
    for key in ("name", "path"):
        if key in defaults:
            raise ConfigError(f"{inside}defaults: unknown key {key!r}", hint=f"each dataset has a {key} of its own, in its entry")
    _refuse_unknown(defaults, _SETTINGS, f"{inside}defaults")
    if section.get("datasets") is None:
        raise ConfigError(f"{where}: no datasets", hint=_EXAMPLE)
    return entries_from_datasets(section["datasets"], f"{inside}datasets", defaults)


def entries_from_datasets(datasets: Any, where: str, defaults: Mapping[str, Any] | None = None) -> list[EvalEntry]:
    """The datasets of a list of entries with names, or of a mapping by name, with the defaults filled in."""
    if isinstance(datasets, dict):
        named = cast("dict[Any, Any]", datasets)
        unquoted = next((name for name in named if not isinstance(name, str | int) or isinstance(name, bool)), "")
        if unquoted != "":
            raise ConfigError(f"{where}: the name {unquoted!r} is not text", hint="write names such as yes, no, on, null and 1.5 in quotes")
        entries = [{"name": str(name), **_mapping(entry or {}, f"{where}.{name}")} for name, entry in named.items()]
        for name, entry in zip(named, entries, strict=True):
            if entry["name"] != str(name):
                raise ConfigError(f"{where}.{name}: it is named {entry['name']!r} inside", hint="leave out the name: its key is the name")
    elif isinstance(datasets, list):
        entries = [_mapping(entry, f"{where}[{index}]") for index, entry in enumerate(cast("list[Any]", datasets))]
    else:
        raise ConfigError(f"{where}: expected a list or a mapping of datasets, got {datasets!r}", hint=_EXAMPLE)
    if not entries:
        raise ConfigError(f"{where} names no dataset", hint=_EXAMPLE)
    for index, entry in enumerate(entries):
        label = f"{where}.{entry.get('name', index)}"
        _refuse_unknown(entry, EvalDatasetConfig.model_fields, label)
        for required in ("name", "path"):
            if entry.get(required) is None:
                raise ConfigError(f"{label}: no {required}", hint="each dataset has a name and a path")
    return [_entry(defaults or {}, entry) for entry in entries]


def _entry(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> EvalEntry:
    """An entry over the defaults. A setting without a value (null) is not set at its level."""
    layers = [
        (level, {key: value for key, value in layer.items() if value is not None}) for level, layer in ((DEFAULTS, defaults), (ENTRY, own))
    ]
    values = {key: value for _, layer in layers for key, value in layer.items()}
    return EvalEntry(values, {key: level for level, layer in layers for key in layer})


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected a mapping, got {value!r}")
    mapping: dict[str, Any] = {}
    for key, item in cast("dict[Any, Any]", value).items():
        name = str(key).replace("-", "_")
        if name in mapping:
            raise ConfigError(f"{where}: {name!r} comes twice, in two spellings", hint="keep one of them")
        mapping[name] = item
    return mapping


def _refuse_unknown(section: Mapping[str, Any], known: Any, where: str) -> None:
    for key in section:
        if key not in known:
            close = nearest(key, known)
            raise ConfigError(
                f"{where}: unknown key {key!r}", hint=f"did you mean {close!r}?" if close else "known keys: " + ", ".join(known)
            )
