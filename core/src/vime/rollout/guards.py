"""What the core checks of a rollout function's result, whoever made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vime.errors import ContractError
from vime.outputs import RolloutFnEvalOutput, RolloutFnTrainOutput
from vime.rollout.reward_guard import check_key, check_number, check_reward
from vime.sample import Sample, Status, rollouts

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig


def normalise_train_output(who: str, output: Any) -> RolloutFnTrainOutput:
    """Accept RolloutFnTrainOutput, a bare list of groups, or groups nested by rollout (flattened)."""
    if isinstance(output, list):
        output = RolloutFnTrainOutput(samples=output)
    if not isinstance(output, RolloutFnTrainOutput):
        raise ContractError(
            f"{who}: generate_rollout returned {type(output).__name__}; expected RolloutFnTrainOutput or a list of groups",
            hint="return RolloutFnTrainOutput(samples=[[Sample, ...], ...])",
        )
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
    seen: set[int] = set()
    with_log_probs = 0
    for position, group in enumerate(groups):
        where = f"{who}: group {position}"
        for sample in group:
            if not isinstance(sample, Sample):
                raise ContractError(f"{where} holds a {type(sample).__name__}; expected Sample")
            if id(sample) in seen:
                raise ContractError(
                    f"{where}: sample {sample.index} appears twice in the rollout",
                    hint="return each Sample object once; copy it if it must be used again",
                )
            seen.add(id(sample))
            _check_sample(config, where, sample)
            _check_reward(config, f"{where}: generate_rollout", sample)
            with_log_probs += sample.rollout_log_probs is not None
        size = len(rollouts(group))
        if size != config.n_samples_per_prompt:
            raise ContractError(f"{where} has {size} rollouts, expected {config.n_samples_per_prompt} (n_samples_per_prompt)")
    if with_log_probs not in (0, len(seen)):
        raise ContractError(
            f"{who}: {with_log_probs} of {len(seen)} samples have rollout_log_probs", hint="give all samples of a batch log-probs, or none"
        )


def _check_sample(config: RunConfig, where: str, sample: Sample) -> None:
    name = f"{where}, sample {sample.index}"
    allowed = {Status.COMPLETED, Status.TRUNCATED} | ({Status.FAILED} if config.on_reward_error != "raise" else set())
    if sample.status not in allowed:
        raise ContractError(
            f"{name} has status {sample.status.value}; expected completed or truncated", hint="set sample.status after generating"
        )
    if not sample.tokens or not 0 <= sample.response_length <= len(sample.tokens):
        raise ContractError(
            f"{name} has {len(sample.tokens)} tokens and response_length {sample.response_length}",
            hint="add tokens with sample.append_response_tokens",
        )
    for attribute in ("loss_mask", "rollout_log_probs"):
        values = getattr(sample, attribute)
        if values is not None and len(values) != sample.response_length:
            raise ContractError(f"{name}: {attribute} has {len(values)} entries for a response of {sample.response_length} tokens")


def _check_reward(config: RunConfig, who: str, sample: Sample) -> None:
    if sample.status is Status.FAILED:
        return
    if sample.reward is None:
        raise ContractError(f"{who} left sample {sample.index} without a reward", hint="set sample.reward in the rollout function")
    keys = (config.reward_key,) if config.reward_key else ()
    sample.reward = check_reward(sample.reward, who, sample, keys)
    check_key(sample.reward, config.reward_key, who, sample, "--reward-key")


def normalise_eval_output(who: str, output: Any) -> RolloutFnEvalOutput:
    """Accept RolloutFnEvalOutput or a bare dict by dataset; each dataset has three equally long lists, its rewards are numbers."""
    if isinstance(output, dict):
        output = RolloutFnEvalOutput(data=output)
    if not isinstance(output, RolloutFnEvalOutput):
        raise ContractError(f"{who}: the evaluation returned {type(output).__name__}; expected RolloutFnEvalOutput or a dict by dataset")
    for name, data in output.data.items():
        missing = [key for key in ("rewards", "truncated", "samples") if key not in data]
        if missing:
            raise ContractError(f"{who}: evaluation dataset {name!r} lacks {', '.join(missing)}")
        lengths = {key: len(data[key]) for key in ("rewards", "truncated", "samples")}
        if len(set(lengths.values())) > 1:
            raise ContractError(f"{who}: evaluation dataset {name!r} has lists of different lengths: {lengths}")
        for reward, sample in zip(data["rewards"], data["samples"], strict=True):
            if not isinstance(sample, Sample):
                raise ContractError(f"{who}: evaluation dataset {name!r} holds a {type(sample).__name__} under 'samples'; expected Sample")
            check_number(reward, f"{who}: the evaluation of dataset {name!r}", "as the reward", sample)
    return output
