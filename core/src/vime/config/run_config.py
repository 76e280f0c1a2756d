"""RunConfig: the configuration of a run, flat and frozen. It is the `args` of every hook."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self, cast

from pydantic import Field, model_validator

from vime.config.eval import EvalDatasetConfig, fill_from_flags, refuse_impossible
from vime.config.eval_entries import read_entries
from vime.config.fields import Section
from vime.config.rules import derive, refuse_contradictions
from vime.config.sections import (
    DataSection,
    EvalSection,
    HookPathSection,
    ModelSection,
    PlacementSection,
    PluginSection,
    RewardSection,
    RolloutSection,
    RunSection,
)
from vime.config.train_sections import AlgorithmSection, CriticSection, OptimizerSection, TrainerSection

SECTIONS: tuple[type[Section], ...] = (
    ModelSection,
    DataSection,
    PluginSection,
    RunSection,
    RolloutSection,
    RewardSection,
    EvalSection,
    AlgorithmSection,
    CriticSection,
    OptimizerSection,
    TrainerSection,
    PlacementSection,
    HookPathSection,
)
"""In the order of `--help`. Every field of theirs is a flag."""


class RunConfig(
    ModelSection,
    DataSection,
    PluginSection,
    RunSection,
    RolloutSection,
    RewardSection,
    EvalSection,
    AlgorithmSection,
    CriticSection,
    OptimizerSection,
    TrainerSection,
    PlacementSection,
    HookPathSection,
):
    """Everything that a run is configured by, and nothing else: no handles, no progress.

    Built by `vime.config.load.load_config` from flags, file and environment; in tests directly, for instance
    `RunConfig(rollout_batch_size=2, n_samples_per_prompt=4)`. Raises pydantic's ValidationError for a wrong type or an
    unknown key and ConfigError for values that contradict each other. Fields that follow from others are filled in
    (`global_batch_size`, `over_sampling_batch_size`, ...): see vime.config.rules.
    """

    quickstart: bool = False
    """Whether the model and the data are those that come with the package."""
    eval_datasets: list[EvalDatasetConfig] = Field(default_factory=list[EvalDatasetConfig])
    """The evaluation datasets, with all settings resolved."""
    vllm_router_ip: str | None = None
    """Address of the engine's HTTP endpoint, where one is switched on."""
    vllm_router_port: int | None = None
    """Its port."""

    @model_validator(mode="before")
    @classmethod
    def _read_eval_sources(cls, values: Any) -> Any:
        """Turn `eval`, `eval_config` or `eval_prompt_data` into entries of `eval_datasets`."""
        if not isinstance(values, dict):
            return values
        values = dict(cast("dict[str, Any]", values))
        if values.get("eval") or not values.get("eval_datasets"):
            entries = read_entries(values)
            if entries:
                values["eval_datasets"] = [entry.values for entry in entries]
        values.pop("eval", None)
        return values

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        # Past the frozen setter, which would count what is derived here as set by the user.
        for name, value in derive(self).items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "eval_datasets", [fill_from_flags(dataset, self.__dict__) for dataset in self.eval_datasets])
        refuse_impossible(self.eval_datasets)
        refuse_contradictions(self)
        return self

    @property
    def samples_per_rollout(self) -> int:
        """Samples in a full rollout: rollout_batch_size x n_samples_per_prompt."""
        return self.rollout_batch_size * self.n_samples_per_prompt

    @property
    def grpo_std_normalization(self) -> bool:
        """Upstream's name for `not disable_grpo_std_normalization`."""
        return not self.disable_grpo_std_normalization

    @property
    def run_name(self) -> str:
        """`name`, else "quickstart" or the name of the model's folder."""
        if self.name is not None:
            return self.name
        if self.quickstart or self.hf_checkpoint is None:
            return "quickstart"
        return Path(self.hf_checkpoint).resolve().name
