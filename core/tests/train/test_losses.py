"""Losses against numbers worked out by hand, and their gradients against naive float64 loops."""

import math
import random

import pytest
import torch

from vime.train import losses
from vime.train.advantages import discounted_returns, fill_advantages, token_advantages, whiten

NUM_GPUS = 0


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_case_d5_masked_mean_ignores_what_is_masked():
    values = torch.tensor([math.nan, 1.0], requires_grad=True)
    mean = losses.masked_mean(values, torch.tensor([0, 1]))
    mean.backward()
    assert mean.item() == 1.0
    assert values.grad.tolist() == [0.0, 1.0]


def test_masked_mean_of_nothing_is_zero():
    values = torch.tensor([math.inf, 2.0], requires_grad=True)
    mean = losses.masked_mean(values, torch.zeros(2))
    mean.backward()
    assert mean.item() == 0.0 and values.grad.tolist() == [0.0, 0.0]


def test_weights_by_sample_token_and_constant():
    masks, rollouts = [[1, 1], [1, 0, 1, 1], [0, 0], [1]], [0, 1, 2, 3]
    assert losses.token_weights(masks, rollouts, "sample") == pytest.approx([1 / 6, 1 / 9, 0, 1 / 3])
    assert losses.token_weights(masks, rollouts, "token") == pytest.approx([1 / 6, 1 / 6, 0, 1 / 6])
    assert losses.token_weights(masks, rollouts, "constant", 10.0) == pytest.approx([1 / 30, 1 / 30, 0, 1 / 30])


def test_the_share_of_a_rollout_or_token_in_a_step():
    masks, rollouts = [[1, 1], [1, 0, 1, 1], [0, 0], [1]], [0, 1, 2, 0]
    assert [losses.step_share(masks, rollouts, level) for level in ("sample", "constant", "token")] == [1 / 2, 1 / 2, 1 / 6]
    assert losses.step_share([[0]], [0], "sample") == 0.0


def test_siblings_count_as_one_rollout():
    # rollout 0 has two rows of 2 and 3 tokens, rollout 1 one row of 1: each rollout weighs a half
    weights = losses.token_weights([[1, 1], [1, 1, 1], [1]], [0, 0, 1], "sample")
    assert weights == pytest.approx([0.1, 0.1, 0.5])


def test_weights_of_an_empty_step_are_zero():
    for level in ("sample", "token", "constant"):
        assert losses.token_weights([[0], [0, 0]], [0, 1], level, 5.0) == [0.0, 0.0]


@pytest.mark.parametrize(("kind", "expected"), [("k1", 1.0), ("k2", 0.5), ("k3", math.exp(-1)), ("low_var_kl", math.exp(-1))])
def test_kl_estimators(kind, expected):
    # log p = -1, log p_ref = -2: d = -1
    assert losses.kl_divergence(tensor(-1.0), tensor(-2.0), kind).item() == pytest.approx(expected)


def test_kl_estimators_are_unbiased_or_non_negative():
    torch.manual_seed(0)
    p, q = torch.softmax(torch.randn(8, dtype=torch.float64), 0), torch.softmax(torch.randn(8, dtype=torch.float64), 0)
    exact = (p * (p / q).log()).sum()
    for kind in ("k1", "k3"):
        assert (p * losses.kl_divergence(p.log(), q.log(), kind)).sum().item() == pytest.approx(exact.item())
    assert bool((losses.kl_divergence(p.log(), q.log(), "k3") >= 0).all())


def test_k3_keeps_its_digits_where_policies_are_close():
    d = 1e-3
    found = losses.kl_divergence(torch.tensor([0.0]), torch.tensor([d]), "k3").item()
    assert found == pytest.approx(d * d / 2 + d**3 / 6, rel=2e-3)


def test_low_var_kl_is_clamped_and_unknown_kinds_are_refused():
    assert losses.kl_divergence(tensor(-30.0), tensor(0.0), "low_var_kl").item() == 10.0
    with pytest.raises(ValueError, match="k1, k2, k3"):
        losses.kl_divergence(tensor(0.0), tensor(0.0), "k4")


def test_ppo_clip_by_hand():
    log_ratio = tensor(1.5, 0.5, 1.5, 0.5, 1.25).log()
    loss, clipped = losses.ppo_clip_loss(log_ratio, tensor(1.0, 1.0, -1.0, -1.0, 2.0), 0.2, 0.3)
    assert loss.tolist() == pytest.approx([-1.3, -0.5, 1.5, 0.8, -2.5])
    assert clipped.tolist() == [1.0, 0.0, 0.0, 1.0, 0.0]


def test_dual_clip_bounds_negative_advantages_only():
    loss, _ = losses.ppo_clip_loss(tensor(5.0, 5.0).log(), tensor(-1.0, 1.0), 0.2, 0.2, eps_clip_c=3.0)
    assert loss.tolist() == pytest.approx([3.0, -1.2])


def test_ppo_clip_gradient_matches_a_loop():
    rng = random.Random(1)
    new = [rng.uniform(-2, 0) for _ in range(64)]
    old = [value + rng.uniform(-0.6, 0.6) for value in new]
    advantages = [rng.choice([-1.5, -0.5, 0.7, 2.0]) for _ in new]
    log_probs = tensor(*new).requires_grad_()
    losses.ppo_clip_loss(log_probs - tensor(*old), tensor(*advantages), 0.2, 0.28, 1.5)[0].sum().backward()
    for position, (p, q, a) in enumerate(zip(new, old, advantages, strict=True)):
        ratio = math.exp(p - q)
        is_flat = (a > 0 and ratio > 1.28) or (a < 0 and (ratio < 0.8 or ratio > 1.5))
        assert log_probs.grad[position].item() == pytest.approx(0.0 if is_flat else -a * ratio)


def test_cispo_clips_the_weight_and_keeps_every_gradient():
    log_probs = tensor(-1.0, -1.0).requires_grad_()
    loss, clipped = losses.cispo_loss(log_probs, tensor(2.0, 1.1).log(), tensor(1.0, -2.0), 0.2, 0.3)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([1.3, -2.2])
    assert log_probs.grad.tolist() == pytest.approx([-1.3, 2.2])
    assert clipped.tolist() == [1.0, 0.0]


def test_gspo_has_the_ratio_and_the_gradient_of_the_sequence():
    new = tensor(-1.0, -2.0, -0.5).requires_grad_()
    old = tensor(-1.2, -1.9, -0.4)
    row, mask = torch.tensor([0, 0, 1]), torch.ones(3)
    log_ratio = losses.gspo_log_ratio(new - old, new, mask, row, 2)
    assert log_ratio.tolist() == pytest.approx([0.05, 0.05, -0.1])
    weights = tensor(0.25, 0.25, 0.5)
    losses.weighted_sum(losses.ppo_clip_loss(log_ratio, tensor(1.0, 1.0, -1.0), 0.2, 0.2)[0], weights).backward()
    naive = tensor(-1.0, -2.0, -0.5).requires_grad_()
    first, second = ((naive[:2] - old[:2]).mean()).exp(), (naive[2] - old[2]).exp()
    (-(first * 1.0) / 2 + second / 2).backward()
    assert new.grad.tolist() == pytest.approx(naive.grad.tolist())


def test_an_outlier_does_not_overflow():
    loss, _ = losses.ppo_clip_loss(torch.tensor([500.0]), torch.tensor([-1.0]), 0.2, 0.2)
    assert math.isfinite(loss.item())


def test_discounted_returns_by_hand():
    # rewards -0.1, -0.2, -0.3 + 1; gamma 0.5
    returns = discounted_returns(1.0, torch.tensor([1.0, 2.0, 3.0]), 0.1, 0.5)
    assert returns.tolist() == pytest.approx([-0.1 + 0.5 * (-0.2 + 0.35), -0.2 + 0.35, 0.7])


def test_other_estimators_broadcast_the_reward_less_the_kl():
    kl = torch.tensor([0.0, 2.0])
    assert token_advantages("grpo", 1.5, kl, kl_coef=0.25, gamma=0.9).tolist() == pytest.approx([1.5, 1.0])


def test_whitening_spans_the_batch():
    first, second = whiten([torch.tensor([1.0]), torch.tensor([2.0, 3.0])])
    assert [*first.tolist(), *second.tolist()] == pytest.approx([-1.0, 0.0, 1.0])
    assert whiten([torch.tensor([4.0])])[0].tolist() == [0.0]


def naive_advantages(config, case):
    """The advantages of each row, token by token."""
    rows = []
    for row in case.rows:
        old, ref = row.old_log_probs_M.tolist(), row.ref_log_probs_M.tolist()
        differences = [r - p for p, r in zip(old, ref, strict=True)]
        penalties = [{"k1": -d, "k2": d * d / 2, "k3": math.exp(d) - d - 1}[config.kl_loss_type] * config.kl_coef for d in differences]
        reward, last = case.batch.rewards[row.index], len(penalties) - 1
        if config.advantage_estimator == "reinforce_plus_plus":
            rewards = [-penalty + (reward if k == last else 0.0) for k, penalty in enumerate(penalties)]
            rows.append([sum(config.gamma ** (j - k) * rewards[j] for j in range(k, last + 1)) for k in range(last + 1)])
        else:
            rows.append([reward - penalty for penalty in penalties])
    if config.normalize_advantages:
        flat = [value for row in rows for value in row]
        mean = sum(flat) / len(flat)
        std = math.sqrt(sum((value - mean) ** 2 for value in flat) / (len(flat) - 1) + 1e-8)
        rows = [[(value - mean) / std for value in row] for row in rows]
    return rows


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus_baseline", "reinforce_plus_plus"])
def test_advantages_are_those_of_a_loop_over_trained_tokens(make_config, make_loss_case, estimator, normalize, kind):
    config = make_config(advantage_estimator=estimator, normalize_advantages=normalize, kl_coef=0.1, kl_loss_type=kind, gamma=0.9)
    case = make_loss_case(1)
    expected = naive_advantages(config, case)
    fill_advantages(config, case.rows)
    for row, values in zip(case.rows, expected, strict=True):
        assert row.advantages_M.tolist() == pytest.approx(values, abs=1e-5)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
