"""RunConfig: the configuration of a run, flat and frozen. It is the `args` of every hook."""

from __future__ import annotations

from pathlib import Path

from vime.config.eval import EvalDatasetConfig
from vime.config.fields import Section
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
from vime.config.train_sections import AlgorithmSection, OptimizerSection, TrainerSection

SECTIONS: tuple[type[Section], ...] = (
    ModelSection,
    DataSection,
    PluginSection,
    RunSection,
    RolloutSection,
    RewardSection,
    EvalSection,
    AlgorithmSection,
    OptimizerSection,
    TrainerSection,
    PlacementSection,
    HookPathSection,
)
"""In the order of `--help`."""


class RunConfig(
    ModelSection,
    DataSection,
    PluginSection,
    RunSection,
    RolloutSection,
    RewardSection,
    EvalSection,
    AlgorithmSection,
    OptimizerSection,
    TrainerSection,
    PlacementSection,
    HookPathSection,
):
    """Everything that a run is configured by, and nothing else: no handles, no progress.

    Built by `vime.config.load.load_config` from flags, file and environment; in tests directly, for instance
    `RunConfig(rollout_batch_size=2, n_samples_per_prompt=4)`.
    """

    quickstart: bool = False
    eval_datasets: list[EvalDatasetConfig] = []
    vllm_router_ip: str | None = None
    vllm_router_port: int | None = None

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
