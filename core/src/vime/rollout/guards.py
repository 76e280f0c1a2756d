"""What the core checks of a rollout function's result, whoever made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vime.errors import ContractError
from vime.outputs import RolloutFnEvalOutput, RolloutFnTrainOutput
from vime.rollout.hook_guards import check_aligned, check_metrics
from vime.rollout.reward_guard import check_key, check_number, check_reward
from vime.sample import TOTAL, Sample, Status, rollouts

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig


def normalise_train_output(who: str, output: Any) -> RolloutFnTrainOutput:
    """Accept RolloutFnTrainOutput, a bare list of groups, or groups nested by rollout (flattened)."""
    if isinstance(output, list):
        output = RolloutFnTrainOutput(samples=output)
    if not isinstance(output, RolloutFnTrainOutput) or not isinstance(output.samples, list):
        got = "None" if output is None else type(output).__name__
        if isinstance(output, RolloutFnTrainOutput):
            got = f"RolloutFnTrainOutput(samples={type(output.samples).__name__})"
        hint = "return RolloutFnTrainOutput(samples=[[Sample, ...], ...])"
        if isinstance(output, RolloutFnEvalOutput | dict):
            hint = "that is what an evaluation returns: this call was for training, with evaluation=False"
        raise ContractError(f"{who}: generate_rollout returned {got}; expected RolloutFnTrainOutput or a list of groups", hint=hint)
    if output.metrics is not None:
        check_metrics(who, "generate_rollout", output.metrics)
    groups: list[list[Sample]] = []
    for position, group in enumerate(output.samples):
        if not isinstance(group, list):
            raise ContractError(
                f"{who}: generate_rollout returned {type(group).__name__} as group {position}; expected a list of samples",
                hint="return groups, not a flat list of samples",
            )
        groups.append([sample for entry in group for sample in (entry if isinstance(entry, list) else [entry])])
    return RolloutFnTrainOutput(samples=groups, metrics=output.metrics)


def check_train_output(config: RunConfig, who: str, output: RolloutFnTrainOutput, *, fewer_allowed: bool) -> None:
    """Raise ContractError, naming the rollout function and the group or sample, for a batch that cannot be trained.

    Rewards become plain floats where they are numbers of another type (numpy scalars, bools).
    """
    groups, expected = output.samples, config.rollout_batch_size
    if len(groups) != expected and not (fewer_allowed and 0 < len(groups) < expected):
        raise ContractError(
            f"{who}: generate_rollout returned {len(groups)} groups, expected {expected} (rollout_batch_size)",
            hint="return exactly args.rollout_batch_size groups; --on-exhausted underfill allows fewer",
        )
    allowed = frozenset({Status.COMPLETED, Status.TRUNCATED} | ({Status.FAILED} if config.on_reward_error != "raise" else set()))
    seen: set[int] = set()
    with_log_probs = 0
    for position, group in enumerate(groups):
        where = f"{who}: group {position}"
        maker = f"{where}: generate_rollout"
        for sample in group:
            if not isinstance(sample, Sample):
                raise ContractError(
                    f"{where} holds a {type(sample).__name__}; expected Sample", hint="return the Sample objects of data_source.get_samples"
                )
            if id(sample) in seen:
                raise ContractError(
                    f"{where}: sample {sample.index} appears twice in the rollout",
                    hint="return each Sample object once; copy it if it must be used again",
                )
            seen.add(id(sample))
            _check_sample(where, sample, allowed)
            _check_reward(config, maker, sample)
            with_log_probs += sample.rollout_log_probs is not None
        size = len(rollouts(group))
        if size != config.n_samples_per_prompt:
            raise ContractError(
                f"{where} has {size} rollouts, expected {config.n_samples_per_prompt} (n_samples_per_prompt)",
                hint="return whole groups; samples that share a rollout_id count as one rollout",
            )
    if with_log_probs not in (0, len(seen)):
        raise ContractError(
            f"{who}: {with_log_probs} of {len(seen)} samples have rollout_log_probs", hint="give all samples of a batch log-probs, or none"
        )


def _check_sample(where: str, sample: Sample, allowed: frozenset[Status]) -> None:
    if sample.status not in allowed:
        got = sample.status.value if isinstance(sample.status, Status) else repr(sample.status)
        raise ContractError(
            f"{where}, sample {sample.index} has status {got}; expected completed or truncated", hint="set sample.status after generating"
        )
    check_aligned(where, sample)


def _check_reward(config: RunConfig, who: str, sample: Sample) -> None:
    if sample.status is Status.FAILED:
        return
    if sample.reward is None:
        raise ContractError(f"{who} left sample {sample.index} without a reward", hint="set sample.reward in the rollout function")
    sample.reward = check_reward(sample.reward, who, sample, (config.reward_key or TOTAL,))
    check_key(sample.reward, config.reward_key, who, sample, "--reward-key")


def normalise_eval_output(who: str, output: Any) -> RolloutFnEvalOutput:
    """Accept RolloutFnEvalOutput or a bare dict by dataset; each dataset has three equally long lists, its rewards are numbers."""
    if isinstance(output, dict):
        output = RolloutFnEvalOutput(data=output)
    if not isinstance(output, RolloutFnEvalOutput) or not isinstance(output.data, dict):
        got = "None" if output is None else type(output).__name__
        got = f"{got}(data={type(output.data).__name__})" if isinstance(output, RolloutFnEvalOutput) else got
        hint = 'return RolloutFnEvalOutput({name: {"rewards": [...], "truncated": [...], "samples": [...]}})'
        if isinstance(output, RolloutFnTrainOutput | list):
            hint = "give generate_rollout a parameter `evaluation`, True here, or name another function with --eval-function-path"
        raise ContractError(f"{who}: the evaluation returned {got}; expected RolloutFnEvalOutput or a dict by dataset", hint=hint)
    if output.metrics is not None:
        check_metrics(who, "generate_rollout", output.metrics)
    for name, data in output.data.items():
        if not isinstance(name, str):
            hint = "name it as in args.eval_datasets: the name is a part of the metrics' names"
            raise ContractError(f"{who}: an evaluation dataset has the name {name!r:.80}; expected a str", hint=hint)
        _check_eval_data(f"{who}: evaluation dataset {name!r}", data)
        for reward, sample in zip(data["rewards"], data["samples"], strict=True):
            if not isinstance(sample, Sample):
                raise ContractError(
                    f"{who}: evaluation dataset {name!r} holds a {type(sample).__name__} under 'samples'; expected Sample",
                    hint="give the Sample objects that were scored",
                )
            check_number(reward, f"{who}: the evaluation of dataset {name!r}", "as the reward", sample)
    return output


def _check_eval_data(where: str, data: Any) -> None:
    """The three lists of one dataset are there and equally long."""
    keys = ("rewards", "truncated", "samples")
    hint = "give three lists, one entry for each sample: rewards, truncated, samples"
    if not isinstance(data, dict):
        raise ContractError(f"{where} is a {type(data).__name__}; expected a dict of lists", hint=hint)
    missing = [key for key in keys if key not in data]
    if missing:
        raise ContractError(f"{where} lacks {', '.join(missing)}", hint=hint)
    for key in keys:
        if not isinstance(data[key], list | tuple):
            way = f"values.tolist() makes {key} a list" if hasattr(data[key], "tolist") else hint
            raise ContractError(f"{where} has a {type(data[key]).__name__} as {key}; expected a list", hint=way)
    lengths = {key: len(data[key]) for key in keys}
    if len(set(lengths.values())) > 1:
        raise ContractError(f"{where} has lists of different lengths: {lengths}", hint=hint)
