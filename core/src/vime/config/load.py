"""From flags, file, environment and defaults to one RunConfig, with the origin of every value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import yaml
from pydantic import ValidationError

from vime.config.eval import EvalDatasetConfig, flag_behind
from vime.config.eval_entries import ENTRY, EvalEntry, read_entries
from vime.config.inputs import check_inputs, find_model, refuse_missing_parts
from vime.config.kinds import ConfigLoader, Kind, kinds_of, parse_scalar
from vime.config.labels import label_doubts
from vime.config.names import ALIASES, NEGATIONS, field_of, flag_of, nearest
from vime.config.rules import OF_PIPELINE, warnings_about
from vime.config.run_config import SECTIONS, RunConfig
from vime.config.upstream import replacement, why_absent
from vime.errors import ConfigError
from vime.redact import MASK, hidden_setting

Purpose = Literal["train", "eval"]
FIELDS: tuple[str, ...] = tuple(name for section in SECTIONS for name in section.model_fields)
"""All fields that are flags, in the order of --help."""
FILE_ONLY = ("eval", "eval_datasets", "quickstart")
"""Keys of the file that are no flags."""
_COMMAND_LINE_ONLY = {
    "config": "a file names no other one: give the keys of both in one file",
    "set": "write plugin_settings: {math: {timeout: 5}}",
}
"""Flags that are no keys of the file, and what to do instead."""
_ALTERNATIVES = (
    ("num_rollout", "num_epoch"),
    ("global_batch_size", "num_steps_per_rollout"),
    ("micro_batch_size", "use_dynamic_batch_size"),
    ("eval", "eval_config", "eval_prompt_data", "eval_datasets"),
)
"""Fields that say the same thing in different ways: a layer that sets one hides the others of the layers below."""


@dataclass(frozen=True)
class Resolved:
    """A configuration, where each value came from, and what is doubtful about it.

    `origins` has every field of RunConfig, and `eval_datasets.<name>.<key>` for the settings of each dataset. Values:
    "flag --lr", "file run.yaml", "environment VIME_PLUGINS", "quickstart", "derived", "default", and "default of --pipeline
    async" for what has another one there. Those of datasets also say which level it is: "dataset entry (eval.yaml)",
    "eval.defaults (eval.yaml)", and of the flags which one: "flag --eval-top-p", "file run.yaml (eval_top_p)", "default (--rollout-top-p)".
    """

    config: RunConfig
    origins: dict[str, str]
    warnings: tuple[str, ...] = ()


@dataclass
class _Layer:
    """Values that come from one place. `origin` says which, for a field."""

    values: dict[str, Any]
    origin: Callable[[str], str]
    settings: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])


def load_config(
    argv_flags: Mapping[str, Any],
    file: Path | None,
    env: Mapping[str, str],
    *,
    quickstart: Callable[[], Mapping[str, Any]] | None = None,
    purpose: Purpose = "train",
    check_files: bool = True,
    model: str | None = None,
) -> Resolved:
    """Resolve a configuration: flags over environment over file over quickstart over the defaults of the fields.

    `argv_flags` maps fields to what the command line gave (words, lists of words, booleans; typed values are taken as
    they are), and "set" to the list of its plugin.key=value. `quickstart` gives the values to use where neither a model
    nor data is named. With `check_files` the files that it names are looked at, other than data. `model` is the first of
    `vime eval --checkpoints`, which goes over any other. Raises ConfigError or CheckpointError, without importing
    anything heavy.
    """
    layers = [_file_layer(file)] if file is not None else []
    layers += [_environment_layer(env), _flag_layer(argv_flags)]
    if quickstart is not None and _wants_quickstart(layers):
        layers.insert(0, _Layer({**quickstart(), "quickstart": True}, lambda _: "quickstart"))
    values, origins = _merge(layers)
    _take_model_from_checkpoint(values, origins)
    if purpose == "eval":
        _evaluate_only(values, origins, model, file)
    _refuse_hidden(values)
    entries = read_entries(values)
    if entries:
        values["eval_datasets"] = [entry.values for entry in entries]
        values.pop("eval", None)
    config = _validate(values, origins, entries)
    if check_files:
        refuse_missing_parts(config)
        check_inputs(config)
        if config.hf_checkpoint is not None:
            config = config.model_copy(update={"hf_checkpoint": str(find_model(config.hf_checkpoint))})
    doubts = [*warnings_about(config), *label_doubts(config, look=check_files)]
    return Resolved(config, _all_origins(config, origins, entries), tuple(doubts))


def _file_layer(file: Path) -> _Layer:
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=ConfigLoader)
    except OSError as error:
        raise ConfigError(f"--config {file}: {error.strerror}", hint="give the path of a YAML file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config {file} is not UTF-8 (byte {error.start})", hint="save the file as UTF-8") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"--config {file} is not YAML: {' '.join(str(error).split())}") from error
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError(f"--config {file}: expected a mapping of keys to values, got {type(content).__name__}")
    kinds = kinds_of(RunConfig)
    values: dict[str, Any] = {}
    for key, value in cast("dict[Any, Any]", content).items():
        name = field_of(str(key))
        if name in NEGATIONS and isinstance(value, bool):
            name, value = NEGATIONS[name], not value
        if name not in FIELDS and name not in FILE_ONLY:
            raise _unknown_key(str(key), value, file)
        if name in values:
            raise ConfigError(f"{file}: {key!r} and another key both set {name}", hint="keep one of them")
        if name == "eval" and not value:
            continue  # it names no dataset
        is_list = name in kinds and kinds[name].base is list
        values[name] = [value] if is_list and value is not None and not isinstance(value, list) else value
    if values.get("quickstart") and not (values.get("hf_checkpoint") and values.get("prompt_data")):
        raise ConfigError(
            f"{file}: 'quickstart' is what a run says of itself, not a choice",
            hint="leave it out: without a model and without data vime uses the quickstart's",
        )
    return _Layer(values, lambda _: f"file {file}")


def _unknown_key(key: str, value: Any, file: Path) -> ConfigError:
    """The error for a key of the file: what stands on the command line only, a switch's negation, or a misspelt name."""
    message = f"{file}: unknown key {key!r}"
    if key in _COMMAND_LINE_ONLY:
        return ConfigError(f"{file}: {key!r} is for the command line only", hint=_COMMAND_LINE_ONLY[key])
    positive = field_of(key.replace("-", "_").removeprefix("no_"))
    if key.startswith("no") and positive in FIELDS and kinds_of(RunConfig)[positive].base is bool:
        return ConfigError(message, hint=f"write {positive}: {'true' if value is False else 'false'}")
    return unknown_name(key, message, spell=lambda found: found)


def _environment_layer(env: Mapping[str, str]) -> _Layer:
    names = [name.strip() for name in env.get("VIME_PLUGINS", "").split(",") if name.strip()]
    return _Layer({"plugin": names} if names else {}, lambda _: "environment VIME_PLUGINS")


def _flag_layer(argv_flags: Mapping[str, Any]) -> _Layer:
    kinds = kinds_of(RunConfig)
    values = {name: _parse_flag(name, value, kinds[name]) for name, value in argv_flags.items() if name != "set" and value is not None}
    return _Layer(values, lambda name: f"flag {flag_of(name)}", _parse_set(argv_flags.get("set") or ()))


def _parse_flag(name: str, value: Any, kind: Kind) -> Any:
    """The typed value of what the command line gave; what is typed already comes back as it is."""
    try:
        if isinstance(value, str):
            return kind.parse(value)
        if isinstance(value, list) and kind.item is not None:
            items = cast("list[Any]", value)
            return [kind.item.parse(item) if isinstance(item, str) else item for item in items]
    except (ValueError, yaml.YAMLError):
        raise _wrong_type(flag_of(name), kind, value) from None
    return cast("Any", value)


def _parse_set(assignments: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`["math.timeout=5"]` -> `{"math": {"timeout": 5}}`."""
    settings: dict[str, dict[str, Any]] = {}
    for assignment in assignments:
        target, equals, text = assignment.partition("=")
        plugin, dot, key = target.partition(".")
        if not (plugin and dot and key and equals):
            raise ConfigError(f"--set: expected plugin.key=value, got {assignment!r}", hint="for example --set math.timeout=5")
        try:
            settings.setdefault(plugin, {})[key] = parse_scalar(text)
        except (yaml.YAMLError, RecursionError):
            raise ConfigError(
                f"--set {target}: {text!r} is not a YAML value", hint=f"text is written in quotes: --set '{target}=\"...\"'"
            ) from None
    return settings


def _wants_quickstart(layers: Sequence[_Layer]) -> bool:
    named = ("hf_checkpoint", "prompt_data", "data_source_path", "load_debug_rollout_data", "eval", "eval_config", "eval_prompt_data")
    return not any(layer.values.get(name) for layer in layers for name in (*named, "eval_datasets"))


def _merge(layers: Sequence[_Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """Lay the layers over each other, the last on top. Settings of plugins are merged key by key."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    settings: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for group in _ALTERNATIVES:
            if any(name in layer.values for name in group):
                for name in group:
                    values.pop(name, None)
                    origins.pop(name, None)
        for name, value in layer.values.items():
            values[name], origins[name] = value, layer.origin(name)
        settings |= _by_plugin(layer.values.get("plugin_settings", {}), layer.origin("plugin_settings"))
        for plugin, changes in _by_plugin(layer.settings, "flag --set").items():
            settings[plugin] = {**settings.get(plugin, {}), **changes}
            origins["plugin_settings"] = "flag --set"
    if settings:
        values["plugin_settings"] = settings
    if values.get("no_plugin") and values.get("plugin"):
        left_out = {_canonical(name) for name in values["no_plugin"]}
        values["plugin"] = [name for name in values["plugin"] if _canonical(name) not in left_out]
    return values, origins


def _by_plugin(given: Any, origin: str) -> dict[str, dict[str, Any]]:
    """Settings by canonical name of the plugin. Two spellings of one name are its settings together."""
    if not isinstance(given, dict):
        raise ConfigError(f"{origin}: plugin_settings: expected a mapping of plugins to their settings, got {given!r}")
    settings: dict[str, dict[str, Any]] = {}
    for name, values in cast("dict[Any, Any]", given).items():
        if values is not None and not isinstance(values, dict):
            raise ConfigError(f"{origin}: plugin_settings.{name}: expected a mapping of settings, got {values!r}")
        merged = settings.setdefault(_canonical(str(name)), {})
        for key, value in cast("dict[str, Any]", values or {}).items():
            if key in merged:
                raise ConfigError(f"{origin}: plugin_settings has {name}.{key} twice, in two spellings", hint="keep one of them")
            merged[key] = value
    return settings


def _canonical(name: str) -> str:
    from packaging.utils import canonicalize_name

    return canonicalize_name(name)


def _take_model_from_checkpoint(values: dict[str, Any], origins: dict[str, str]) -> None:
    """Where only a checkpoint is named, its folder is the model: it is in Hugging Face format."""
    load = values.get("load")
    if values.get("hf_checkpoint") is None and values.get("prompt_data") and load and load != "auto":
        values["hf_checkpoint"], origins["hf_checkpoint"] = load, origins["load"]


def _evaluate_only(values: dict[str, Any], origins: dict[str, str], model: str | None, file: Path | None) -> None:
    """`vime eval` is a run of no rollouts, as `--num-rollout 0` says it, whatever the file of the training run says.

    With the config.yaml of a run it does not write into the folder of that run.
    """
    left_out = ["num_epoch", "skip_eval_before_train"]
    if model is not None:
        left_out += ["load", "quickstart"]
    if file is not None and origins.get("run_dir") == f"file {file}" and Path(values["run_dir"] or ".").resolve() == file.resolve().parent:
        left_out += ["run_dir", "save"]
    for name in left_out:
        values.pop(name, None)
        origins.pop(name, None)
    values["num_rollout"], origins["num_rollout"] = 0, "derived"
    if model is not None:
        values["hf_checkpoint"], origins["hf_checkpoint"] = model, "flag --checkpoints"
        if values.get("name") is None:
            values["name"], origins["name"] = "checkpoints", "derived"


def _refuse_hidden(values: Mapping[str, Any]) -> None:
    """Raise ConfigError where a setting holds `***`: the file of a run does not tell its secrets."""
    name = hidden_setting(values)
    if name is not None:
        field, _, inner = name.partition(".")
        give = f"--set {inner}=VALUE" if field == "plugin_settings" else f"{flag_of(field)} VALUE"
        raise ConfigError(f"{name} is hidden in the file ({MASK}): a run does not write down its secrets", hint=f"give it again: {give}")


def _validate(values: Mapping[str, Any], origins: Mapping[str, str], entries: Sequence[EvalEntry]) -> RunConfig:
    try:
        return RunConfig.model_validate(dict(values))
    except ValidationError as error:
        first, *others = error.errors()
        more = f" (and {len(others)} more)" if others else ""
        name, *inner = first["loc"]
        where = (
            flag_of(str(name)) if origins.get(str(name), "").startswith("flag") else f"{origins.get(str(name), 'configuration')}: {name}"
        )
        kind = kinds_of(RunConfig)[str(name)]
        if name == "eval_datasets" and len(inner) >= 2:
            entry = entries[int(inner[0])]
            level = "" if entry.levels.get(str(inner[1]), ENTRY) == ENTRY else f" ({entry.levels[str(inner[1])]})"
            where = f"evaluation dataset {entry.values.get('name', inner[0])!r}: {inner[1]}{level}"
            kind = kinds_of(EvalDatasetConfig).get(str(inner[1]), kind)
        if first["type"] in ("extra_forbidden", "missing"):
            raise ConfigError(f"{where}: {'unknown key' if first['type'] == 'extra_forbidden' else 'missing'}{more}") from None
        raise _wrong_type(where, kind, first["input"], more, finite=first["type"] == "finite_number") from None


def _wrong_type(where: str, kind: Kind, got: Any, more: str = "", *, finite: bool = False) -> ConfigError:
    shown = " ".join(map(str, cast("list[Any]", got))) if isinstance(got, list) else repr(got)
    expected = kind.expected().replace("a number", "a finite number", 1) if finite else kind.expected()
    return ConfigError(f"{where}: expected {expected}, got {shown}{more}")


def unknown_name(name: str, message: str, *, spell: Callable[[str], str]) -> ConfigError:
    """The error for a flag or key that does not exist: what replaces it, or the nearest one. `spell` writes a field's name."""
    snake = name.replace("-", "_")
    instead = replacement(snake)
    if instead is not None:
        return ConfigError(f"{message}: {why_absent(snake)}", hint=instead)
    close = nearest(snake, [*FIELDS, *ALIASES, "config", "set"])
    return ConfigError(message, hint=f"did you mean {spell(close)}?" if close else "vime train --help lists them all")


def _all_origins(config: RunConfig, origins: Mapping[str, str], entries: Sequence[EvalEntry]) -> dict[str, str]:
    complete = {name: origins.get(name) or _origin_of_rest(config, name) for name in RunConfig.model_fields}
    for name in OF_PIPELINE:
        if complete[name] == "derived":
            complete[name] = f"default of --pipeline {config.pipeline}"
    source = next((origins[name] for name in _ALTERNATIVES[-1] if name in origins), "default")
    complete["eval_datasets"] = source
    place = str(config.eval_config) if config.eval_config is not None else source.removeprefix("file ")
    flags = config.model_dump()
    for dataset, entry in zip(config.eval_datasets, entries, strict=True):
        for key in EvalDatasetConfig.model_fields:
            level = entry.levels.get(key)
            if level is None:
                origin = _origin_behind(flag_behind(key, flags), complete)
            else:
                origin = source if config.eval_prompt_data is not None else f"{level} ({place})"
            complete[f"eval_datasets.{dataset.name}.{key}"] = origin
    return complete


def _origin_behind(name: str | None, origins: Mapping[str, str]) -> str:
    """The origin of a dataset's setting that the field `name` decides."""
    if name is None:
        return "default"
    origin = origins[name]
    return origin if origin == f"flag {flag_of(name)}" else f"{origin} ({flag_of(name) if origin == 'default' else name})"


def _origin_of_rest(config: RunConfig, name: str) -> str:
    default = RunConfig.model_fields[name].get_default(call_default_factory=True)
    return "default" if getattr(config, name) == default else "derived"


def plain_values(config: RunConfig) -> dict[str, Any]:
    """The configuration as plain data that `--config` reads back to an equal one.

    Values that follow from others are left out, so that the file can be changed; datasets are written as they were given.
    """
    values = config.model_dump()
    for name in RunConfig.model_fields:
        if name not in config.model_fields_set and _origin_of_rest(config, name) == "derived":
            del values[name]
    for name in ("eval_prompt_data", "eval_config", "vllm_router_ip", "vllm_router_port"):
        values.pop(name, None)
    values["eval_datasets"] = [dataset.model_dump(exclude_unset=True) for dataset in config.eval_datasets]
    return values


def dump_config(config: RunConfig) -> str:
    """`plain_values` as a YAML file."""
    return yaml.safe_dump(plain_values(config), sort_keys=False, allow_unicode=True, width=120)
