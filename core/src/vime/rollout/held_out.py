"""Held-out rows as training samples: what a supervised run takes its evaluation's loss of.

The function that makes the run's training samples makes these too, of another source. So whatever it is, the loss is
that of the same tokens under the same masks as in training, and nothing is generated.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vime.errors import ContractError
from vime.rollout.guards import check_train_output, normalise_train_output
from vime.rollout.runner import BUILT_IN_PATHS
from vime.rollout.unchanged import watched
from vime.sample import Sample, Status

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.plugins.manager import HookFunction, PluginManager
    from vime.rollout.evaluate import EvalDataset


class HeldOutSource:
    """The rows of an evaluation dataset, once and in order, as the data source of a rollout function."""

    def __init__(self, dataset: EvalDataset, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._groups = dataset.groups()[::-1]

    def __len__(self) -> int:
        return len(self._groups)

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """At most `num_samples` groups of one fresh sample."""
        return [self._groups.pop() for _ in range(min(num_samples, len(self._groups)))]

    def add_samples(self, samples: list[list[Sample]]) -> None:
        raise ContractError("held-out rows were given back", hint="an evaluation by loss takes each row once, whole")


def loss_evaluation(config: RunConfig, plugins: PluginManager) -> HookFunction | None:
    """The rollout function whose samples an evaluation takes the loss of; None where an evaluation generates.

    That is under `--loss-type sft_loss`, unless --eval-function-path names what evaluates.
    """
    if config.loss_type != "sft_loss" or config.eval_function_path is not None or config.rollout_function_path in BUILT_IN_PATHS:
        return None
    return plugins.claimed("generate_rollout")


async def held_out_samples(
    config: RunConfig, function: HookFunction, dataset: EvalDataset, tokenizer: Any, rollout_id: int
) -> list[Sample]:
    """The samples that `function` makes of all rows, `rollout_batch_size` at a time. It sees a training rollout of that size."""
    settings = dataset.config.model_copy(update={"n_samples_per_eval_prompt": 1})
    source = HeldOutSource(type(dataset)(settings, dataset.rows), tokenizer)
    samples: list[Sample] = []
    while len(source):
        size = min(config.rollout_batch_size, len(source))
        fields = {"rollout_batch_size": size, "over_sampling_batch_size": size, "global_batch_size": size, "n_samples_per_prompt": 1}
        fields["num_steps_per_rollout"] = 1
        fields["rollout_max_response_len"] = settings.max_response_len or config.rollout_max_response_len
        args = config.model_copy(update=fields)
        arguments = {"args": args, "rollout_id": rollout_id, "data_source": source, "evaluation": False, "engine": None}
        with watched(config, function):
            if function.is_async:
                made = await function.acall(**arguments)
            else:
                made = await asyncio.to_thread(function.call, **arguments)
                made = await made if inspect.isawaitable(made) else made
        output = normalise_train_output(function.label, made)
        check_train_output(args, function.label, output, fewer_allowed=False)
        samples += [sample for group in output.samples for sample in group]
    return samples


def loss_metrics(name: str, samples: Sequence[Sample], log_probs: Sequence[Sequence[float]]) -> dict[str, float]:
    """Metrics of one dataset, without the `eval/` namespace. `log_probs` has those of each sample's trained tokens.

    `loss` is -sum(log p) / tokens over all trained tokens of the dataset, whatever row or batch they are in, and
    `perplexity` exp(loss). A dataset without trained tokens has neither.
    """
    tokens = sum(map(len, log_probs))
    metrics = {
        f"{name}/trained_tokens": float(tokens),
        f"{name}/removed_samples": float(sum(sample.remove_sample for sample in samples)),
    }
    if samples:
        metrics[f"{name}-truncated_ratio"] = sum(sample.status is Status.TRUNCATED for sample in samples) / len(samples)
    if tokens:
        loss = -math.fsum(value for row in log_probs for value in row) / tokens
        metrics[f"{name}/loss"] = loss
        if loss < math.log(1e300):
            metrics[f"{name}/perplexity"] = math.exp(loss)
    return metrics


def as_eval_data(samples: list[Sample], log_probs: Sequence[Sequence[float]]) -> dict[str, list[Any]]:
    """What log hooks and sample files show: the reward of a sample becomes the mean log-prob of its trained tokens, 0 without any."""
    for sample, row in zip(samples, log_probs, strict=True):
        sample.reward = math.fsum(row) / len(row) if row else 0.0
    return {
        "rewards": [sample.reward for sample in samples],
        "truncated": [sample.status is Status.TRUNCATED for sample in samples],
        "samples": samples,
    }
