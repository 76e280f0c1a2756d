"""bfloat16 products computed in float32: the same numbers, where the processor is faster that way."""

import copy
from unittest import mock

import pytest
import torch
from torch import nn

from vime.train import bfloat16, model_loading
from vime.train.bfloat16 import compute_products_in_float32

NUM_GPUS = 0


@pytest.mark.parametrize("shape", [(5, 8), (2, 5, 8)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_products_and_gradients_are_those_of_bfloat16(shape, bias):
    torch.manual_seed(0)
    plain = nn.Linear(8, 3, bias=bias, dtype=torch.bfloat16)
    ours = nn.Sequential(nn.Linear(8, 3, bias=bias, dtype=torch.bfloat16))
    ours[0].load_state_dict(plain.state_dict())
    compute_products_in_float32(ours)
    x = torch.randn(shape).bfloat16().requires_grad_()
    y = x.detach().clone().requires_grad_()
    torch.testing.assert_close(ours(y), plain(x), atol=0.02, rtol=0.02)
    weights = torch.randn(*shape[:-1], 3).bfloat16()
    (ours(y) * weights).sum().backward()
    (plain(x) * weights).sum().backward()
    torch.testing.assert_close(y.grad, x.grad, atol=0.02, rtol=0.02)
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        assert mine.grad.dtype is torch.bfloat16
        torch.testing.assert_close(mine.grad, theirs.grad, atol=0.05, rtol=0.02)


def test_frozen_weights_get_no_gradient():
    model = nn.Sequential(nn.Linear(4, 4, dtype=torch.bfloat16), nn.Linear(4, 4, dtype=torch.bfloat16))
    compute_products_in_float32(model)
    model[1].requires_grad_(False)
    model(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
    assert model[0].weight.grad is not None and model[1].weight.grad is None


def test_a_copy_computes_with_its_own_weights():
    model = nn.Sequential(nn.Linear(4, 4, dtype=torch.bfloat16))
    compute_products_in_float32(model)
    twin = copy.deepcopy(model)
    nn.init.zeros_(twin[0].weight)
    nn.init.zeros_(twin[0].bias)
    assert not twin(torch.ones(2, 4, dtype=torch.bfloat16)).any()
    assert model(torch.ones(2, 4, dtype=torch.bfloat16)).any()


def test_a_layer_that_has_left_the_cpu_multiplies_as_ever():
    model = nn.Sequential(nn.Linear(4, 4, dtype=torch.bfloat16)).to("meta")
    compute_products_in_float32(model)
    with mock.patch.object(bfloat16._Product, "apply", side_effect=AssertionError):
        assert model(torch.ones(2, 4, dtype=torch.bfloat16, device="meta")).shape == (2, 4)


@pytest.mark.parametrize("emulated", [True, False])
def test_a_model_is_loaded_for_its_processor(monkeypatch, model_path, emulated):
    monkeypatch.setattr(model_loading, "cpu_emulates_bfloat16", lambda: emulated)
    for dtype in (torch.bfloat16, torch.float32):
        model = model_loading.load_model(model_path, dtype, "auto", torch.device("cpu"))
        layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
        assert {"forward" in vars(layer) for layer in layers} == {emulated and dtype is torch.bfloat16}


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
