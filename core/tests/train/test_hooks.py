"""Hooks inside training: what they see, what they may change, and how wrong ones are named."""

import math

import pytest
import torch

from vime.errors import ConfigError, ContractError
from vime.plugins.function import HookFunction
from vime.plugins.manager import PluginManager
from vime.train.batch import build_train_batch
from vime.train.rollout_data import token_values

NUM_GPUS = 0

UPSTREAM_TIS = """
import torch

def compute_weights(args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths, **kwargs):
    assert not kwargs
    assert response_lengths == [len(row) for row in rollout_log_probs]
    assert all(total > response for total, response in zip(total_lengths, response_lengths, strict=True))
    weights = [torch.exp(new - old).clamp(max=2.0) for new, old in zip(train_log_probs, rollout_log_probs, strict=True)]
    lengths = [torch.full_like(row, float(len(row))) for row in train_log_probs]
    return pg_loss * torch.cat(weights), loss_masks, {"mis_length": torch.cat(lengths)}
"""

PARAMETERS = {
    "compute_advantages": ("args", "rollout_data"),
    "rollout_data_postprocess": ("args", "rollout_id", "rollout_data"),
    "policy_loss": ("args", "inputs"),
    "importance_weights": ("args", "pg_loss", "train_log_probs", "rollout_log_probs", "loss_masks"),
    "pg_loss_reducer": ("total_lengths", "response_lengths", "loss_masks", "calculate_per_token_loss"),
}


class Hooks:
    """The part of a plugin manager that the trainer uses."""

    def __init__(self, **functions):
        self._hooks = {
            name: HookFunction(plugin="p", label="plugin 'p' (p 1.0)", hook=name, function=function, order=PARAMETERS[name])
            for name, function in functions.items()
        }

    def claimed(self, hook):
        return self._hooks.get(hook)

    def implementations(self, hook):
        return [self._hooks[hook]] if hook in self._hooks else []


@pytest.fixture
def train(make_trainer, make_config, make_groups):
    def run(*, values=None, **functions):
        config = make_config(**(values or {}))
        trainer = make_trainer(config, plugins=Hooks(**functions))
        before = {name: tensor.clone() for name, tensor in trainer.named_weights()}
        metrics = trainer.train(build_train_batch(config, None, make_groups(), rollout_id=5))
        return metrics, {name: tensor - before[name] for name, tensor in trainer.named_weights()}

    return run


def equal(first, second):
    return all(torch.allclose(first[name], second[name], atol=1e-6) for name in first)


def test_compute_advantages_replaces_the_estimator(train):
    def twice(args, rollout_data):
        assert "advantages" not in rollout_data
        rows = zip(rollout_data["rewards"], rollout_data["response_lengths"], strict=True)
        rollout_data["advantages"] = rollout_data["returns"] = [[2 * reward] * length for reward, length in rows]

    plain, _ = train(values={"clip_grad": 0.0})
    doubled, _ = train(values={"clip_grad": 0.0}, compute_advantages=twice)
    assert doubled["grad_norm"] == pytest.approx(2 * plain["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("hook", ["compute_advantages", "rollout_data_postprocess", "importance_weights", "pg_loss_reducer"])
def test_an_error_says_in_which_rollout(train, hook):
    def fail(*given):
        raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        train(values={"use_tis": hook == "importance_weights"}, **{hook: fail})
    assert caught.value.__notes__ == [f"in {hook} of plugin 'p' (p 1.0)", "in the training on rollout 5"]


def test_a_function_by_path_gets_the_lengths_that_upstream_passes(train, make_config, make_trainer, make_groups, tmp_path):
    (tmp_path / "mis.py").write_text(UPSTREAM_TIS)
    config = make_config(use_tis=True, custom_tis_function_path=f"{tmp_path / 'mis.py'}:compute_weights")
    metrics = make_trainer(config, plugins=PluginManager.load(config)).train(build_train_batch(config, None, make_groups()))
    assert metrics["mis_length"] > 0


def test_rollout_data_postprocess_sees_log_probs_and_may_mask(train):
    seen = {}

    def mask_all_but_the_first(args, rollout_id, rollout_data):
        seen.update(rollout_data, rollout_id=rollout_id)
        for mask in rollout_data["loss_masks"]:
            mask[1:] = [0] * (len(mask) - 1)

    metrics, _ = train(rollout_data_postprocess=mask_all_but_the_first)
    assert metrics["tokens"] == 12.0 and seen["rollout_id"] == 5
    lengths = [len(row) for row in seen["log_probs"]]
    assert lengths == seen["response_lengths"] == [len(row) for row in seen["advantages"]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data["loss_masks"].pop(), "loss_masks has 11 entries, expected a list of 12"),
        (lambda data: data["loss_masks"][0].pop(), "loss_masks of sample 0 has"),
        (lambda data: data["advantages"][3].fill_(float("nan")), "advantage that is not finite on sample 3"),
        (lambda data: data.pop("advantages"), "advantages has NoneType entries"),
        (lambda data: data["advantages"].__setitem__(0, 3.0), "advantages of sample 0 has float entries"),
        (lambda data: data["advantages"].__setitem__(0, ["x"] * len(data["loss_masks"][0])), "advantages on sample 0 that are no numbers"),
    ],
)
def test_wrong_changes_are_named(train, change, message):
    with pytest.raises(ContractError, match=message) as error:
        train(rollout_data_postprocess=lambda args, rollout_id, rollout_data: change(rollout_data))
    assert "plugin 'p' (p 1.0): rollout_data_postprocess" in str(error.value)


def test_sample_files_tell_of_the_tokens_that_a_hook_left(make_trainer, make_config, make_groups):
    def keep_the_first(args, rollout_id, rollout_data):
        for mask in rollout_data["loss_masks"]:
            mask[1:] = [0] * (len(mask) - 1)

    groups = make_groups()
    batch = build_train_batch(make_config(), None, groups)
    make_trainer(make_config(), plugins=Hooks(rollout_data_postprocess=keep_the_first)).train(batch)
    values = token_values(batch, [sample for group in groups for sample in group])
    assert len(values) == 12
    for value in values.values():
        for numbers in (value.log_probs, value.advantages):
            assert not math.isnan(numbers[0]) and all(map(math.isnan, numbers[1:]))


def test_a_masked_token_stays_masked(make_trainer, make_config, make_groups):
    def unmask(args, rollout_id, rollout_data):
        rollout_data["loss_masks"][0][0] = 1

    groups = make_groups()
    groups[0][0].loss_mask = [0] * groups[0][0].response_length
    config = make_config()
    trainer = make_trainer(config, plugins=Hooks(rollout_data_postprocess=unmask))
    with pytest.raises(ContractError, match="set the loss mask of a token that was masked, in sample 0"):
        trainer.train(build_train_batch(config, None, groups))


def test_policy_loss_replaces_the_loss(train):
    def reinforce(args, inputs):
        return inputs.reduce(-inputs.advantages * inputs.log_probs), {"mean_log_prob": inputs.log_probs.detach().mean()}

    plain, moved = train()
    metrics, moved_by_hook = train(values={"loss_type": "custom_loss"}, policy_loss=reinforce)
    assert equal(moved, moved_by_hook)  # at ratio 1 the gradients are the same
    assert metrics["mean_log_prob"] < 0 and metrics["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_loss_that_is_not_finite_skips_the_step_even_if_its_gradient_is(train, stage):
    def infinite(args, inputs):
        return inputs.reduce(inputs.log_probs) + float("inf"), {}

    metrics, moved = train(values={"loss_type": "custom_loss", "zero_stage": stage}, policy_loss=infinite)
    assert metrics["skipped_steps"] == 1.0
    assert not any(difference.any() for difference in moved.values())


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda args, inputs: inputs.log_probs.mean(), "returned Tensor"),
        (lambda args, inputs: (inputs.log_probs, {}), "loss has shape"),
        (lambda args, inputs: (1.0, {}), "loss has float, expected a tensor"),
        (lambda args, inputs: (inputs.reduce(inputs.log_probs).detach(), {}), "loss has no gradient"),
        (lambda args, inputs: (inputs.reduce(inputs.log_probs), {"a": "b"}), "the metric 'a' has str; expected a number"),
        (lambda args, inputs: (inputs.reduce(inputs.log_probs), {"a": inputs.log_probs}), "the metric 'a' has shape"),
        (lambda args, inputs: (inputs.reduce(inputs.log_probs), {}, {}), "returned a tuple of 3"),
    ],
)
def test_a_wrong_policy_loss_is_named(train, function, message):
    with pytest.raises(ContractError, match=message):
        train(values={"loss_type": "custom_loss"}, policy_loss=function)


def test_custom_loss_needs_a_loss(train):
    with pytest.raises(ConfigError, match="nothing provides the loss"):
        train(values={"loss_type": "custom_loss"})


def test_importance_weights_replace_tis(train):
    def halve(args, pg_loss, train_log_probs, rollout_log_probs, loss_masks):
        assert [len(row) for row in train_log_probs] == [len(row) for row in rollout_log_probs] == [len(row) for row in loss_masks]
        return pg_loss / 2, loss_masks, {"half": torch.full_like(pg_loss, 0.5)}

    plain, _ = train(values={"clip_grad": 0.0})
    metrics, _ = train(values={"use_tis": True, "clip_grad": 0.0}, importance_weights=halve)
    assert metrics["half"] == pytest.approx(0.5) and "tis_weight" not in metrics
    assert metrics["grad_norm"] == pytest.approx(plain["grad_norm"] / 2, rel=1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda args, pg, t, r, masks: pg,
        lambda args, pg, t, r, masks: (pg[1:], masks, {}),
        lambda args, pg, t, r, masks: (pg, masks[1:], {}),
        lambda args, pg, t, r, masks: (pg, masks, {"x": pg.mean()}),
        lambda args, pg, t, r, masks: (pg, torch.cat(masks), {}),
        lambda args, pg, t, r, masks: (pg, None, {}),
        lambda args, pg, t, r, masks: (pg, masks, None),
        lambda args, pg, t, r, masks: (pg.detach(), masks, {}),
    ],
)
def test_wrong_importance_weights_are_named(train, function):
    with pytest.raises(ContractError, match=r"plugin 'p' \(p 1\.0\): importance_weights"):
        train(values={"use_tis": True}, importance_weights=function)


def test_a_reducer_replaces_the_aggregation(train):
    def by_constant(total_lengths, response_lengths, loss_masks, calculate_per_token_loss):
        def reduce(per_token):  # a sum over samples, as upstream's reducers are
            parts = zip(per_token.split(response_lengths), loss_masks, strict=True)
            return sum((values * mask).sum() / (1 if calculate_per_token_loss else 1024) for values, mask in parts)

        return reduce

    for aggregation, same in {"constant": "sample", "token": "token"}.items():
        expected, moved = train(values={"loss_aggregation": aggregation, "clip_grad": 0.0, "micro_batch_size": 5})
        found, moved_by_hook = train(
            values={"loss_aggregation": same, "clip_grad": 0.0, "micro_batch_size": 5}, pg_loss_reducer=by_constant
        )
        assert equal(moved, moved_by_hook)
        assert [found[name] for name in ("pg_loss", "grad_norm")] == pytest.approx(
            [expected[name] for name in ("pg_loss", "grad_norm")], rel=1e-4
        )
    with pytest.raises(ContractError, match="pg_loss_reducer returned float"):
        train(pg_loss_reducer=lambda *arguments: 1.0)
    with pytest.raises(ContractError, match="the reduced loss has no gradient"):
        train(pg_loss_reducer=lambda *arguments: lambda per_token: per_token.detach().sum())
    with pytest.raises(ZeroDivisionError) as caught:
        train(pg_loss_reducer=lambda *arguments: lambda per_token: 1 / 0)
    assert "in the function that pg_loss_reducer of plugin 'p' (p 1.0) returned" in caught.value.__notes__


def test_async_hooks_are_awaited(train):
    async def zero(args, rollout_data):
        rollout_data["advantages"] = rollout_data["returns"] = [[0.0] * length for length in rollout_data["response_lengths"]]

    async def loss(args, inputs):
        return inputs.reduce(-inputs.advantages * inputs.log_probs), {}

    metrics, _ = train(values={"loss_type": "custom_loss"}, compute_advantages=zero, policy_loss=loss)
    assert metrics["grad_norm"] == 0.0


def test_a_result_that_nothing_uses_is_named(train):
    with pytest.raises(ContractError, match="rollout_data_postprocess returned a dict of 1, which nothing uses") as caught:
        train(rollout_data_postprocess=lambda args, rollout_id, rollout_data: {"advantages": []})
    assert "in place" in str(caught.value.hint)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
