"""Evaluation datasets: what each is, and where each of its settings comes from.

A setting is taken from the dataset's own entry, else from `eval.defaults`, else from the flags: `eval_*` first, then
the rollout's or the plain one. vime.config.eval_entries reads the two upper levels.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pydantic import Field

from vime.config.fields import Count, CountOrZero, NonNegative, PathStr, Positive, PositiveFraction, Section, TopK, Word
from vime.errors import ConfigError

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig


class EvalDatasetConfig(Section):
    """One evaluation dataset. In `args.eval_datasets` every setting is resolved; None then means that no level sets it."""

    name: Word
    path: PathStr
    n_samples_per_eval_prompt: Count | None = None
    temperature: NonNegative | None = None
    top_p: PositiveFraction | None = None
    top_k: TopK | None = None
    max_response_len: Count | None = None
    min_new_tokens: CountOrZero | None = None
    repetition_penalty: Positive | None = None
    stop: list[Word] | None = None
    stop_token_ids: list[int] | None = None
    input_key: Word | None = None
    label_key: Word | None = None
    tool_key: Word | None = None
    metadata_key: Word | None = None
    apply_chat_template: bool | None = None
    apply_chat_template_kwargs: dict[str, Any] | None = None
    rm_type: Word | None = None
    custom_rm_path: Word | None = None
    custom_generate_function_path: Word | None = None
    metadata_overrides: dict[str, Any] = Field(default_factory=dict)
    min_eval_samples: Count | None = None
    """Rollouts that have to be generated and scored for the dataset's scores to count."""

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


_METRICS = re.compile(
    r"-truncated_ratio|-pass@\d+|/failed_samples|/response_len/(mean|median|max|min)|/reward/.+"
    r"|/loss|/perplexity|/trained_tokens|/removed_samples"
)
"""What stands after the name of a dataset in the names of its metrics."""


def refuse_impossible(datasets: Sequence[EvalDatasetConfig]) -> None:
    """Raise ConfigError for datasets that would write over each other's metrics, and for lengths that exclude each other."""
    twice = [name for name, count in Counter(dataset.name for dataset in datasets).items() if count > 1]
    if twice:
        paths = ", ".join(dataset.path for dataset in datasets if dataset.name == twice[0])
        raise ConfigError(f"two evaluation datasets are named {twice[0]!r}: {paths}", hint="give each a name of its own")
    names = [dataset.name for dataset in datasets]
    for name in names:
        if not name.isprintable() or name != name.strip():
            raise ConfigError(
                f"evaluation dataset {name!r}: its name begins or ends in a blank, or has a character that cannot be shown",
                hint="it becomes a part of the names of metrics and files",
            )
        for other in names:
            if other != name and other.startswith(name) and _METRICS.fullmatch(other[len(name) :]):
                raise ConfigError(
                    f"evaluation datasets {name!r} and {other!r}: the mean reward of the one is called as a metric of the other, "
                    f"eval/{other}",
                    hint="choose another name",
                )
    for dataset in datasets:
        least, most = dataset.min_new_tokens or 0, dataset.max_response_len
        if most is not None and least > most:
            raise ConfigError(
                f"evaluation dataset {dataset.name!r}: min_new_tokens is {least}, more than its max_response_len {most}",
                hint="lower the one or raise the other; vime config show says where each comes from",
            )


def dataset_doubts(config: RunConfig) -> list[str]:
    """Settings of evaluations that have no effect beside others, one line each."""
    doubts: list[str] = []
    for dataset in config.eval_datasets:
        where = f"evaluation dataset {dataset.name!r}"
        if dataset.sets("rm_type") and dataset.custom_rm_path is not None:
            doubts.append(
                f"{where}: rm_type {dataset.rm_type} has no effect beside custom_rm_path {dataset.custom_rm_path}, which goes first"
            )
        if dataset.sets("apply_chat_template_kwargs") and dataset.apply_chat_template_kwargs and not dataset.apply_chat_template:
            doubts.append(f"{where}: apply_chat_template_kwargs has no effect without apply_chat_template")
    if config.eval_datasets and config.eval_interval is None and config.skip_eval_before_train and not config.debug_train_only:
        doubts.append("there is no evaluation: --skip-eval-before-train leaves out the first, and no --eval-interval asks for more")
    if config.eval_function_path is not None and not config.eval_datasets:
        doubts.append("eval_function_path has no effect without evaluation datasets (--eval-prompt-data or --eval-config)")
    return doubts
