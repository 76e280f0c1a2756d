"""The critic's mathematics: by hand, against naive loops in float64, and what must not matter."""

import random

import pytest
import torch

from vime.train.advantages import discounted_returns
from vime.train.values import clipped_value_loss, explained_variance, generalised_advantages, token_rewards

NUM_GPUS = 0


def test_token_rewards_put_the_reward_on_the_last_token():
    rewards = token_rewards(2.0, torch.tensor([0.5, -0.25, 0.0]), 0.4)
    torch.testing.assert_close(rewards, torch.tensor([-0.2, 0.1, 2.0], dtype=torch.float64), atol=1e-7, rtol=0)


def test_advantages_by_hand():
    """gamma 0.5, lambda 0.5: deltas 0 + 0.5*4 - 2 = 0, 0 + 0.5*8 - 4 = 0, 3 - 8 = -5; A = -5, -1.25, -0.3125."""
    advantages, returns = generalised_advantages(torch.tensor([0.0, 0.0, 3.0]), torch.tensor([2.0, 4.0, 8.0]), 0.5, 0.5)
    assert advantages.tolist() == [-0.3125, -1.25, -5.0]
    assert returns.tolist() == [1.6875, 2.75, 3.0]


def naive_advantage(rewards, values, gamma, lambd, t):
    """The sum over l of (gamma lambda)^l delta_{t+l}, each delta written out (arXiv:1506.02438, eq. 16)."""
    total = 0.0
    for step in range(t, len(rewards)):
        following = values[step + 1] if step + 1 < len(values) else 0.0
        total += (gamma * lambd) ** (step - t) * (rewards[step] + gamma * following - values[step])
    return total


@pytest.mark.parametrize(("gamma", "lambd"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.7), (1.0, 0.0), (0.0, 1.0)])
def test_advantages_are_those_of_a_naive_sum(gamma, lambd):
    rng = random.Random(3)
    for length in (1, 2, 7, 40):
        rewards = [rng.uniform(-1, 1) for _ in range(length)]
        values = torch.tensor([rng.uniform(-1, 1) for _ in range(length)])
        advantages, returns = generalised_advantages(torch.tensor(rewards, dtype=torch.float64), values, gamma, lambd)
        expected = [naive_advantage(rewards, values.double().tolist(), gamma, lambd, t) for t in range(length)]
        assert advantages.tolist() == pytest.approx(expected, abs=1e-6)
        assert returns.tolist() == pytest.approx([a + v for a, v in zip(expected, values.tolist(), strict=True)], abs=1e-6)
        assert advantages.dtype is values.dtype


def test_lambda_one_is_the_discounted_return_less_the_value():
    kl, values = torch.tensor([0.1, 0.4, -0.2]), torch.tensor([0.3, -0.5, 0.9])
    advantages, returns = generalised_advantages(token_rewards(1.0, kl, 0.3), values, 0.9, 1.0)
    expected = discounted_returns(1.0, kl, 0.3, 0.9)
    torch.testing.assert_close(returns, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(advantages, expected - values, atol=1e-6, rtol=0)


def test_a_critic_that_knows_the_reward_leaves_no_advantage():
    advantages, _ = generalised_advantages(token_rewards(0.7, torch.zeros(5), 0.0), torch.full((5,), 0.7), 1.0, 0.95)
    assert advantages.abs().max() < 1e-7


def test_the_value_loss_by_hand():
    """Returns 1, old values 0, clip 0.2: a value of 0.5 is judged as 0.2, one of -0.5 as it is, one of 0.1 either way."""
    values = torch.tensor([0.5, -0.5, 0.1], requires_grad=True)
    loss, clipped = clipped_value_loss(values, torch.zeros(3), torch.ones(3), 0.2)
    torch.testing.assert_close(loss, torch.tensor([0.5 * 0.8**2, 0.5 * 1.5**2, 0.5 * 0.9**2]))
    assert clipped.tolist() == [1.0, 0.0, 0.0]
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    torch.testing.assert_close(gradient[:2], torch.tensor([0.0, -1.5]))  # beyond the range only the way back is open
    assert gradient[2] == pytest.approx(-0.9)


def test_the_value_loss_and_its_gradient_are_those_of_a_naive_loop():
    generator = torch.Generator().manual_seed(0)
    values, old, returns = (torch.randn(200, generator=generator) for _ in range(3))
    values.requires_grad_()
    loss, clipped = clipped_value_loss(values, old, returns, 0.3)
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    for k in range(len(values)):
        v, o, r = values[k].item(), old[k].item(), returns[k].item()
        near = min(max(v, o - 0.3), o + 0.3)
        takes_clipped = (near - r) ** 2 > (v - r) ** 2
        assert loss[k].item() == pytest.approx(0.5 * max((v - r) ** 2, (near - r) ** 2), abs=1e-6)
        assert gradient[k].item() == pytest.approx(0.0 if takes_clipped else v - r, abs=1e-5)
        assert clipped[k].item() == takes_clipped
    assert 0 < clipped.mean() < 1


def test_explained_variance_says_how_much_the_critic_knows():
    returns = torch.tensor([0.0, 1.0, 1.0, 0.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(returns + 5.0, returns) == 1.0
    assert explained_variance(torch.full((4,), 0.5), returns) == 0.0
    assert explained_variance(1.0 - returns, returns) == pytest.approx(-3.0)
    assert explained_variance(returns, torch.ones(4)) is None


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
