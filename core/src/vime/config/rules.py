"""What follows from what in a configuration: derived values, contradictions, and doubts that are worth a warning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime.config.eval import dataset_doubts
from vime.config.names import flag_of
from vime.config.reward_sum import derived_keys, refuse_bad_sums
from vime.config.trackers import derived_trackers
from vime.config.train_sections import GROUP_ESTIMATORS, AlgorithmSection
from vime.errors import ConfigError

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig


ROLLOUT_PLACEHOLDER = "{rollout_id}"
"""What stands for the number of a rollout in the paths of --save-debug-rollout-data and --load-debug-rollout-data."""


def derive(config: RunConfig) -> dict[str, Any]:
    """The values of fields that the user left open and that others decide."""
    derived: dict[str, Any] = {}
    if config.loss_type == "sft_loss" and "n_samples_per_prompt" not in config.model_fields_set:
        derived["n_samples_per_prompt"] = 1
    if config.num_rollout is None and config.num_epoch is None:
        derived["num_epoch"] = 1
    if config.pipeline != "sync":
        derived |= _of_pipeline(config)
    if config.over_sampling_batch_size is None:
        derived["over_sampling_batch_size"] = config.rollout_batch_size
    if config.eps_clip_high is None:
        derived["eps_clip_high"] = config.eps_clip
    derived |= derived_keys(config) | derived_trackers(config)
    if config.eval_reward_key is None:
        derived.setdefault("eval_reward_key", config.reward_key)
    if config.load_debug_rollout_data is not None:
        derived["debug_train_only"] = True
    if config.calculate_per_token_loss and config.loss_aggregation == "sample":
        derived["loss_aggregation"] = "token"
    elif config.advantage_estimator == "dr_grpo" and "loss_aggregation" not in config.model_fields_set:
        derived["loss_aggregation"] = "constant"
    if config.loss_aggregation == "token":
        derived["calculate_per_token_loss"] = True
    if config.use_dynamic_batch_size is None:
        derived["use_dynamic_batch_size"] = config.micro_batch_size is None
    elif not config.use_dynamic_batch_size and config.micro_batch_size is None:
        derived["micro_batch_size"] = 1
    samples = config.rollout_batch_size * derived.get("n_samples_per_prompt", config.n_samples_per_prompt)
    return derived | _batches(samples, config.global_batch_size, config.num_steps_per_rollout)


OF_PIPELINE = ("max_staleness", "use_tis")
"""Fields that have another default where rollouts run ahead of the training."""


def _of_pipeline(config: RunConfig) -> dict[str, Any]:
    """Where rollouts run ahead of the training: how far at most, and the correction for it, unless the user has chosen."""
    derived: dict[str, Any] = {}
    if config.max_staleness is None:
        derived["max_staleness"] = 1
    if "use_tis" not in config.model_fields_set and not config.use_rollout_logprobs and config.loss_type != "sft_loss":
        derived["use_tis"] = True
    return derived


def _batches(samples: int, global_batch_size: int | None, steps: int | None) -> dict[str, int]:
    """global_batch_size and num_steps_per_rollout: each from the other, of the samples of a rollout."""
    rollout = f"rollout_batch_size x n_samples_per_prompt = {samples}"
    if global_batch_size is None:
        steps = steps or 1
        if samples % steps:
            raise ConfigError(
                f"--num-steps-per-rollout is {steps}, which does not divide the {samples} samples of a rollout ({rollout})",
                hint="choose a divisor, or other batch sizes",
            )
        return {"global_batch_size": samples // steps, "num_steps_per_rollout": steps}
    if global_batch_size > samples or samples % global_batch_size:
        raise ConfigError(
            f"--global-batch-size is {global_batch_size}, but a rollout has {samples} samples ({rollout})",
            hint="it has to divide the samples of a rollout; leave it out to take all of them in one optimizer step",
        )
    if steps is not None and steps * global_batch_size != samples:
        raise ConfigError(
            f"--global-batch-size {global_batch_size} x --num-steps-per-rollout {steps} = {global_batch_size * steps}, "
            f"but a rollout has {samples} samples ({rollout})",
            hint="give only one of the two",
        )
    return {"global_batch_size": global_batch_size, "num_steps_per_rollout": samples // global_batch_size}


def refuse_contradictions(config: RunConfig) -> None:
    """Raise ConfigError for values that cannot work together."""
    _refuse_batches(config)
    _refuse_algorithm(config)
    _refuse_adapters(config)
    _refuse_modes(config)
    refuse_bad_sums(config)


def _refuse_batches(config: RunConfig) -> None:
    micro, batch = config.micro_batch_size, config.global_batch_size
    if micro is not None and batch is not None and micro > batch:
        raise ConfigError(
            f"--micro-batch-size is {micro}, more than the {batch} samples of an optimizer step (--global-batch-size)",
            hint="a micro-batch is a part of the batch: choose a smaller one, or leave it out",
        )
    if micro is not None and config.use_dynamic_batch_size:
        raise ConfigError(
            f"--micro-batch-size {micro} fixes the samples of a forward pass, --use-dynamic-batch-size their tokens",
            hint="keep one of them",
        )


def _refuse_algorithm(config: RunConfig) -> None:
    if config.use_rollout_logprobs and config.use_tis:
        raise ConfigError(
            "--use-rollout-logprobs and --use-tis both correct for the difference between engine and trainer",
            hint="keep one: with the engine's log-probs as the old ones there is nothing left to correct",
        )
    if config.kl_coef and config.use_kl_loss and config.kl_loss_coef:
        raise ConfigError(
            f"--kl-coef {config.kl_coef:g} puts the KL term into the reward and --kl-loss-coef {config.kl_loss_coef:g} into the loss",
            hint="keep one of them",
        )
    _refuse_corrections(config)
    if config.min_lr > config.lr:
        raise ConfigError(f"--min-lr is {config.min_lr:g}, above --lr {config.lr:g}", hint="it is where the decay of the rate ends")
    if config.custom_loss_function_path is not None and config.loss_type != "custom_loss":
        raise ConfigError(f"--custom-loss-function-path is set, but --loss-type is {config.loss_type}", hint="add --loss-type custom_loss")
    if config.advantage_estimator == "ppo":
        _refuse_without_critic(config)
    if config.calculate_per_token_loss and config.loss_aggregation == "constant":
        raise ConfigError("--calculate-per-token-loss and --loss-aggregation constant contradict each other", hint="keep one of them")


def _refuse_without_critic(config: RunConfig) -> None:
    """What leaves a critic nothing to do, or contradicts it."""
    if config.loss_type == "sft_loss":
        raise ConfigError(
            "--advantage-estimator ppo trains a critic on rewards, and --loss-type sft_loss has none", hint="leave out one of them"
        )
    if config.custom_advantage_function_path is not None:
        raise ConfigError(
            "--advantage-estimator ppo has its advantages from the critic, and --custom-advantage-function-path replaces them",
            hint="choose another --advantage-estimator, or leave the function out",
        )
    checkpoints = config.save or (config.run_dir and str(Path(config.run_dir) / "checkpoints"))
    if config.critic_save and checkpoints and Path(config.critic_save).resolve() == Path(checkpoints).resolve():
        raise ConfigError(
            f"--critic-save {config.critic_save} is where the checkpoints go, whose names are the same (step_N)",
            hint="choose another folder, or leave it out: every checkpoint has the critic in critic/",
        )
    if config.critic_lr is not None and config.min_lr > config.critic_lr:
        raise ConfigError(
            f"--min-lr is {config.min_lr:g}, above --critic-lr {config.critic_lr:g}", hint="it is where the decay of both rates ends"
        )


def _refuse_corrections(config: RunConfig) -> None:
    low, high = config.tis_clip_low, config.tis_clip
    if low > high:
        raise ConfigError(f"--tis-clip-low is {low:g}, above --tis-clip {high:g}", hint="it is the lower bound")
    if config.tis_mode == "mask" and not low <= 1 <= high:
        raise ConfigError(
            f"--tis-mode mask keeps weights from --tis-clip-low {low:g} to --tis-clip {high:g}, but 1 is where engine and trainer agree",
            hint="choose bounds around 1, for instance 0.5 and 2",
        )
    if config.use_unbiased_kl and config.kl_loss_type == "k2":
        raise ConfigError(
            "--use-unbiased-kl with --kl-loss-type k2: the ratio times k2 estimates no divergence",
            hint="leave out --use-unbiased-kl, since the gradient of k2 is right by itself, or use k1, k3 or low_var_kl",
        )
    if config.ref_update_interval is not None and not has_reference(config):
        raise ConfigError(
            f"--ref-update-interval {config.ref_update_interval}, but this run has no reference model",
            hint="add --use-kl-loss or --kl-coef; without a KL term nothing is compared with a reference",
        )


def has_reference(config: RunConfig) -> bool:
    """Whether a KL term compares the policy with a reference model."""
    return config.loss_type != "sft_loss" and bool(config.use_kl_loss or config.kl_coef)


def _refuse_adapters(config: RunConfig) -> None:
    if config.lora_dropout:
        raise ConfigError(
            f"--lora-dropout is {config.lora_dropout:g}, but the trainer must compute the distribution that the engine samples from",
            hint="leave it out; --weight-decay and --kl-loss-coef hold adapters back",
        )
    if "all-linear" in config.lora_target_modules and len(config.lora_target_modules) > 1:
        raise ConfigError("--lora-target-modules has all-linear beside other names, which it contains", hint="keep one or the other")
    if config.lora_rank and config.advantage_estimator == "ppo":
        raise ConfigError(
            f"--lora-rank {config.lora_rank} with --advantage-estimator ppo: there are no adapters for a critic",
            hint="use grpo, rloo or another estimator without a critic, or train all weights",
        )


def _refuse_modes(config: RunConfig) -> None:
    if config.quiet and config.verbose:
        raise ConfigError("--quiet and --verbose contradict each other", hint="keep one of them")
    if config.eval_interval is not None and not config.eval_datasets:
        raise ConfigError(
            f"--eval-interval is {config.eval_interval}, but there is nothing to evaluate on",
            hint="name a dataset: --eval-prompt-data NAME PATH, or --eval-config FILE.yaml",
        )
    if config.num_rollout == 0 and config.skip_eval_before_train:
        raise ConfigError(
            "--num-rollout 0 evaluates only, and --skip-eval-before-train leaves that out", hint="leave out --skip-eval-before-train"
        )
    if config.debug_rollout_only and config.debug_train_only:
        raise ConfigError("--debug-rollout-only leaves out the trainer and --debug-train-only the engine", hint="keep one of them")
    if config.debug_train_only and config.load_debug_rollout_data is None:
        raise ConfigError("--debug-train-only has no engine, and no rollouts to train on", hint="add --load-debug-rollout-data FILE")
    for field in ("save_debug_rollout_data", "load_debug_rollout_data"):
        _refuse_template(flag_of(field), getattr(config, field))
    _refuse_placement(config)
    _refuse_pipeline(config)


def _refuse_pipeline(config: RunConfig) -> None:
    if config.pipeline == "async" and config.max_staleness == 0:
        raise ConfigError(
            "--pipeline async makes a rollout while the one before is trained on, so that it is one version old: --max-staleness 0",
            hint="use --pipeline sync, or allow 1",
        )
    if config.pipeline == "continuous" and config.deterministic:
        raise ConfigError(
            "--pipeline continuous takes groups as they finish, which no two runs do alike: --deterministic",
            hint="leave out one of them; --pipeline sync and async can be deterministic",
        )
    if config.pipeline != "sync" and config.debug_train_only:
        raise ConfigError(
            f"--debug-train-only generates nothing that --pipeline {config.pipeline} could run ahead with", hint="leave out --pipeline"
        )


def _refuse_placement(config: RunConfig) -> None:
    if config.runtime == "local":
        if config.pipeline != "sync":
            raise ConfigError(f"--pipeline {config.pipeline} needs engines beside the trainer", hint="add --runtime ray")
        for field in ("trainer_ranks", "engines", "engine_tp"):
            if getattr(config, field) != 1:
                raise ConfigError(f"{flag_of(field)} {getattr(config, field)} needs several processes", hint="add --runtime ray")
        for field in ("ray_address", "colocate"):
            if getattr(config, field):
                raise ConfigError(f"{flag_of(field)} is about the placement of several processes", hint="add --runtime ray")
        return
    if config.colocate and config.pipeline != "sync":
        raise ConfigError(
            f"--colocate lets engines sleep while the trainer works, and --pipeline {config.pipeline} has both work at once",
            hint="leave out one of them",
        )


def _refuse_template(flag: str, template: str | None) -> None:
    example = f"debug/{ROLLOUT_PLACEHOLDER}.parquet"
    if template is not None and ROLLOUT_PLACEHOLDER not in template:
        raise ConfigError(f"{flag} {template}: every rollout would have the same file", hint=f"put its number into the name: {example}")
    if template is not None and not template.endswith(".parquet"):
        raise ConfigError(f"{flag} {template}: rollouts are parquet files", hint=f"end the name in .parquet: {example}")


def warnings_about(config: RunConfig) -> list[str]:
    """What works but is probably not meant, one line each."""
    doubts = [*_doubts_of_estimator(config), *_doubts_of_terms(config), *_doubts_of_supervision(config)]
    if config.rollout_top_p < 1 or config.rollout_top_k > 0:
        doubts.append(
            "rollout_top_p or rollout_top_k truncate the distribution that is sampled from, and the trainer's log-probs do not: "
            "the ratio is biased"
        )
    doubts += _doubts_about_critic(config)
    doubts += _doubts_about_adapters(config)
    if config.mask_offpolicy_in_partial_rollout and not config.partial_rollout:
        doubts.append("mask_offpolicy_in_partial_rollout has no effect without --partial-rollout")
    doubts += _doubts_about_pipeline(config)
    if config.debug_train_only and config.eval_datasets:
        doubts.append("there is no evaluation with --debug-train-only: nothing generates")
    if config.trace_step is not None and config.num_rollout is not None and config.trace_step >= config.num_rollout:
        doubts.append(f"--trace-step {config.trace_step} is never reached: steps count from 0, and there are {config.num_rollout} of them")
    if config.num_rollout is not None and config.num_epoch is not None:
        doubts.append("num_epoch has no effect beside num_rollout")
    return doubts + dataset_doubts(config)


def _doubts_about_pipeline(config: RunConfig) -> list[str]:
    if config.pipeline == "sync":
        return []
    doubts: list[str] = []
    if config.pipeline == "continuous":
        idle = [name for name in ("partial_rollout", "mask_offpolicy_in_partial_rollout") if getattr(config, name)]
        idle += ["over_sampling_batch_size"] if config.over_sampling_batch_size != config.rollout_batch_size else []
        if idle:
            have = "has" if len(idle) == 1 else "have"
            doubts.append(f"{' and '.join(idle)} {have} no effect with --pipeline continuous: nothing is aborted when a batch is full")
    elif config.max_staleness == 1 and (config.partial_rollout or config.over_sampling_batch_size != config.rollout_batch_size):
        doubts.append(
            "max_staleness is 1, which every rollout of --pipeline async reaches: surplus groups and the tokens of unfinished ones are "
            "dropped as stale when the next rollout begins; set --max-staleness to 2 or more to use them"
        )
    if config.loss_type != "sft_loss" and not (config.use_tis or config.use_rollout_logprobs):
        doubts.append(f"use_tis is off: nothing corrects for the age of the samples that --pipeline {config.pipeline} trains on")
    return doubts


_OF_CRITIC = ("critic_load", "critic_save", "critic_lr", "critic_lr_warmup_iters", "num_critic_only_steps", "value_clip", "lambd")


def _doubts_about_critic(config: RunConfig) -> list[str]:
    if config.advantage_estimator != "ppo":
        defaults = type(config).model_fields
        idle = [name for name in _OF_CRITIC if getattr(config, name) != defaults[name].default]
        return [f"{' and '.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect without --advantage-estimator ppo"] if idle else []
    if config.num_rollout and config.num_critic_only_steps >= config.num_rollout:
        return [f"num_critic_only_steps is {config.num_critic_only_steps}: none of the {config.num_rollout} rollouts trains the policy"]
    return []


def _doubts_of_estimator(config: RunConfig) -> list[str]:
    if config.loss_type != "policy_loss":
        return []
    doubts: list[str] = []
    if config.advantage_estimator in GROUP_ESTIMATORS and config.n_samples_per_prompt == 1:
        doubts.append(
            f"n_samples_per_prompt is 1: {config.advantage_estimator} compares the samples of a prompt with each other, "
            "so every advantage will be 0; set --n-samples-per-prompt to 2 or more"
        )
    if config.advantage_estimator == "reinforce_plus_plus" and not config.normalize_advantages:
        doubts.append("reinforce_plus_plus has no baseline without --normalize-advantages, which centres the advantages over the batch")
    if config.gamma != 1 and config.advantage_estimator not in ("ppo", "reinforce_plus_plus"):
        doubts.append(f"gamma has no effect with --advantage-estimator {config.advantage_estimator}, whose reward is that of the response")
    if config.eps_clip_high is not None and config.eps_clip_high < config.eps_clip:
        doubts.append(f"eps_clip_high {config.eps_clip_high:g} is below eps_clip {config.eps_clip:g}: the range is tighter upwards")
    return doubts


_OF_EVERY_LOSS = ("loss_type", "loss_aggregation", "calculate_per_token_loss")


def _doubts_of_supervision(config: RunConfig) -> list[str]:
    """What rewards and policies need, in a run that has neither."""
    if config.loss_type != "sft_loss":
        return []
    fields = AlgorithmSection.model_fields
    idle = [name for name in fields if name not in _OF_EVERY_LOSS and getattr(config, name) != fields[name].default]
    if config.eps_clip_high == config.eps_clip:  # which follows from it
        idle = [name for name in idle if name != "eps_clip_high"]
    return [f"{' and '.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect with --loss-type sft_loss"] if idle else []


def _doubts_of_terms(config: RunConfig) -> list[str]:
    """Of the KL term, its reference model, and the off-policy correction."""
    if config.loss_type == "sft_loss":
        return []
    doubts: list[str] = []
    if config.use_kl_loss and not config.kl_loss_coef:
        doubts.append("use_kl_loss only measures the KL divergence: kl_loss_coef is 0")
    if config.kl_loss_coef and not config.use_kl_loss:
        doubts.append(f"kl_loss_coef is {config.kl_loss_coef:g} but has no effect without --use-kl-loss")
    if config.use_unbiased_kl and not config.use_kl_loss:
        doubts.append("use_unbiased_kl has no effect without --use-kl-loss")
    if config.use_kl_loss and config.kl_loss_coef and config.kl_loss_type == "k1" and not config.use_unbiased_kl:
        doubts.append("kl_loss_type is k1, whose gradient in the loss is 0 in the mean: use k2 or k3, or add --use-unbiased-kl")
    if (config.ref_load is not None or config.ref_offload) and not has_reference(config):
        doubts.append("there is no reference model without --use-kl-loss or --kl-coef: ref_load and ref_offload have no effect")
    fields = type(config).model_fields
    unused = [name for name in fields if name.startswith("tis_") and getattr(config, name) != fields[name].default]
    if unused and not config.use_tis:
        doubts.append(f"{' and '.join(unused)} {'has' if len(unused) == 1 else 'have'} no effect without --use-tis")
    return doubts


def _doubts_about_adapters(config: RunConfig) -> list[str]:
    fields = type(config).model_fields
    given = [
        name
        for name in ("lora_alpha", "lora_target_modules")
        if getattr(config, name) != fields[name].get_default(call_default_factory=True)
    ]
    if config.lora_rank or not given:
        return []
    return [f"{' and '.join(given)} {'has' if len(given) == 1 else 'have'} no effect without --lora-rank"]
