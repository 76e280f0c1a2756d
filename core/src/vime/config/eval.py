"""Evaluation datasets: what each is, and where each of its settings comes from.

A setting is taken from the dataset's own entry, else from `eval.defaults`, else from the flags: `eval_*` first, then
the rollout's or the plain one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import yaml
from pydantic import Field

from vime.config.fields import Count, CountOrZero, NonNegative, PathStr, Positive, PositiveFraction, Section, TopK
from vime.config.kinds import ConfigLoader
from vime.config.names import nearest
from vime.errors import ConfigError


class EvalDatasetConfig(Section):
    """One evaluation dataset. In `args.eval_datasets` every setting is resolved; None then means that no level sets it."""

    name: Annotated[str, Field(min_length=1)]
    path: PathStr
    n_samples_per_eval_prompt: Count | None = None
    temperature: NonNegative | None = None
    top_p: PositiveFraction | None = None
    top_k: TopK | None = None
    max_response_len: Count | None = None
    min_new_tokens: CountOrZero | None = None
    repetition_penalty: Positive | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    input_key: str | None = None
    label_key: str | None = None
    tool_key: str | None = None
    metadata_key: str | None = None
    apply_chat_template: bool | None = None
    apply_chat_template_kwargs: dict[str, Any] | None = None
    rm_type: str | None = None
    custom_rm_path: str | None = None
    custom_generate_function_path: str | None = None
    metadata_overrides: dict[str, Any] = Field(default_factory=dict)
    min_eval_samples: Count | None = None

    def inject_metadata(self, metadata: Any) -> dict[str, Any]:
        """A copy of a row's metadata with this dataset's own rm_type, then its metadata_overrides, written over it.

        An rm_type that only came from `--rm-type` does not replace the one that a row names.
        """
        row: dict[str, Any] = dict(cast("Mapping[str, Any]", metadata)) if isinstance(metadata, Mapping) else {}
        if self.rm_type is not None and (self.sets("rm_type") or "rm_type" not in row):
            row["rm_type"] = self.rm_type
        return {**row, **self.metadata_overrides}

    def sets(self, key: str) -> bool:
        """Whether the entry or eval.defaults set this, and not a flag."""
        return key in self.model_fields_set


FLAGS: dict[str, tuple[str, ...]] = {
    "n_samples_per_eval_prompt": ("n_samples_per_eval_prompt",),
    "temperature": ("eval_temperature", "rollout_temperature"),
    "top_p": ("eval_top_p", "rollout_top_p"),
    "top_k": ("eval_top_k", "rollout_top_k"),
    "max_response_len": ("eval_max_response_len", "rollout_max_response_len"),
    "min_new_tokens": ("eval_min_new_tokens", "rollout_min_new_tokens"),
    "repetition_penalty": ("rollout_repetition_penalty",),
    "stop": ("rollout_stop",),
    "stop_token_ids": ("rollout_stop_token_ids",),
    "input_key": ("eval_input_key", "input_key"),
    "label_key": ("eval_label_key", "label_key"),
    "tool_key": ("eval_tool_key", "tool_key"),
    "metadata_key": ("metadata_key",),
    "apply_chat_template": ("apply_chat_template",),
    "apply_chat_template_kwargs": ("apply_chat_template_kwargs",),
    "rm_type": ("rm_type",),
    "custom_rm_path": ("custom_rm_path",),
    "custom_generate_function_path": ("custom_generate_function_path",),
}
"""For each setting the flags that it falls back to, in order."""


def flag_behind(key: str, flags: Mapping[str, Any]) -> str | None:
    """The name of the flag that decides a setting which no entry sets."""
    return next((name for name in FLAGS.get(key, ()) if flags.get(name) is not None), None)


def fill_from_flags(dataset: EvalDatasetConfig, flags: Mapping[str, Any]) -> EvalDatasetConfig:
    """The dataset with every setting that is still open taken from the flags. `sets()` goes on to tell which were not."""
    filled = dataset.model_copy()
    for key in FLAGS:
        name = flag_behind(key, flags)
        if getattr(dataset, key) is None and name is not None:
            object.__setattr__(filled, key, flags[name])  # past the frozen setter, which would count it as set
    return filled


def entries_from_words(words: Sequence[str]) -> list[dict[str, Any]]:
    """The datasets of `--eval-prompt-data NAME PATH [NAME PATH ...]`, or of a single path."""
    if len(words) == 1:
        return [{"name": _name_of_path(words[0]), "path": words[0]}]
    if len(words) % 2:
        raise ConfigError(
            f"--eval-prompt-data: expected names and paths in turn, got {len(words)} words: {' '.join(words)}",
            hint="for example --eval-prompt-data gsm8k test.jsonl easy easy.jsonl",
        )
    return [{"name": name, "path": path} for name, path in zip(words[::2], words[1::2], strict=True)]


def _name_of_path(path: str) -> str:
    return Path(path.partition("@[")[0].removeprefix("hf:").replace(":", "-")).stem


def entries_from_file(path: str) -> list[dict[str, Any]]:
    """The datasets of an `--eval-config` file: at its root, or under `eval:`."""
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=ConfigLoader)
    except OSError as error:
        raise ConfigError(f"--eval-config {path}: {error.strerror}", hint="give the path of a YAML file with `datasets`") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--eval-config {path} is not UTF-8 (byte {error.start})", hint="save the file as UTF-8") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"--eval-config {path} is not YAML: {' '.join(str(error).split())}") from error
    if isinstance(content, dict) and "eval" in content:
        return entries_from_section(cast("dict[str, Any]", content)["eval"], f"{path}: eval")
    return entries_from_section(content, path)


def entries_from_section(section: Any, where: str) -> list[dict[str, Any]]:
    """The datasets of `{defaults: {...}, datasets: ...}`, each with the defaults filled in. `where` begins the messages."""
    section = _mapping(section, where)
    _refuse_unknown(section, ("defaults", "datasets"), where)
    defaults = _mapping(section.get("defaults") or {}, f"{where}.defaults")
    _refuse_unknown(defaults, [key for key in EvalDatasetConfig.model_fields if key not in ("name", "path")], f"{where}.defaults")
    datasets = section.get("datasets")
    if isinstance(datasets, dict):
        named = cast("dict[str, Any]", datasets)
        entries = [{"name": str(name), **_mapping(entry or {}, f"{where}.datasets.{name}")} for name, entry in named.items()]
    elif isinstance(datasets, list):
        entries = [_mapping(entry, f"{where}.datasets[{index}]") for index, entry in enumerate(cast("list[Any]", datasets))]
    else:
        raise ConfigError(f"{where}.datasets: expected a list or a mapping of datasets, got {datasets!r}")
    for index, entry in enumerate(entries):
        label = f"{where}.datasets.{entry.get('name', index)}"
        _refuse_unknown(entry, EvalDatasetConfig.model_fields, label)
        for required in ("name", "path"):
            if required not in entry:
                raise ConfigError(f"{label}: no {required}", hint="each dataset has a name and a path")
    return [{**defaults, **entry} for entry in entries]


def refuse_duplicates(datasets: Sequence[EvalDatasetConfig]) -> None:
    """Two datasets of one name would write over each other's metrics."""
    twice = [name for name, count in Counter(dataset.name for dataset in datasets).items() if count > 1]
    if twice:
        paths = ", ".join(dataset.path for dataset in datasets if dataset.name == twice[0])
        raise ConfigError(f"two evaluation datasets are named {twice[0]!r}: {paths}", hint="give each a name of its own")


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected a mapping, got {value!r}")
    return {str(key).replace("-", "_"): item for key, item in cast("dict[Any, Any]", value).items()}


def _refuse_unknown(section: Mapping[str, Any], known: Any, where: str) -> None:
    for key in section:
        if key not in known:
            close = nearest(key, known)
            raise ConfigError(
                f"{where}: unknown key {key!r}", hint=f"did you mean {close!r}?" if close else "known keys: " + ", ".join(known)
            )
