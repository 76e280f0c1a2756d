"""Evaluation: every dataset is generated and scored, all of them at once, and summed up in metrics."""

from __future__ import annotations

import asyncio
import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime.errors import ContractError, EngineError
from vime.outputs import RolloutFnEvalOutput
from vime.rollout.generate import eval_sampling_params, generate_group
from vime.rollout.metrics import part_means
from vime.sample import Sample, Status

if TYPE_CHECKING:
    from vime.config.eval import EvalDatasetConfig
    from vime.config.run_config import RunConfig
    from vime.data.dataset import Dataset, PromptRow
    from vime.rollout.context import RolloutContext


@dataclass(frozen=True)
class EvalDataset:
    """An evaluation dataset with its rows and settings."""

    config: EvalDatasetConfig
    rows: Dataset

    def groups(self) -> list[list[Sample]]:
        """One group of n_samples_per_eval_prompt fresh samples a row, which share no mutable part."""
        n = self.config.n_samples_per_eval_prompt or 1
        return [[self._sample(row, g, g * n + i) for i in range(n)] for g, row in enumerate(self.rows)]

    def _sample(self, row: PromptRow, group_index: int, index: int) -> Sample:
        return Sample(
            group_index=group_index,
            index=index,
            prompt=copy.deepcopy(row.prompt),
            label=copy.deepcopy(row.label),
            metadata=copy.deepcopy(self.config.inject_metadata(row.metadata)),
        )


async def evaluate(context: RolloutContext, datasets: list[EvalDataset], rollout_id: int) -> RolloutFnEvalOutput:
    """Generate and score all datasets concurrently. Failed samples have reward 0 in `rewards` and count as wrong."""

    async def run(dataset: EvalDataset) -> dict[str, list[Any]]:
        params = eval_sampling_params(dataset.config)
        results = await asyncio.gather(
            *(
                generate_group(context, group, params, rollout_id=rollout_id, evaluation=True, dataset=dataset.config)
                for group in dataset.groups()
            )
        )
        samples = [sample for result in results for sample in result.group]
        for sample in samples:
            _refuse_unfinished(context, dataset.config, sample)
        failed = [sample for sample in samples if sample.status is Status.FAILED]
        if failed and len(failed) == len(samples):
            reason = next(reason for result in results for reason in result.failure_reasons)
            raise EngineError(f"evaluation dataset {dataset.config.name!r}: all {len(samples)} samples failed: {reason}")
        return {
            "rewards": [0.0 if sample.status is Status.FAILED else _reward(context.config, sample) for sample in samples],
            "truncated": [sample.status is Status.TRUNCATED for sample in samples],
            "samples": samples,
        }

    outputs = await asyncio.gather(*(run(dataset) for dataset in datasets))
    return RolloutFnEvalOutput(data={dataset.config.name: output for dataset, output in zip(datasets, outputs, strict=True)})


def _refuse_unfinished(context: RolloutContext, dataset: EvalDatasetConfig, sample: Sample) -> None:
    """Raise ContractError, naming data set, function and sample, for a sample that cannot count in a score."""
    finished = sample.status in (Status.COMPLETED, Status.TRUNCATED)
    if sample.status is Status.FAILED or (finished and sample.reward is not None):
        return
    path = sample.generate_function_path or dataset.custom_generate_function_path
    function = context.plugins.path_function(path, "custom_generate") if path else context.plugins.claimed("custom_generate")
    who = f"evaluation dataset {dataset.name!r}" + (f": {function.label}: custom_generate" if function is not None else "")
    if finished:
        raise ContractError(f"{who} left sample {sample.index} without a reward", hint="set sample.reward, or enable a reward plugin")
    raise ContractError(
        f"{who} left sample {sample.index} with status {sample.status.value}; expected completed or truncated",
        hint="set sample.status after generating; an evaluation is not continued later",
    )


def _reward(config: RunConfig, sample: Sample) -> float:
    key = config.eval_reward_key or config.reward_key
    if key and isinstance(sample.reward, dict) and key in sample.reward:
        return float(sample.reward[key])
    return float(sample.get_reward_value(config))


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased pass@k of one prompt: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, Evaluating Large Language Models
    Trained on Code, eq. 1)."""
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def eval_metrics(config: RunConfig, output: RolloutFnEvalOutput, samples_per_prompt: dict[str, int]) -> dict[str, float]:
    """Metrics of contracts section 5 without the `eval/` namespace. An empty dataset contributes nothing."""
    metrics: dict[str, float] = dict(output.metrics or {})
    for name, data in output.data.items():
        rewards: list[float] = data["rewards"]
        if not rewards:
            continue
        metrics[name] = sum(rewards) / len(rewards)
        metrics[f"{name}-truncated_ratio"] = sum(map(bool, data["truncated"])) / len(rewards)
        scored = [sample for sample in data["samples"] if sample.status is not Status.FAILED]
        failed = len(data["samples"]) - len(scored)
        metrics[f"{name}/failed_samples"] = failed
        metrics |= {f"{name}/{key}": mean for key, mean in part_means(scored, failed).items()}
        lengths = sorted(sample.response_length for sample in data["samples"])
        if lengths:
            middle = len(lengths) // 2
            metrics[f"{name}/response_len/mean"] = sum(lengths) / len(lengths)
            metrics[f"{name}/response_len/median"] = lengths[middle] if len(lengths) % 2 else (lengths[middle - 1] + lengths[middle]) / 2
            metrics[f"{name}/response_len/max"] = lengths[-1]
            metrics[f"{name}/response_len/min"] = lengths[0]
        metrics |= _pass_metrics(name, rewards, samples_per_prompt.get(name, 1), config.eval_success_threshold)
    return metrics


def _pass_metrics(name: str, rewards: list[float], n: int, threshold: float) -> dict[str, float]:
    if len(rewards) % n:
        return {}  # fan-out: the rewards are not n a prompt
    correct = [sum(reward >= threshold for reward in rewards[i : i + n]) for i in range(0, len(rewards), n)]
    powers = [2**e for e in range(n.bit_length()) if 2**e <= n]
    return {f"{name}-pass@{k}": sum(pass_at_k(n, c, k) for c in correct) / len(correct) for k in powers}
