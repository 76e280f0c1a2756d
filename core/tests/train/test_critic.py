"""The critic of --advantage-estimator ppo in the trainer: what it learns, when, and what it leaves alone."""

import copy
import json
import math
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from vime.errors import CheckpointError, ConfigError, ContractError, TrainerError
from vime.plugins.function import HookFunction
from vime.train.batch import build_train_batch
from vime.train.critic import HEAD_FILE, critic_source
from vime.train.parameters import gather_named_weights
from vime.train.values import clipped_value_loss

NUM_GPUS = 0

pytestmark = pytest.mark.filterwarnings("ignore:.*reduce_scatter_tensor:FutureWarning")


@pytest.fixture
def ppo(make_config):
    def make(**values):
        return make_config(**({"advantage_estimator": "ppo", "critic_lr": 3e-3} | values))

    return make


def critic_weights(trainer) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in trainer.critic.model.named_parameters()}


def policy_weights(trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.named_weights()}


def same(first, second) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first.keys() | second.keys())


def critic_gradients(trainer, batch) -> dict[str, torch.Tensor]:
    """The gradients that the critic would step with."""
    found: dict[str, torch.Tensor] = {}
    step = trainer.critic.engine.step

    def record(*args, **kwargs):
        found.update({name: parameter.grad.clone() for name, parameter in trainer.critic.model.named_parameters()})
        return step(*args, **kwargs)

    trainer.critic.engine.step = record
    trainer.train(batch)
    return found


def with_head(trainer, seed=1):
    """Give the head weights, without which the first step has no gradient further down."""
    generator = torch.Generator().manual_seed(seed)
    weight = trainer.critic.model.head.weight
    with torch.no_grad():
        weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))
    return trainer


def naive_value_loss(model, head, batch, old_values=None, value_clip=0.2) -> torch.Tensor:
    """Mean over samples of the mean over their trained tokens, sample by sample in float64, gamma and lambda 1, no KL.

    The value of a token is read one position before it, and its return is the sample's reward.
    """
    terms = []
    for row, (tokens, length, mask) in enumerate(zip(batch.tokens, batch.response_lengths, batch.loss_masks, strict=True)):
        if any(mask):
            hidden = model(torch.tensor([tokens])).last_hidden_state[0]
            places = [len(tokens) - length + offset - 1 for offset, flag in enumerate(mask) if flag]
            values = (hidden @ head.double())[places]
            old = values.detach() if old_values is None else old_values[row]
            losses, _ = clipped_value_loss(values, old, torch.full_like(values, batch.rewards[row]), value_clip)
            terms.append(losses.mean())
    return torch.stack(terms).mean()


def test_the_critic_starts_at_the_policy_with_values_of_zero(make_trainer, ppo, make_groups):
    trainer = make_trainer(ppo())
    policy = policy_weights(trainer)
    backbone = dict(trainer.critic.model.backbone.named_parameters())
    assert backbone and all(torch.equal(parameter, policy[f"model.{name}"]) for name, parameter in backbone.items())
    metrics = trainer.train(build_train_batch(trainer.config, None, make_groups()))
    assert metrics["values_mean"] == 0.0 and metrics["returns_mean"] > 0 and metrics["value_loss"] > 0


def test_the_gradient_of_the_critic_is_that_of_a_naive_loop(make_trainer, ppo, make_groups, model_path):
    config = ppo(clip_grad=0.0)
    groups = make_groups()
    groups[0][1].loss_mask = [1, 0] + [1] * (groups[0][1].response_length - 2)  # a tool's output in the middle
    batch = build_train_batch(config, None, groups)
    trainer = with_head(make_trainer(config))
    model = AutoModelForCausalLM.from_pretrained(model_path).double().model
    head = trainer.critic.model.head.weight.detach()[0].clone().double().requires_grad_()
    naive_value_loss(model, head, batch).backward()
    found = critic_gradients(trainer, batch)
    torch.testing.assert_close(found.pop("head.weight")[0].double(), head.grad, atol=1e-6, rtol=1e-4)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[f"backbone.{name}"].double(), parameter.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch_size": 1},
        {"micro_batch_size": 5},
        {"pack_sequences": True},
        {"max_tokens_per_gpu": 30},
        {"gradient_checkpointing": True},
    ],
)
@pytest.mark.parametrize("aggregation", ["sample", "token", "constant"])
def test_no_split_into_micro_batches_changes_the_critics_gradient(make_trainer, ppo, make_groups, options, aggregation):
    values = {"clip_grad": 0.0, "loss_aggregation": aggregation, "lambd": 0.9}
    batch = build_train_batch(ppo(**values), None, make_groups())
    whole = critic_gradients(with_head(make_trainer(ppo(**values))), batch)
    split = critic_gradients(with_head(make_trainer(ppo(**values, **options))), batch)
    for name, gradient in whole.items():
        torch.testing.assert_close(split[name], gradient, atol=2e-6, rtol=1e-4)


def test_removed_samples_are_not_valued(make_trainer, ppo, make_groups):
    config = ppo(clip_grad=0.0, normalize_advantages=True)
    groups = make_groups()
    kept = build_train_batch(config, None, [[sample for sample in group if sample.index != 5] for group in groups])
    groups[1][1].remove_sample = True
    first, second = make_trainer(config), make_trainer(config)
    assert first.train(kept) == second.train(build_train_batch(config, None, groups))
    assert same(critic_weights(first), critic_weights(second)) and same(policy_weights(first), policy_weights(second))


def test_siblings_weigh_as_one_rollout(make_trainer, ppo, make_groups):
    config = ppo(clip_grad=0.0)
    groups = make_groups()
    whole = critic_gradients(with_head(make_trainer(config)), build_train_batch(config, None, groups))
    sample = groups[0][1]
    half = sample.response_length // 2
    first, second = copy.deepcopy(sample), copy.deepcopy(sample)
    first.loss_mask = [1] * half + [0] * (sample.response_length - half)
    second.loss_mask = [0] * half + [1] * (sample.response_length - half)
    first.rollout_id = second.rollout_id = 1
    groups[0][1:2] = [first, second]
    cut = critic_gradients(with_head(make_trainer(config)), build_train_batch(config, None, groups))
    for name, gradient in cut.items():
        torch.testing.assert_close(gradient, whole[name], atol=1e-6, rtol=1e-4)


def test_the_critic_learns_which_prompts_pay(make_trainer, ppo, make_groups):
    """Prompts that begin with token 5 are rewarded and those with 9 are not: after some steps the critic foresees it."""
    config = ppo(num_critic_only_steps=1000, value_clip=10.0)
    trainer = make_trainer(config)
    seen = []
    for number in range(20):
        groups = make_groups(4, 4, seed=number)
        for sample in (sample for group in groups for sample in group):
            sample.tokens[0] = (9, 5)[sample.index % 2]
            sample.reward = float(sample.index % 2)
        seen.append(trainer.train(build_train_batch(config, None, groups, rollout_id=number)))
    explained = [metrics["value_explained_variance"] for metrics in seen]  # of rollouts that it has not been trained on
    assert explained[0] == 0.0 and sum(explained[-4:]) / 4 > 0.8
    assert seen[-1]["value_loss"] < 0.2 * seen[0]["value_loss"]


def test_the_policy_rises_with_what_the_critic_did_not_foresee(make_trainer, ppo, make_groups):
    config = ppo(num_steps_per_rollout=2, normalize_advantages=True, lambd=0.95)
    trainer = make_trainer(config)
    batch = build_train_batch(config, None, make_groups())
    before = trainer.score(batch.tokens)
    metrics = trainer.train(batch)
    gain = dict.fromkeys((0.0, 1.0), 0.0)
    for row, (old, new) in enumerate(zip(before, trainer.score(batch.tokens), strict=True)):
        gain[batch.raw_rewards[row]] += sum(new) - sum(old)
    assert gain[1.0] > gain[0.0]
    assert metrics["optimizer_steps"] == 2.0 and trainer.critic.stepper.applied_steps == 2 and trainer.weight_version == 1


def test_the_first_rollouts_train_the_critic_only(make_trainer, ppo, make_groups):
    config = ppo(num_critic_only_steps=2, num_steps_per_rollout=2, lr_warmup_iters=4, critic_lr_warmup_iters=8)
    trainer = make_trainer(config)
    start, rates = policy_weights(trainer), []
    for number in range(3):
        critic = critic_weights(trainer)
        metrics = trainer.train(build_train_batch(config, None, make_groups(seed=number), rollout_id=number))
        assert not same(critic, critic_weights(trainer))
        assert (number < 2) is same(start, policy_weights(trainer)) is ("loss" not in metrics) is (trainer.weight_version == 0)
        assert metrics["skipped_steps"] == 0.0 and metrics["tokens"] > 0 and metrics["critic_skipped_steps"] == 0.0
        rates.append((metrics["critic_lr"], metrics.get("lr")))
    assert rates == [(pytest.approx(3e-3 * k / 8), lr and pytest.approx(lr)) for k, lr in ((2, None), (4, None), (6, 1e-3 * 2 / 4))]


def test_a_rate_that_decays_does_so_over_the_steps_of_each_model(make_trainer, ppo):
    trainer = make_trainer(ppo(num_rollout=10, num_critic_only_steps=4, num_steps_per_rollout=2, lr_decay_style="linear"))
    assert (trainer.stepper.schedule.total, trainer.critic.stepper.schedule.total) == (12, 20)
    assert trainer.critic.stepper.schedule.lr == 3e-3


def test_without_a_rate_of_its_own_the_critic_has_the_policys(make_trainer, ppo):
    assert make_trainer(ppo(critic_lr=None)).critic.stepper.schedule.lr == 1e-3


def test_a_step_of_the_critic_that_is_not_finite_changes_nothing(make_trainer, ppo, make_groups):
    config = ppo(max_bad_steps=2, num_critic_only_steps=100, weight_decay=0.1)
    trainer = make_trainer(config)
    good, bad = (build_train_batch(config, None, make_groups()) for _ in range(2))
    bad.rewards[3] = math.inf
    trainer.train(good)
    before = critic_weights(trainer)
    metrics = trainer.train(bad)
    assert metrics["critic_skipped_steps"] == 1.0 and same(before, critic_weights(trainer))
    assert all(math.isfinite(value) for value in metrics.values())
    trainer.train(good)
    trainer.train(bad)
    with pytest.raises(TrainerError, match="2 optimizer steps of the critic in a row") as error:
        trainer.train(bad)
    assert "--critic-lr" in str(error.value.hint)


def test_a_rollout_without_a_trained_token_is_skipped(make_trainer, ppo, make_groups):
    trainer = make_trainer(ppo())
    groups = make_groups()
    for sample in (sample for group in groups for sample in group):
        sample.remove_sample = True
    before = critic_weights(trainer)
    metrics = trainer.train(build_train_batch(trainer.config, None, groups))
    assert (metrics["critic_skipped_steps"], metrics["value_loss"], metrics["skipped_steps"]) == (1.0, 0.0, 1.0)
    assert same(before, critic_weights(trainer))


def test_kl_in_the_reward_reaches_the_returns(make_trainer, ppo, make_groups, make_model):
    trainer = make_trainer(ppo(kl_coef=0.1, ref_load=make_model(seed=5)))
    batch = build_train_batch(trainer.config, None, make_groups())
    plain = make_trainer(ppo()).train(batch)
    assert trainer.train(batch)["returns_mean"] != pytest.approx(plain["returns_mean"], abs=1e-3)


class Postprocess:
    """The part of a plugin manager that the trainer uses, with one hook."""

    def __init__(self, function, hook="rollout_data_postprocess"):
        order = ("args", "rollout_id", "rollout_data") if hook == "rollout_data_postprocess" else ("args", "rollout_data")
        self.hook = HookFunction(plugin="p", label="plugin 'p' (p 1.0)", hook=hook, function=function, order=order)

    def claimed(self, hook):
        return self.hook if self.hook.hook == hook == "compute_advantages" else None

    def implementations(self, hook):
        return [self.hook] if self.hook.hook == hook else []


def test_hooks_see_values_and_returns_and_may_change_the_returns(make_trainer, ppo, make_groups):
    seen = {}

    def double(args, rollout_id, rollout_data):
        seen.update({key: [row.clone() for row in rollout_data[key]] for key in ("values", "returns", "advantages")})
        for row in rollout_data["returns"]:
            row *= 2
        rollout_data["loss_masks"][0][0] = 0

    config = ppo(gamma=0.9, lambd=0.8, normalize_advantages=True)
    batch = build_train_batch(config, None, make_groups())
    metrics = make_trainer(config, plugins=Postprocess(double)).train(batch)
    assert [len(row) for row in seen["values"]] == batch.response_lengths
    returns = torch.cat(seen["returns"])[1:]  # without the token that was masked
    assert metrics["tokens"] == len(returns)
    assert metrics["returns_mean"] == pytest.approx(2 * float(returns.mean()), rel=1e-5)
    assert float(torch.cat(seen["advantages"]).mean()) == pytest.approx(0.0, abs=1e-6)  # whitened, which returns are not
    assert float(returns.mean()) > 0.1


def test_returns_that_are_not_finite_are_named(make_trainer, ppo, make_groups):
    def spoil(args, rollout_id, rollout_data):
        rollout_data["returns"][2][0] = math.nan

    trainer = make_trainer(ppo(), plugins=Postprocess(spoil))
    with pytest.raises(ContractError, match="left a return that is not finite on sample 2"):
        trainer.train(build_train_batch(trainer.config, None, make_groups()))


def test_a_plugin_that_replaces_the_advantages_is_refused(make_trainer, ppo):
    with pytest.raises(ConfigError, match=r"plugin 'p' \(p 1\.0\) replaces them \(compute_advantages\)"):
        make_trainer(ppo(), plugins=Postprocess(lambda args, rollout_data: None, hook="compute_advantages"))


def test_a_run_with_a_critic_resumes_as_if_it_had_not_stopped(make_trainer, ppo, make_groups, tmp_path):
    config = ppo(num_steps_per_rollout=2, critic_lr_warmup_iters=6, num_critic_only_steps=1, weight_decay=0.1, lambd=0.9)
    batches = [build_train_batch(config, None, make_groups(seed=seed), rollout_id=seed) for seed in range(4)]
    straight = make_trainer(config)
    for batch in batches[:2]:
        straight.train(batch)
    straight.save(tmp_path / "checkpoint")
    expected = [straight.train(batch) for batch in batches[2:]]
    resumed = make_trainer(config)
    resumed.load(tmp_path / "checkpoint")
    assert (resumed.applied_steps, resumed.critic.stepper.applied_steps) == (2, 4)
    assert [resumed.train(batch) for batch in batches[2:]] == expected
    assert same(critic_weights(straight), critic_weights(resumed)) and same(policy_weights(straight), policy_weights(resumed))


def test_a_checkpoint_fits_a_run_with_or_without_a_critic(make_trainer, ppo, make_config, tmp_path):
    with_critic, without = make_trainer(ppo()), make_trainer(make_config())
    with_critic.save(tmp_path / "with")
    without.save(tmp_path / "without")
    with pytest.raises(CheckpointError, match=r"has no critic, and this run has one \(--advantage-estimator ppo\)") as error:
        with_critic.load(tmp_path / "without")
    assert f"--hf-checkpoint {tmp_path / 'without'}" in str(error.value.hint)
    with pytest.raises(CheckpointError, match=r"was written with a critic \(--advantage-estimator ppo\), and this run has none"):
        without.load(tmp_path / "with")


def gathered(trainer) -> dict[str, torch.Tensor]:
    """The critic's weights, whole in every ZeRO stage."""
    is_partitioned = trainer.engine.zero_optimization_partition_weights()
    return {name: tensor.float().clone() for name, tensor in gather_named_weights(trainer.critic.model, is_partitioned=is_partitioned)}


@pytest.mark.e2e
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_stage_takes_the_same_steps(make_trainer, ppo, make_groups, stage):
    plain, sharded = make_trainer(ppo(lambd=0.9)), make_trainer(ppo(lambd=0.9, zero_stage=stage))
    for seed in range(3):  # the first has no gradient below the head
        batch = build_train_batch(plain.config, None, make_groups(seed=seed))
        assert sharded.train(batch) == pytest.approx(plain.train(batch), rel=1e-4, abs=1e-6)
    theirs = gathered(sharded)
    assert all(torch.allclose(value, theirs[name], atol=1e-5) for name, value in gathered(plain).items())


@pytest.mark.e2e
@pytest.mark.parametrize(("stage", "dtype"), [(2, "float32"), (3, "float32"), (0, "bfloat16"), (3, "bfloat16")])
def test_every_stage_skips_and_resumes(make_trainer, ppo, make_groups, tmp_path, stage, dtype):
    config = ppo(zero_stage=stage, train_dtype=dtype, num_steps_per_rollout=2, max_tokens_per_gpu=60)
    good = [build_train_batch(config, None, make_groups(seed=seed)) for seed in range(3)]
    bad = build_train_batch(config, None, make_groups())
    bad.rewards = [math.nan] * len(bad)
    trainer = make_trainer(config)
    trainer.train(good[0])
    moved = gathered(trainer)
    assert moved["head.weight"].any() and trainer.train(bad)["critic_skipped_steps"] == 2.0
    assert same(moved, gathered(trainer))
    trainer.train(good[1])
    trainer.save(tmp_path / "checkpoint")
    expected = trainer.train(good[2])
    resumed = make_trainer(config)
    resumed.load(tmp_path / "checkpoint")
    assert resumed.train(good[2]) == expected
    assert same(gathered(resumed), gathered(trainer))


def test_a_critic_starts_another_one(make_trainer, ppo, make_groups, tmp_path):
    trainer = make_trainer(ppo())
    trainer.train(build_train_batch(trainer.config, None, make_groups()))
    trainer.save(tmp_path / "checkpoint")
    learned = critic_weights(trainer)
    assert learned["head.weight"].any()
    for folder in (tmp_path / "checkpoint", tmp_path / "checkpoint" / "critic"):
        assert same(critic_weights(make_trainer(ppo(critic_load=str(folder)))), learned)
    assert same(critic_weights(make_trainer(ppo(), tmp_path / "checkpoint")), learned)  # the model of a run with a critic


def test_a_resumed_run_takes_the_critic_of_its_checkpoint(tmp_path):
    checkpoint, other = tmp_path / "step_3", tmp_path / "other"
    (checkpoint / "critic").mkdir(parents=True)
    (checkpoint / "critic" / "config.json").write_text("{}")

    def source(model_path, **values):
        config = SimpleNamespace(**({"load": None, "hf_checkpoint": "model", "critic_load": None} | values))
        return critic_source(config, str(model_path))

    inside = str(checkpoint / "critic")
    assert source("model") == "model"
    assert (
        source("model", critic_load=str(other)) == source(checkpoint, hf_checkpoint=str(checkpoint), critic_load=str(other)) == str(other)
    )
    assert source("model", critic_load=str(checkpoint)) == source(checkpoint, hf_checkpoint=str(checkpoint)) == inside
    assert source(checkpoint, load="auto", critic_load=str(other)) == inside
    assert source(checkpoint, load=str(checkpoint), hf_checkpoint=str(checkpoint), critic_load=str(other)) == inside
    assert source("model", load="auto", critic_load=str(other)) == str(other)  # nothing to resume from


def test_the_critic_of_a_checkpoint_is_a_model_that_transformers_loads(make_trainer, ppo, tmp_path):
    trainer = make_trainer(ppo())
    trainer.save(tmp_path / "checkpoint")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint" / "critic")
    for name, parameter in trainer.critic.model.backbone.named_parameters():
        assert torch.equal(model.model.get_parameter(name), parameter), name
    assert (tmp_path / "checkpoint" / "critic" / HEAD_FILE).is_file()
    state = json.loads((tmp_path / "checkpoint" / "trainer" / "state.json").read_text())
    assert state["critic"] == {"applied_steps": 0, "bad_steps_in_a_row": 0}


def test_a_critic_for_another_vocabulary_is_refused(make_trainer, ppo, make_model, tmp_path):
    import transformers

    config = transformers.AutoConfig.from_pretrained(make_model())
    config.vocab_size = 8
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "small")
    with pytest.raises(ConfigError, match="has 8 tokens, and the policy has 32"):
        make_trainer(ppo(critic_load=str(tmp_path / "small")))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
