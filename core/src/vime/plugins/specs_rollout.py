"""Hook specs of the rollout: data, generation, rewards, filters, logging."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from vime.plugins.markers import hookspec

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.engine.base import Engine, SamplingParams
    from vime.outputs import DynamicFilterOutput, RolloutFnEvalOutput, RolloutFnTrainOutput
    from vime.sample import Sample

    Number = float | int | bool
    Reward = Number | dict[str, Any]


class RolloutSpec:
    """Hooks from the data source to the kept groups."""

    @hookspec
    def make_data_source(self, args: RunConfig) -> Any: ...

    @hookspec
    def generate_rollout(
        self, args: RunConfig, rollout_id: int, data_source: Any, evaluation: bool, engine: Engine
    ) -> RolloutFnTrainOutput | RolloutFnEvalOutput | Awaitable[RolloutFnTrainOutput | RolloutFnEvalOutput]: ...

    @hookspec
    def buffer_filter(
        self, args: RunConfig, rollout_id: int | None, buffer: list[list[Sample]], num_samples: int
    ) -> list[list[Sample]]: ...

    @hookspec
    def custom_generate(
        self, args: RunConfig, sample: Sample, sampling_params: SamplingParams, evaluation: bool, engine: Engine
    ) -> Sample | list[Sample] | Awaitable[Sample | list[Sample]]: ...

    @hookspec
    def rollout_sample_hook(
        self, args: RunConfig, sample: Sample, rollout_id: int, evaluation: bool
    ) -> Sample | Awaitable[Sample | None] | None: ...

    @hookspec
    def custom_rm(
        self, args: RunConfig, sample: Sample, samples: list[Sample]
    ) -> Reward | list[Reward] | Awaitable[Reward | list[Reward]]: ...

    @hookspec
    def shape_reward(self, args: RunConfig, sample: Sample) -> Number | Awaitable[Number | None] | None: ...

    @hookspec
    def dynamic_sampling_filter(self, args: RunConfig, samples: list[Sample]) -> DynamicFilterOutput | bool: ...

    @hookspec
    def rollout_sample_filter(self, args: RunConfig, samples: list[list[Sample]]) -> None: ...

    @hookspec
    def process_all_samples(self, args: RunConfig, all_samples: list[list[Sample]], data_source: Any) -> None: ...

    @hookspec
    def log_rollout_data(
        self, rollout_id: int, args: RunConfig, samples: list[Sample], rollout_extra_metrics: dict[str, float], rollout_time: float
    ) -> bool | None: ...

    @hookspec
    def log_eval_rollout_data(
        self, rollout_id: int, args: RunConfig, data: dict[str, Any], extra_metrics: dict[str, float]
    ) -> bool | None: ...
