"""Logits of low-precision weights in float32, and log-probs and entropies with gradients of their own."""

import copy

import pytest
import torch
from torch import nn

from vime.train import output_head
from vime.train.output_head import answer_in_float32, log_probs_and_entropy

NUM_GPUS = 0


def make_head(*, bias: bool = False, device: str = "cpu") -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(64, 40, bias=bias, dtype=torch.bfloat16, device=device)


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(5, 64), (2, 5, 64)], ids=str)
def test_logits_are_not_rounded_and_gradients_are_those_of_the_products(monkeypatch, shape, bias, emulated):
    monkeypatch.setattr(output_head, "cpu_emulates_bfloat16", lambda: emulated)
    head, exact = make_head(bias=bias), make_head(bias=bias).double()
    answer_in_float32(head)
    x = torch.randn(shape).bfloat16().requires_grad_()
    y = x.detach().double().requires_grad_()
    logits, expected = head(x), exact(y)
    assert logits.dtype is torch.float32
    torch.testing.assert_close(logits.double(), expected, atol=1e-5, rtol=0)
    weights = torch.randn(expected.shape)
    (logits * weights).sum().backward()
    (expected * weights).sum().backward()
    pairs = zip([x, *head.parameters()], [y, *exact.parameters()], strict=True)
    for mine, theirs in pairs:
        assert mine.grad is not None and mine.grad.dtype is torch.bfloat16
        torch.testing.assert_close(mine.grad.double(), theirs.grad, atol=0.02, rtol=0.02)


def test_a_frozen_head_gets_no_gradient_and_a_trained_one_without_inputs_of_its_own_does():
    frozen, trained = make_head().requires_grad_(False), make_head()
    for head in (frozen, trained):
        answer_in_float32(head)
    x = torch.ones(2, 64, dtype=torch.bfloat16, requires_grad=True)
    frozen(x).sum().backward()
    trained(x.detach()).sum().backward()
    assert x.grad is not None and frozen.weight.grad is None and trained.weight.grad is not None


def test_a_copy_answers_with_its_own_weights():
    head = make_head()
    answer_in_float32(head)
    twin = copy.deepcopy(head)
    nn.init.zeros_(twin.weight)
    assert not twin(torch.ones(1, 64, dtype=torch.bfloat16)).any() and head(torch.ones(1, 64, dtype=torch.bfloat16)).any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_logits_on_a_gpu_are_not_rounded():
    head = make_head(device="cuda")
    exact = copy.deepcopy(head).double()
    answer_in_float32(head)
    x = torch.randn(2, 5, 64, device="cuda").bfloat16()
    torch.testing.assert_close(head(x).double(), exact(x.double()), atol=1e-5, rtol=0)


@pytest.mark.parametrize("entropy_grad", [False, True])
def test_gradients_equal_those_of_numbers_that_are_moved_a_little(entropy_grad):
    torch.manual_seed(0)
    logits = (4 * torch.randn(6, 11, dtype=torch.float64)).requires_grad_()
    targets = torch.randint(11, (6,))

    def numbers(logits):
        log_probs, entropy = log_probs_and_entropy(logits, targets, entropy_grad=entropy_grad)
        return (log_probs, entropy) if entropy_grad else log_probs

    assert torch.autograd.gradcheck(numbers, (logits,))


def test_a_gradient_of_a_gradient_is_refused_and_not_wrong():
    logits = torch.randn(2, 5, requires_grad=True)
    log_probs, _ = log_probs_and_entropy(logits, torch.tensor([0, 1]))
    (first,) = torch.autograd.grad(log_probs.square().sum(), logits, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.square().sum().backward()


def test_large_and_small_logits_give_finite_numbers():
    logits = torch.tensor([[1e4, 0.0, -1e4], [-1e4, -1e4, -1e4]], requires_grad=True)
    log_probs, entropy = log_probs_and_entropy(logits, torch.tensor([0, 1]), entropy_grad=True)
    torch.testing.assert_close(log_probs, -torch.tensor([0.0, 3.0]).clamp(min=1).log())
    torch.testing.assert_close(entropy, torch.tensor([0.0, 3.0]).clamp(min=1).log(), atol=1e-3, rtol=0)
    (log_probs.sum() + entropy.sum()).backward()
    assert logits.grad is not None and torch.isfinite(logits.grad).all()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
