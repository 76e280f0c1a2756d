"""RunConfig alone: types, what follows from what, contradictions, warnings."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError

from vime.config.fields import field_docs
from vime.config.kinds import kinds_of
from vime.config.rules import warnings_about
from vime.config.run_config import SECTIONS, RunConfig
from vime.errors import ConfigError

NUM_GPUS = 0


def test_every_flag_is_documented_and_has_a_kind() -> None:
    for section in SECTIONS:
        assert set(field_docs(section)) == set(section.model_fields)
        for name in section.model_fields:
            assert kinds_of(RunConfig)[name].expected()


def test_is_frozen_and_refuses_unknown_names() -> None:
    config, misspelt = RunConfig(), {"lrr": 1.0}
    with pytest.raises(ValidationError):
        config.lr = 1.0
    with pytest.raises(ValidationError, match="lrr"):
        RunConfig(**misspelt)


@pytest.mark.parametrize("wrong", [{"rollout_batch_size": "4"}, {"rollout_batch_size": True}, {"lr": "1e-6"}, {"lr": float("nan")}])
def test_does_not_coerce(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RunConfig(**wrong)


def test_paths_are_stored_as_text() -> None:
    assert RunConfig(run_dir=Path("runs/a")).run_dir == "runs/a"


def test_survives_pickling_and_a_dump() -> None:
    config = RunConfig(rollout_batch_size=4, eval_prompt_data=["a", "a.jsonl"])
    assert pickle.loads(pickle.dumps(config)) == config
    assert RunConfig(**config.model_dump()) == config


@pytest.mark.parametrize(
    ("given", "derived"),
    [
        ({}, {"num_epoch": 1, "use_dynamic_batch_size": True, "micro_batch_size": None}),
        ({"num_rollout": 3}, {"num_epoch": None}),
        ({"rollout_batch_size": 4, "n_samples_per_prompt": 2}, {"global_batch_size": 8, "num_steps_per_rollout": 1}),
        ({"rollout_batch_size": 4, "n_samples_per_prompt": 2, "num_steps_per_rollout": 4}, {"global_batch_size": 2}),
        ({"rollout_batch_size": 4, "n_samples_per_prompt": 2, "global_batch_size": 4}, {"num_steps_per_rollout": 2}),
        ({"rollout_batch_size": 4}, {"over_sampling_batch_size": 4}),
        ({"rollout_batch_size": 4, "over_sampling_batch_size": 1}, {"over_sampling_batch_size": 1}),
        ({"eps_clip": 0.1}, {"eps_clip_high": 0.1}),
        ({"reward_key": "acc"}, {"eval_reward_key": "acc"}),
        ({"micro_batch_size": 2}, {"use_dynamic_batch_size": False}),
        ({}, {"use_tis": False, "max_staleness": None}),
        ({"pipeline": "async", "runtime": "ray"}, {"use_tis": True, "max_staleness": 1}),
        ({"pipeline": "continuous", "runtime": "ray", "max_staleness": 0}, {"use_tis": True, "max_staleness": 0}),
        ({"pipeline": "async", "runtime": "ray", "use_tis": False}, {"use_tis": False}),
        ({"pipeline": "async", "runtime": "ray", "use_rollout_logprobs": True}, {"use_tis": False}),
        ({"pipeline": "async", "runtime": "ray", "loss_type": "sft_loss"}, {"use_tis": False}),
        ({"use_dynamic_batch_size": False}, {"micro_batch_size": 1}),
        ({"loss_type": "sft_loss"}, {"n_samples_per_prompt": 1, "global_batch_size": 32}),
        ({"loss_type": "sft_loss", "n_samples_per_prompt": 2}, {"n_samples_per_prompt": 2}),
        ({"calculate_per_token_loss": True}, {"loss_aggregation": "token"}),
        ({"loss_aggregation": "token"}, {"calculate_per_token_loss": True}),
        ({"advantage_estimator": "dr_grpo"}, {"loss_aggregation": "constant", "calculate_per_token_loss": False}),
        ({"advantage_estimator": "dr_grpo", "loss_aggregation": "sample"}, {"loss_aggregation": "sample"}),
        ({"advantage_estimator": "dr_grpo", "calculate_per_token_loss": True}, {"loss_aggregation": "token"}),
        ({"load_debug_rollout_data": "{rollout_id}.parquet"}, {"debug_train_only": True}),
    ],
)
def test_what_follows(given: dict[str, object], derived: dict[str, object]) -> None:
    config = RunConfig(**given)
    assert {name: getattr(config, name) for name in derived} == derived
    assert config.model_fields_set == set(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        # case G4
        (
            {"rollout_batch_size": 2, "n_samples_per_prompt": 2, "micro_batch_size": 8},
            "--micro-batch-size is 8, more than the 4 samples of an optimizer step (--global-batch-size)",
        ),
        ({"rollout_batch_size": 2, "n_samples_per_prompt": 2, "global_batch_size": 8}, "--global-batch-size is 8, but a rollout has 4"),
        ({"rollout_batch_size": 2, "n_samples_per_prompt": 2, "global_batch_size": 3}, "--global-batch-size is 3, but a rollout has 4"),
        ({"rollout_batch_size": 2, "n_samples_per_prompt": 2, "num_steps_per_rollout": 3}, "--num-steps-per-rollout is 3, which does not"),
        (
            {"rollout_batch_size": 2, "n_samples_per_prompt": 4, "num_steps_per_rollout": 2, "global_batch_size": 2},
            "--global-batch-size 2 x --num-steps-per-rollout 2 = 4, but a rollout has 8 samples",
        ),
        ({"micro_batch_size": 2, "use_dynamic_batch_size": True}, "--micro-batch-size 2 fixes the samples"),
        ({"eval_interval": 5}, "--eval-interval is 5, but there is nothing to evaluate on"),
        ({"use_tis": True, "use_rollout_logprobs": True}, "--use-rollout-logprobs and --use-tis both correct"),
        ({"kl_coef": 0.1, "use_kl_loss": True, "kl_loss_coef": 0.1}, "--kl-coef 0.1 puts the KL term into the reward"),
        ({"tis_clip_low": 3.0}, "--tis-clip-low is 3, above --tis-clip 2"),
        ({"tis_mode": "mask", "tis_clip": 0.9}, "--tis-mode mask keeps weights from --tis-clip-low 0 to --tis-clip 0.9"),
        ({"tis_mode": "mask", "tis_clip_low": 1.1}, "--tis-mode mask keeps weights from --tis-clip-low 1.1 to --tis-clip 2"),
        ({"use_kl_loss": True, "use_unbiased_kl": True, "kl_loss_type": "k2"}, "--use-unbiased-kl with --kl-loss-type k2"),
        ({"ref_update_interval": 5}, "--ref-update-interval 5, but this run has no reference model"),
        ({"min_lr": 1.0}, "--min-lr is 1, above --lr 1e-06"),
        ({"custom_loss_function_path": "a.b"}, "--custom-loss-function-path is set, but --loss-type is policy_loss"),
        ({"lora_rank": 8, "lora_dropout": 0.05}, "--lora-dropout is 0.05, but the trainer must compute the distribution"),
        ({"lora_rank": 8, "lora_target_modules": ["q_proj", "all-linear"]}, "--lora-target-modules has all-linear beside other names"),
        ({"lora_rank": 8, "advantage_estimator": "ppo"}, "--lora-rank 8 with --advantage-estimator ppo"),
        ({"debug_train_only": True}, "--debug-train-only has no engine, and no rollouts to train on"),
        ({"debug_rollout_only": True, "load_debug_rollout_data": "{rollout_id}.parquet"}, "--debug-rollout-only leaves out the trainer"),
        ({"pipeline": "async"}, "--pipeline async needs engines beside the trainer"),
        ({"pipeline": "async", "runtime": "ray", "max_staleness": 0}, "--pipeline async makes a rollout while the one before"),
        ({"pipeline": "continuous", "runtime": "ray", "deterministic": True}, "--pipeline continuous takes groups as they finish"),
        (
            {"pipeline": "async", "runtime": "ray", "load_debug_rollout_data": "{rollout_id}.parquet"},
            "--debug-train-only generates nothing that --pipeline async could run ahead with",
        ),
        ({"engines": 2}, "--engines 2 needs several processes"),
        ({"calculate_per_token_loss": True, "loss_aggregation": "constant"}, "--calculate-per-token-loss and --loss-aggregation constant"),
        ({"advantage_estimator": "ppo", "loss_type": "sft_loss"}, "--advantage-estimator ppo trains a critic on rewards"),
        (
            {"advantage_estimator": "ppo", "custom_advantage_function_path": "a.b"},
            "--advantage-estimator ppo has its advantages from the critic, and --custom-advantage-function-path replaces them",
        ),
        (
            {"advantage_estimator": "ppo", "lr": 1e-3, "min_lr": 1e-4, "critic_lr": 1e-5},
            "--min-lr is 0.0001, above --critic-lr 1e-05",
        ),
        ({"advantage_estimator": "ppo", "save": "a", "critic_save": "b/../a"}, "--critic-save b/../a is where the checkpoints go"),
        ({"advantage_estimator": "ppo", "run_dir": "r", "critic_save": "r/checkpoints"}, "--critic-save r/checkpoints is where"),
    ],
)
def test_contradictions(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RunConfig(**given)
    assert refused.value.message.startswith(message)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ({"n_samples_per_prompt": 1}, "n_samples_per_prompt is 1: grpo compares"),  # case C4
        ({"rollout_top_p": 0.9}, "rollout_top_p or rollout_top_k truncate"),
        ({"kl_loss_coef": 0.1}, "kl_loss_coef is 0.1 but has no effect"),
        ({"use_unbiased_kl": True}, "use_unbiased_kl has no effect without --use-kl-loss"),
        ({"use_kl_loss": True, "kl_loss_coef": 0.1}, "kl_loss_type is k1, whose gradient in the loss is 0 in the mean"),
        ({"ref_load": "m"}, "there is no reference model without --use-kl-loss or --kl-coef"),
        ({"ref_offload": True}, "there is no reference model without"),
        ({"tis_mode": "mask", "tis_clip": 5.0}, "tis_mode and tis_clip have no effect without --use-tis"),
        ({"use_tis": True, "loss_type": "sft_loss"}, "use_tis has no effect with --loss-type sft_loss"),
        (
            {"use_kl_loss": True, "kl_loss_coef": 0.5, "advantage_estimator": "gspo", "loss_type": "sft_loss", "eps_clip": 0.3},
            "advantage_estimator and eps_clip and use_kl_loss and kl_loss_coef have no effect with --loss-type sft_loss",
        ),
        ({"use_kl_loss": True}, "use_kl_loss only measures the KL divergence: kl_loss_coef is 0"),
        ({"gamma": 0.5}, "gamma has no effect with --advantage-estimator grpo"),
        ({"advantage_estimator": "reinforce_plus_plus"}, "reinforce_plus_plus has no baseline without --normalize-advantages"),
        ({"mask_offpolicy_in_partial_rollout": True}, "mask_offpolicy_in_partial_rollout has no effect"),
        ({"eps_clip_high": 0.1}, "eps_clip_high 0.1 is below eps_clip 0.2"),
        ({"num_rollout": 1, "num_epoch": 1}, "num_epoch has no effect"),
        ({"critic_lr": 1e-5}, "critic_lr has no effect without --advantage-estimator ppo"),
        ({"lambd": 0.9, "value_clip": 0.5}, "value_clip and lambd have no effect without --advantage-estimator ppo"),
        (
            {"advantage_estimator": "ppo", "num_rollout": 4, "num_critic_only_steps": 4},
            "num_critic_only_steps is 4: none of the 4 rollouts trains the policy",
        ),
        ({"pipeline": "async", "runtime": "ray", "use_tis": False}, "use_tis is off: nothing corrects for the age of the samples"),
        ({"pipeline": "async", "runtime": "ray", "partial_rollout": True}, "max_staleness is 1, which every rollout of --pipeline async"),
        (
            {"pipeline": "continuous", "runtime": "ray", "partial_rollout": True, "over_sampling_batch_size": 64},
            "partial_rollout and over_sampling_batch_size have no effect with --pipeline continuous",
        ),
        ({"lora_alpha": 32, "lora_target_modules": ["q_proj"]}, "lora_alpha and lora_target_modules have no effect without --lora-rank"),
    ],
)
def test_doubts(given: dict[str, object], warning: str) -> None:
    (line,) = warnings_about(RunConfig(**given))
    assert line.startswith(warning)


@pytest.mark.parametrize(
    "given", [{}, {"lora_rank": 8, "lora_alpha": 32}, {"n_samples_per_prompt": 1, "advantage_estimator": "ppo"}, {"loss_type": "sft_loss"}]
)
def test_no_doubts(given: dict[str, object]) -> None:
    assert warnings_about(RunConfig(**given)) == []


def test_run_name() -> None:
    assert RunConfig().run_name == "quickstart"
    assert RunConfig(hf_checkpoint="models/tiny/").run_name == "tiny"
    assert RunConfig(hf_checkpoint="models/tiny", name="mine").run_name == "mine"
    assert RunConfig(hf_checkpoint="models/tiny", quickstart=True).run_name == "quickstart"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
