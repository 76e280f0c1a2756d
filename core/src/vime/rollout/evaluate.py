"""Evaluation: every dataset is generated and scored, all of them at once, and summed up in metrics."""

from __future__ import annotations

import asyncio
import copy
import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime.errors import ContractError, EngineError
from vime.outputs import RolloutFnEvalOutput
from vime.rollout.generate import GroupResult, eval_sampling_params, generate_group
from vime.rollout.metrics import part_means
from vime.sample import Sample, Status, rollouts

if TYPE_CHECKING:
    from vime.config.eval import EvalDatasetConfig
    from vime.config.run_config import RunConfig
    from vime.data.dataset import Dataset, PromptRow
    from vime.engine.base import SamplingParams
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


async def evaluate(
    context: RolloutContext, datasets: list[EvalDataset], rollout_id: int, progress: Callable[[int, int], None] | None = None
) -> RolloutFnEvalOutput:
    """Generate and score all datasets concurrently. Failed samples have reward 0 in `rewards` and count as wrong.

    `progress` sees how many prompts are done, of how many, after each.
    """
    done, total = itertools.count(1), sum(len(dataset.rows) for dataset in datasets)

    async def answered(group: list[Sample], params: SamplingParams, dataset: EvalDataset) -> GroupResult:
        result = await generate_group(context, group, params, rollout_id=rollout_id, evaluation=True, dataset=dataset.config)
        if progress is not None:
            progress(next(done), total)
        return result

    async def run(dataset: EvalDataset) -> dict[str, list[Any]]:
        params = eval_sampling_params(dataset.config)
        results = await asyncio.gather(*(answered(group, params, dataset) for group in dataset.groups()))
        samples = [sample for result in results for sample in result.group]
        for sample in samples:
            _refuse_unfinished(context, dataset.config, sample)
        failed = [sample for sample in samples if sample.status is Status.FAILED]
        reason = next((slot.failure for result in results for slot in result.slots if slot.is_failed and slot.failure), None)
        if reason is not None and len(failed) == len(samples):
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
    """Metrics of contracts section 5 without the `eval/` namespace. An empty dataset contributes nothing.

    A rollout of several samples counts once in the mean reward and in pass@k, and each of its samples in the lengths. A
    dataset with fewer good rollouts than its `min_eval_samples` has no reward and no pass@k (see `shortfalls`).
    """
    metrics: dict[str, float] = dict(output.metrics or {})
    short = shortfalls(config, output)
    for name, data in output.data.items():
        samples: list[Sample] = data["samples"]
        if not samples:
            continue
        if name not in short:
            prompts = _by_prompt(name, data, samples_per_prompt.get(name))
            rewards = [answer.reward for answers in prompts for answer in answers]
            metrics[name] = sum(rewards) / len(rewards)
            metrics |= _pass_metrics(name, prompts, samples_per_prompt.get(name), config.eval_success_threshold)
        scored = [sample for sample in samples if sample.status is not Status.FAILED]
        metrics |= {f"{name}/{key}": mean for key, mean in part_means(scored, failed=len(samples) - len(scored)).items()}
        lengths = [sample.response_length for sample in samples]
        metrics |= {
            f"{name}-truncated_ratio": sum(map(bool, data["truncated"])) / len(samples),
            f"{name}/failed_samples": len(samples) - len(scored),
            f"{name}/response_len/mean": statistics.fmean(lengths),
            f"{name}/response_len/median": statistics.median(lengths),
            f"{name}/response_len/max": max(lengths),
            f"{name}/response_len/min": min(lengths),
        }
    return metrics


def shortfalls(config: RunConfig, output: RolloutFnEvalOutput) -> dict[str, str]:
    """What is to be said of each dataset that has fewer good rollouts than its `min_eval_samples`."""
    found: dict[str, str] = {}
    for dataset in config.eval_datasets:
        if dataset.min_eval_samples is None or dataset.name not in output.data:
            continue
        answers = rollouts(output.data[dataset.name]["samples"])
        good = sum(all(sample.status is not Status.FAILED for sample in siblings) for siblings in answers)
        if good < dataset.min_eval_samples:
            found[dataset.name] = (
                f"evaluation dataset {dataset.name!r}: {good} of {len(answers)} rollouts were generated and scored, fewer than its "
                f"min_eval_samples {dataset.min_eval_samples}: no score is reported"
            )
    return found


@dataclass(frozen=True)
class _Answer:
    """One rollout of an evaluation: the reward that its samples share, and whether it failed."""

    reward: float
    failed: bool


def _by_prompt(name: str, data: dict[str, list[Any]], n: int | None) -> list[list[_Answer]]:
    """The answers to each prompt: by group_index, or where a function of the user's own leaves that out, `n` after each other."""
    found: dict[tuple[int | None, bool, int], list[_Answer]] = {}
    for position, (sample, reward) in enumerate(zip(data["samples"], data["rewards"], strict=True)):
        key = (sample.group_index, sample.rollout_id is None, position if sample.rollout_id is None else sample.rollout_id)
        found.setdefault(key, []).append(_Answer(float(reward), sample.status is Status.FAILED))
    by_group: dict[int | None, list[_Answer]] = {}
    for (group_index, _, rollout_id), siblings in found.items():
        rewards = {sibling.reward for sibling in siblings}
        if len(rewards) > 1:
            raise ContractError(
                f"evaluation dataset {name!r}: the samples of rollout {rollout_id} (group {group_index}) have different rewards: "
                f"{sorted(rewards)}",
                hint="samples that share a rollout_id are one answer: give them its reward, or ids of their own",
            )
        by_group.setdefault(group_index, []).append(_Answer(rewards.pop(), any(sibling.failed for sibling in siblings)))
    if None not in by_group:
        return list(by_group.values())
    answers = [answer for group in by_group.values() for answer in group]
    size = n if n is not None and len(answers) % n == 0 else 1
    return [answers[start : start + size] for start in range(0, len(answers), size)]


def _pass_metrics(name: str, prompts: list[list[_Answer]], n: int | None, threshold: float) -> dict[str, float]:
    """pass@1, 2, 4 ... up to the dataset's n, as far as every prompt has so many answers. A failed answer is a wrong one."""
    fewest = min(map(len, prompts))
    most = fewest if n is None else min(n, fewest)
    counts = [(len(answers), sum(not answer.failed and answer.reward >= threshold for answer in answers)) for answers in prompts]
    powers = [2**e for e in range(most.bit_length()) if 2**e <= most]
    return {f"{name}-pass@{k}": statistics.fmean(pass_at_k(size, correct, k) for size, correct in counts) for k in powers}
