"""Hook specs of the training half of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vime.plugins.markers import hookspec

if TYPE_CHECKING:
    from torch import Tensor

    from vime.config.run_config import RunConfig
    from vime.sample import Sample


class TrainSpec:
    """Hooks from the kept samples to the optimizer step."""

    @hookspec
    def post_process_rewards(self, args: RunConfig, samples: list[Sample]) -> tuple[Sequence[float], Sequence[float]]: ...

    @hookspec
    def convert_samples_to_train_data(self, args: RunConfig, samples: list[Sample]) -> dict[str, list[Any]]: ...

    @hookspec
    def rollout_data_postprocess(self, args: RunConfig, rollout_id: int, rollout_data: dict[str, Any]) -> None: ...

    @hookspec
    def compute_advantages(self, args: RunConfig, rollout_data: dict[str, Any]) -> None: ...

    @hookspec
    def policy_loss(self, args: RunConfig, inputs: Any) -> tuple[Tensor, dict[str, Tensor]]: ...

    @hookspec
    def importance_weights(
        self, args: RunConfig, pg_loss: Tensor, train_log_probs: list[Tensor], rollout_log_probs: list[Tensor], loss_masks: list[Tensor]
    ) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]: ...

    @hookspec
    def pg_loss_reducer(
        self, total_lengths: list[int], response_lengths: list[int], loss_masks: list[Tensor], calculate_per_token_loss: bool
    ) -> Callable[[Tensor], Tensor]: ...
