"""The DeepSpeed trainer on a tiny model: what a step does, and what it must not do."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from vime.errors import CheckpointError, ConfigError, TrainerError
from vime.train import policy_model
from vime.train.batch import build_train_batch
from vime.train.policy_model import PolicyModel
from vime.train.rollout_data import token_values

NUM_GPUS = 0


def weights_of(trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.named_weights()}


def moments_of(trainer) -> list[torch.Tensor]:
    return [value.clone() for state in trainer.engine.optimizer.state.values() for value in state.values() if torch.is_tensor(value)]


def same(first, second) -> bool:
    pairs = zip(first.values(), second.values(), strict=True) if isinstance(first, dict) else zip(first, second, strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def with_true_log_probs(trainer, batch, temperature=1.0):
    """Give the batch the log-probs that an engine with the trainer's weights would have recorded."""
    for row, tokens in enumerate(batch.tokens):
        length = batch.response_lengths[row]
        with torch.no_grad():
            logits = trainer.model(torch.tensor([tokens])).logits[0].double() / temperature
        log_probs = torch.log_softmax(logits, -1)[range(len(tokens) - 1), tokens[1:]]
        batch.rollout_log_probs[row] = log_probs[-length:].tolist()
    return batch


def naive_loss(model, batch, temperature=1.0) -> torch.Tensor:
    """GRPO at ratio 1, sample by sample, in float64: mean over samples of the mean over tokens of -A r."""
    terms = []
    for tokens, length, mask, reward in zip(batch.tokens, batch.response_lengths, batch.loss_masks, batch.rewards, strict=True):
        if any(mask):
            log_probs = torch.log_softmax(model(torch.tensor([tokens])).logits[0].double() / temperature, -1)
            picked = log_probs[range(len(tokens) - 1), tokens[1:]][-length:]
            kept = torch.tensor(mask, dtype=torch.float64)
            terms.append((-reward * (picked - picked.detach()).exp() * kept).sum() / kept.sum())
    return torch.stack(terms).mean()


def gradients_of(trainer, batch) -> dict[str, torch.Tensor]:
    """The gradients that the trainer would step with."""
    found: dict[str, torch.Tensor] = {}
    step = trainer.engine.step

    def record(*args, **kwargs):
        found.update({name: parameter.grad.clone() for name, parameter in trainer.model.named_parameters()})
        return step(*args, **kwargs)

    trainer.engine.step = record
    trainer.train(batch)
    trainer.engine.step = step
    return found


def test_the_gradient_is_that_of_a_naive_loop(make_trainer, make_config, make_groups, model_path):
    config = make_config(clip_grad=0.0)
    groups = make_groups()
    groups[0][1].loss_mask = [0] + [1] * (groups[0][1].response_length - 1)
    batch = build_train_batch(config, None, groups)
    model = AutoModelForCausalLM.from_pretrained(model_path).double()
    naive_loss(model, batch).backward()
    found = gradients_of(make_trainer(config), batch)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name].double(), parameter.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch_size": 1},
        {"micro_batch_size": 5},
        {"max_tokens_per_gpu": 30},
        {"gradient_checkpointing": True},
        {"logprob_chunk_size": 1},
    ],
)
@pytest.mark.parametrize("aggregation", ["sample", "token", "constant"])
def test_no_split_into_micro_batches_changes_the_gradient(make_trainer, make_config, make_groups, monkeypatch, options, aggregation):
    values = {"clip_grad": 0.0, "loss_aggregation": aggregation, "entropy_coef": 0.01}
    batch = build_train_batch(make_config(**values), None, make_groups())
    whole = gradients_of(make_trainer(make_config(**values)), batch)
    monkeypatch.setattr(policy_model, "LOGITS_AT_ONCE", 1)  # of the small vocabulary all logits of a micro-batch may exist at once
    split = gradients_of(make_trainer(make_config(**values, **options)), batch)
    for name, gradient in whole.items():
        torch.testing.assert_close(split[name], gradient, atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize("token", [-1, 10**6])
def test_a_token_that_the_model_does_not_have_names_its_sample(make_trainer, make_config, make_groups, token):
    config = make_config()
    groups = make_groups()
    groups[1][0].tokens[0] = token
    with pytest.raises(TrainerError, match=rf"sample {groups[1][0].index} holds token {token}, and the model has \d+ tokens"):
        make_trainer(config).train(build_train_batch(config, None, groups))


def test_removed_samples_are_as_if_they_were_not_there(make_trainer, make_config, make_groups):
    config = make_config(advantage_estimator="reinforce_plus_plus", entropy_coef=0.1, use_kl_loss=True, kl_loss_coef=0.1, clip_grad=0.0)
    groups = make_groups()
    kept = build_train_batch(config, None, [[sample for sample in group if sample.index != 5] for group in groups])
    groups[1][1].remove_sample = True
    removed = build_train_batch(config, None, groups)
    first, second = make_trainer(config), make_trainer(config)
    metrics, others = first.train(kept), second.train(removed)
    assert metrics == others
    assert same(weights_of(first), weights_of(second))


def test_equal_rewards_give_no_gradient(make_trainer, make_config, make_groups):
    groups = make_groups()
    for sample in (sample for group in groups for sample in group):
        sample.reward = 0.3
    config = make_config()
    trainer = make_trainer(config)
    assert trainer.train(build_train_batch(config, None, groups))["grad_norm"] == 0.0


def test_siblings_weigh_as_one_rollout(make_trainer, make_config, make_groups):
    """Cutting the response of one rollout into two rows of the same tokens changes nothing."""
    config = make_config(clip_grad=0.0, advantage_estimator="reinforce_plus_plus_baseline")
    groups = make_groups()
    whole = build_train_batch(config, None, groups)
    sample = groups[0][1]
    half = sample.response_length // 2
    import copy

    first, second = copy.deepcopy(sample), copy.deepcopy(sample)
    first.loss_mask = [1] * half + [0] * (sample.response_length - half)
    second.loss_mask = [0] * half + [1] * (sample.response_length - half)
    first.rollout_id = second.rollout_id = 1
    groups[0][1:2] = [first, second]
    gradients = gradients_of(make_trainer(config), whole)
    for name, gradient in gradients_of(make_trainer(config), build_train_batch(config, None, groups)).items():
        torch.testing.assert_close(gradient, gradients[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("how", ["masked", "removed"])
def test_case_d6_d10_a_step_without_tokens_is_skipped_and_counted(make_trainer, make_config, make_groups, how):
    config = make_config()
    groups = make_groups()
    for sample in (sample for group in groups for sample in group):
        sample.remove_sample = how == "removed"
        sample.loss_mask = [0] * sample.response_length if how == "masked" else None
    trainer = make_trainer(config)
    before = weights_of(trainer)
    metrics = trainer.train(build_train_batch(config, None, groups))
    assert (metrics["loss"], metrics["skipped_steps"], metrics["tokens"]) == (0.0, 1.0, 0.0)
    assert all(math.isfinite(value) for value in metrics.values())
    assert same(before, weights_of(trainer)) and trainer.weight_version == 0 and trainer.bad_steps_in_a_row == 0


def test_a_step_that_is_not_finite_changes_nothing(make_trainer, make_config, make_groups):
    config = make_config(lr_warmup_iters=10, max_bad_steps=2, weight_decay=0.1)
    trainer = make_trainer(config)
    good = build_train_batch(config, None, make_groups())
    first = trainer.train(good)
    before, moments = weights_of(trainer), moments_of(trainer)
    bad = build_train_batch(config, None, make_groups())
    bad.rewards[3] = math.inf
    metrics = trainer.train(bad)
    assert metrics["skipped_steps"] == 1.0 and trainer.weight_version == 1
    assert same(before, weights_of(trainer)) and same(moments, moments_of(trainer))
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in trainer.model.parameters())
    second = trainer.train(good)
    assert second["lr"] == pytest.approx(2 * first["lr"])
    trainer.train(bad)
    with pytest.raises(TrainerError, match="2 optimizer steps in a row"):
        trainer.train(bad)


def test_a_skipped_step_leaves_no_trace(make_trainer, make_config, make_groups):
    config = make_config()
    good, bad = build_train_batch(config, None, make_groups()), build_train_batch(config, None, make_groups())
    bad.rewards[0] = math.nan
    straight, interrupted = make_trainer(config), make_trainer(config)
    interrupted.train(bad)
    assert straight.train(good) == interrupted.train(good)
    assert same(weights_of(straight), weights_of(interrupted))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_case_e1_fresh_weights_agree_with_the_rollout_at_its_temperature(make_trainer, make_config, make_groups, temperature):
    config = make_config(rollout_temperature=temperature)
    trainer = make_trainer(config)
    batch = with_true_log_probs(trainer, build_train_batch(config, None, make_groups()), temperature)
    calls: list[int] = []
    metrics = trainer.train(batch, verify=lambda: calls.append(1))
    assert metrics["train_rollout_logprob_abs_diff"] < 1e-5 and not calls


def test_a_difference_asks_for_a_check_before_the_step(make_trainer, make_config, make_groups):
    config = make_config()
    trainer = make_trainer(config)
    before = weights_of(trainer)

    def verify():
        raise TrainerError("the engine is stale")

    with pytest.raises(TrainerError, match="stale"):
        trainer.train(build_train_batch(config, None, make_groups()), verify=verify)
    assert same(before, weights_of(trainer))


def test_a_difference_that_is_no_number_asks_for_a_check_too(make_trainer, make_config, make_groups):
    config = make_config()
    trainer = make_trainer(config)
    batch = with_true_log_probs(trainer, build_train_batch(config, None, make_groups()))
    batch.rollout_log_probs[0] = [math.nan] * batch.response_lengths[0]
    calls: list[int] = []
    trainer.train(batch, verify=lambda: calls.append(1))
    assert calls == [1]


def test_a_check_in_the_middle_of_a_step_does_not_change_it(make_trainer, make_config, make_groups):
    config = make_config()
    plain, checked = make_trainer(config), make_trainer(config)
    batch = build_train_batch(config, None, make_groups())
    plain.train(batch)
    checked.train(batch, verify=lambda: checked.score([[1, 2, 3]]))
    assert same(weights_of(plain), weights_of(checked))


@pytest.mark.parametrize("steps", [1, 2])
def test_what_sample_files_tell_of_a_row_is_what_it_was_trained_with(make_trainer, make_config, make_groups, steps):
    config, groups = make_config(num_steps_per_rollout=steps), make_groups()
    groups[0][1].loss_mask = [0] + [1] * (groups[0][1].response_length - 1)
    groups[1][0].remove_sample = True
    trainer = make_trainer(config)
    batch = with_true_log_probs(trainer, build_train_batch(config, None, groups))
    trainer.train(batch)
    samples = [sample for group in groups for sample in group]
    values = token_values(batch, samples)
    assert sorted(values) == batch.trained_rows and len(values) == len(batch) - 1
    for row, value in values.items():
        kept = [place for place, flag in enumerate(batch.loss_masks[row]) if flag]
        assert [value.log_probs[place] for place in kept] == pytest.approx(
            [batch.rollout_log_probs[row][place] for place in kept], abs=1e-4
        )
        assert [value.advantages[place] for place in kept] == pytest.approx([batch.rewards[row]] * len(kept), abs=1e-5)
    assert math.isnan(values[1].log_probs[0]) and math.isnan(values[1].advantages[0])
    assert token_values(batch, samples[1:]) == {}


def test_tokens_of_older_weights_are_not_in_the_difference(make_trainer, make_config, make_groups):
    config = make_config()
    trainer = make_trainer(config)
    groups = make_groups()
    batch = with_true_log_probs(trainer, build_train_batch(config, None, groups))
    batch.weight_versions[1], batch.rollout_log_probs[1] = [-1], [-9.0] * batch.response_lengths[1]
    metrics = trainer.train(batch)
    assert metrics["train_rollout_logprob_abs_diff"] < 1e-5
    assert metrics["stale_samples"] == 1.0 and metrics["pg_clipfrac"] > 0 and metrics["ppo_kl"] != 0


def test_several_steps_start_from_the_policy_of_the_rollout(make_trainer, make_config, make_groups):
    config = make_config(num_steps_per_rollout=3, lr=1e-2)
    trainer = make_trainer(config)
    batch = with_true_log_probs(trainer, build_train_batch(config, None, make_groups()))
    metrics = trainer.train(batch)
    assert metrics["optimizer_steps"] == 3.0 and trainer.weight_version == 1 and trainer.applied_steps == 3
    assert metrics["train_rollout_logprob_abs_diff"] < 1e-5  # measured before the weights moved
    assert abs(metrics["ppo_kl"]) > 1e-6


def test_rollout_log_probs_can_be_the_old_ones(make_trainer, make_config, make_groups):
    config = make_config(use_rollout_logprobs=True)
    metrics = make_trainer(config).train(build_train_batch(config, None, make_groups()))
    assert metrics["ppo_kl"] != 0.0 and metrics["pg_clipfrac"] > 0
    batch = build_train_batch(config, None, make_groups())
    batch.rollout_log_probs = None
    with pytest.raises(TrainerError, match="carries no log-probs"):
        make_trainer(config).train(batch)


def test_a_correction_without_the_log_probs_of_the_engine_is_refused(make_trainer, make_config, make_groups):
    batch = build_train_batch(make_config(), None, make_groups())
    batch.rollout_log_probs = None
    with pytest.raises(TrainerError, match="--use-tis is set, but the rollout carries no log-probs"):
        make_trainer(make_config(use_tis=True)).train(batch)


def test_tis_weighs_the_loss(make_trainer, make_config, make_groups):
    config = make_config(use_tis=True)
    metrics = make_trainer(config).train(build_train_batch(config, None, make_groups()))
    assert 0 < metrics["tis_weight"] <= 2.0 and 0 <= metrics["tis_clipfrac"] <= 1


@pytest.mark.parametrize("estimator", ["grpo", "gspo", "cispo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_every_estimator_raises_what_was_rewarded(make_trainer, make_config, make_groups, estimator):
    config = make_config(advantage_estimator=estimator, num_steps_per_rollout=2, normalize_advantages=estimator == "reinforce_plus_plus")
    trainer = make_trainer(config)
    batch = build_train_batch(config, None, make_groups())
    with_true_log_probs(trainer, batch)
    before = batch.rollout_log_probs
    trainer.train(batch)
    after = with_true_log_probs(trainer, build_train_batch(config, None, make_groups())).rollout_log_probs
    gain = dict.fromkeys((0.0, 1.0), 0.0)
    for row, reward in enumerate(batch.raw_rewards):
        gain[reward] += sum(after[row]) - sum(before[row])
    assert gain[1.0] > gain[0.0]


def test_the_reference_model_holds_the_policy_back(make_trainer, make_config, make_groups):
    config = make_config(use_kl_loss=True, kl_loss_coef=0.5, kl_loss_type="k3", num_steps_per_rollout=2, lr=1e-2)
    trainer = make_trainer(config)
    batch = build_train_batch(config, None, make_groups())
    first, second = trainer.train(batch), trainer.train(batch)
    assert 0 <= first["kl_loss"] < second["kl_loss"]
    assert second["loss"] != second["pg_loss"]


def test_kl_in_the_reward_reaches_the_advantages(make_trainer, make_config, make_groups, make_model):
    config = make_config(kl_coef=0.1, ref_load=make_model(seed=5), clip_grad=0.0)
    batch = build_train_batch(config, None, make_groups())
    plain = gradients_of(make_trainer(make_config(clip_grad=0.0)), batch)
    found = gradients_of(make_trainer(config), batch)
    assert any(not torch.allclose(found[name], plain[name], atol=1e-4) for name in plain)


def test_sft_lowers_the_loss(make_trainer, make_config, make_groups):
    config = make_config(loss_type="sft_loss")
    groups = make_groups()
    for sample in (sample for group in groups for sample in group):
        sample.reward, sample.rollout_log_probs = None, None
    batch = build_train_batch(config, None, groups)
    trainer = make_trainer(config)
    model = PolicyModel(trainer.model, 1.0)
    losses = [trainer.train(batch)["loss"] for _ in range(5)]
    assert losses[-1] < losses[0]
    with torch.no_grad():
        tokens = batch.tokens[0]
        position = len(tokens) - 2
        log_prob, _ = model(torch.tensor([tokens[:-1]]), torch.tensor([position]), torch.tensor([tokens[-1]]))
    assert math.isfinite(log_prob.item())


@pytest.mark.parametrize("is_tied", [True, False])
def test_weights_have_their_public_names_once(make_trainer, make_config, make_model, is_tied):
    path = make_model(tied=is_tied)
    trainer = make_trainer(make_config(), path)
    expected = dict(AutoModelForCausalLM.from_pretrained(path).named_parameters())
    found = dict(trainer.named_weights())
    assert list(found) == list(expected) and ("lm_head.weight" in found) is not is_tied
    assert all(torch.equal(found[name], parameter) and not found[name].requires_grad for name, parameter in expected.items())


def test_scores_are_log_probs_at_temperature_one(make_trainer, make_config):
    trainer = make_trainer(make_config(rollout_temperature=0.5))
    sequences = [[3, 1, 4, 1, 5], [9], [2, 6]]
    scores = trainer.score(sequences)
    assert [len(row) for row in scores] == [4, 0, 1]
    logits = trainer.model(torch.tensor([sequences[0]])).logits[0]
    assert scores[0] == pytest.approx(torch.log_softmax(logits, -1)[range(4), sequences[0][1:]].tolist(), abs=1e-5)


def test_padding_is_reported(make_trainer, make_config, make_groups):
    config = make_config(micro_batch_size=12)
    batch = build_train_batch(config, None, make_groups())
    used = [len(tokens) - 1 for tokens in batch.tokens]
    metrics = make_trainer(config).train(batch)
    assert metrics["padding_fraction"] == pytest.approx(1 - sum(used) / (12 * max(used)))
    assert metrics["tokens"] == sum(batch.response_lengths)


def test_case_g4_a_micro_batch_larger_than_the_step_is_refused(make_config):
    with pytest.raises(ConfigError, match="is 8, more than the 4 samples of an optimizer step"):
        make_config(rollout_batch_size=1, micro_batch_size=8)


@pytest.mark.parametrize("values", [{"optimizer_offload": True}])
def test_what_the_trainer_cannot_do_is_refused(make_trainer, make_config, values):
    with pytest.raises(ConfigError):
        make_trainer(make_config(**values))


def test_deepspeed_settings_are_added_but_contradict_nothing(make_trainer, make_config, tmp_path):
    file = tmp_path / "deepspeed.json"
    file.write_text('{"zero_optimization": {"stage": "auto", "reduce_bucket_size": 12345}, "optimizer": {"params": {"lr": "auto"}}}')
    trainer = make_trainer(make_config(zero_stage=1, deepspeed_config=str(file)))
    assert trainer.engine.zero_reduce_bucket_size() == 12345
    file.write_text('{"zero_optimization": {"stage": 2}}')
    with pytest.raises(ConfigError, match=r"sets zero_optimization\.stage to 2, but vime's own flags make it 1"):
        make_trainer(make_config(zero_stage=1, deepspeed_config=str(file)))


def test_a_resumed_run_equals_the_uninterrupted_one(make_trainer, make_config, make_groups, tmp_path):
    config = make_config(num_steps_per_rollout=2, lr_warmup_iters=6, weight_decay=0.1)
    batches = [build_train_batch(config, None, make_groups(seed=seed)) for seed in range(4)]
    straight = make_trainer(config)
    for batch in batches[:2]:
        straight.train(batch)
    straight.save(tmp_path / "checkpoint")
    state = torch.get_rng_state()
    expected = [straight.train(batch) for batch in batches[2:]]
    torch.manual_seed(1234)
    resumed = make_trainer(config)
    resumed.load(tmp_path / "checkpoint")
    assert torch.equal(torch.get_rng_state(), state)
    assert (resumed.weight_version, resumed.applied_steps) == (2, 4)
    assert [resumed.train(batch) for batch in batches[2:]] == expected
    assert same(weights_of(straight), weights_of(resumed)) and same(moments_of(straight), moments_of(resumed))


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_checkpoint_is_a_model_that_transformers_loads(make_trainer, make_config, make_groups, make_model, tmp_path, is_tied):
    config = make_config()
    trainer = make_trainer(config, make_model(tied=is_tied))
    trainer.train(build_train_batch(config, None, make_groups()))
    trainer.save(tmp_path / "checkpoint")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint")
    for name, tensor in trainer.named_weights():
        assert torch.equal(model.get_parameter(name), tensor), name
    again = make_trainer(config, tmp_path / "checkpoint")
    assert again.score([[1, 2, 3, 4]]) == trainer.score([[1, 2, 3, 4]])
    # vLLM takes every safetensors file beside config.json for weights
    assert sorted(path.name for path in (tmp_path / "checkpoint").glob("*.*")) == sorted(
        {"config.json", "generation_config.json", "model.safetensors"}
    )


def test_what_is_not_a_checkpoint_is_refused(make_trainer, make_config, tmp_path):
    trainer = make_trainer(make_config())
    with pytest.raises(CheckpointError, match=r"has no trainer/state\.json"):
        trainer.load(tmp_path)
    trainer.save(tmp_path / "checkpoint")
    other = make_trainer(make_config(train_dtype="bfloat16"))
    with pytest.raises(CheckpointError, match="was written with train_dtype float32, this run has bfloat16"):
        other.load(tmp_path / "checkpoint")


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
