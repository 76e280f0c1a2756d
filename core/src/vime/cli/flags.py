"""Reads the flags of a configuration: those with one value, with several, with an optional one, and switches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vime.config.kinds import kinds_of
from vime.config.load import FIELDS, Resolved, load_config, unknown_name
from vime.config.names import NEGATIONS, field_of, flag_of, nearest
from vime.config.run_config import RunConfig
from vime.errors import ConfigError

_OPTIONAL_VALUES = {"serve_engine": "0"}
"""Flags that may stand without a value, and what that means."""


@dataclass
class ParsedFlags:
    """What a command line gave: words by field, plugin settings, the configuration file, and the command's own flags."""

    values: dict[str, Any] = field(default_factory=dict)
    config_file: Path | None = None
    switches: set[str] = field(default_factory=set)
    seconds: dict[str, float] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)


def parse_flags(
    words: list[str], *, switches: tuple[str, ...] = (), seconds: tuple[str, ...] = (), lists: tuple[str, ...] = ()
) -> ParsedFlags:
    """Read `--flag value`, `--flag=value`, `--switch`, `--no-switch` and `--flag value value ...`.

    `switches` are those of the command itself, such as "json", `seconds` its flags with a number of seconds, and
    `lists` those with several values, which may be repeated. Raises ConfigError for an unknown flag (with the nearest
    name, or with what replaces it), a missing value, a flag that is given twice, and a word that belongs to no flag.
    """
    parsed = ParsedFlags()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            several = "several models: --checkpoints PATH PATH ..." if "checkpoints" in lists and "hf_checkpoint" in parsed.values else None
            raise ConfigError(f"unexpected word {word!r}", hint=several or "values come after their flag: --flag VALUE")
        name, has_value, value = word[2:].partition("=")
        if has_value:
            rest.insert(0, value)
        name = name.replace("_", "-")
        if name in switches:
            _refuse_value(f"--{name}", bool(has_value))
            parsed.switches.add(name)
        elif name in seconds:
            parsed.seconds[name] = positive_seconds(f"--{name}", _one_value(f"--{name}", "seconds", rest, bool(has_value)))
        elif name in lists:
            parsed.lists.setdefault(name, []).extend(_values(f"--{name}", "a path", rest, bool(has_value)))
        elif name == "config":
            if parsed.config_file is not None:
                raise ConfigError("--config is given twice", hint="keep one of them; flags go over the file")
            parsed.config_file = Path(_one_value("--config", "a file", rest, bool(has_value)))
        elif name == "set":
            parsed.values.setdefault("set", []).extend(_values("--set", "plugin.key=value", rest, bool(has_value)))
        else:
            own = nearest(name, (*switches, *seconds, *lists))
            if own is not None and nearest(field_of(name), [*FIELDS, *switches, *lists]) not in FIELDS:
                raise ConfigError(f"unknown flag --{name}", hint=f"did you mean --{own}?")
            _read_field(name, rest, bool(has_value), parsed.values)
    return parsed


def positive_seconds(flag: str, word: str) -> float:
    """The number of seconds that a word gives. Raises ConfigError, naming the flag, for anything but a positive finite number."""
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(f"{flag}: expected a number of seconds above 0, got {word!r}")
    return value


def _read_field(name: str, rest: list[str], has_value: bool, values: dict[str, Any]) -> None:
    """Read one flag of RunConfig from the front of `rest` into `values`."""
    kinds = kinds_of(RunConfig)
    field_name = field_of(name)
    if name.replace("-", "_") in NEGATIONS:
        _refuse_value(f"--{name}", has_value)
        values[NEGATIONS[name.replace("-", "_")]] = False
        return
    negated = field_of(name.removeprefix("no-"))
    if field_name not in FIELDS and name.startswith("no-") and negated in FIELDS and kinds[negated].base is bool:
        _refuse_value(f"--{name}", has_value, f", or {flag_of(negated)}=true or false")
        values[negated] = False
        return
    if field_name not in FIELDS:
        raise unknown_name(name, f"unknown flag --{name}", spell=flag_of)
    kind, flag = kinds[field_name], f"--{name}"
    if kind.base is list:
        items = _values(flag, kind.item.expected() if kind.item else "a value", rest, has_value)
        if field_name in ("plugin", "no_plugin"):
            _refuse_commas(flag, items)
        values[field_name] = [*values.get(field_name, []), *items]
        return
    if field_name in values:
        raise ConfigError(f"{flag} is given twice", hint="keep one of them")
    if kind.base is bool and not has_value:
        values[field_name] = True
    elif field_name in _OPTIONAL_VALUES and not has_value and (not rest or rest[0].startswith("--")):
        values[field_name] = _OPTIONAL_VALUES[field_name]
    else:
        values[field_name] = _one_value(flag, kind.expected(), rest, has_value)


def _refuse_value(flag: str, has_value: bool, instead: str = "") -> None:
    if has_value:
        raise ConfigError(f"{flag} takes no value", hint=f"write {flag}{instead}")


def _refuse_commas(flag: str, names: list[str]) -> None:
    """Only VIME_PLUGINS, which is one word, has commas between its names."""
    joined = next((name for name in names if "," in name), None)
    if joined is not None:
        parts = [part.strip() for part in joined.split(",") if part.strip()]
        raise ConfigError(
            f"{flag} {joined}: one word names one plugin", hint="repeat the flag: " + " ".join(f"{flag} {part}" for part in parts)
        )


def _one_value(flag: str, expected: str, rest: list[str], has_value: bool) -> str:
    if not has_value and (not rest or rest[0].startswith("--")):
        raise ConfigError(f"{flag} needs a value: {expected}", hint=f"a value that begins with -- is written {flag}=VALUE")
    return rest.pop(0)


def _values(flag: str, expected: str, rest: list[str], has_value: bool) -> list[str]:
    """One value after `=`, else all words up to the next flag."""
    values = [_one_value(flag, expected, rest, has_value)]
    while not has_value and rest and not rest[0].startswith("--"):
        values.append(rest.pop(0))
    return values


def resolve(
    parsed: ParsedFlags, env: dict[str, str], *, purpose: Any = "train", check_files: bool = True, model: str | None = None
) -> Resolved:
    """The configuration of a command: its flags over the environment over its file over the quickstart."""
    options = {"quickstart": _quickstart_values, "purpose": purpose, "check_files": check_files, "model": model}
    return load_config(parsed.values, parsed.config_file, env, **options)


def _quickstart_values() -> dict[str, Any]:
    from vime.quickstart import quickstart_defaults

    return quickstart_defaults()
