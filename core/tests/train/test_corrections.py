"""The off-policy correction against numbers worked out by hand."""

import math

import pytest
import torch

from vime.train.corrections import correction, masked, mismatch_metrics, mismatch_ratio, truncated

NUM_GPUS = 0

ROWS = torch.tensor([0, 0, 1])


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


TRAIN, ROLLOUT = tensor(-1.0, -1.0, -1.0), tensor(-2.0, -1.5, -0.5)
"""Log-ratios 1 and 0.5 in row 0, -0.5 in row 1."""


@pytest.mark.parametrize(
    ("level", "logarithms"), [("token", [1.0, 0.5, -0.5]), ("sequence", [1.5, 1.5, -0.5]), ("geometric", [0.75, 0.75, -0.5])]
)
def test_ratios_by_level(level, logarithms):
    ratio = mismatch_ratio(TRAIN, ROLLOUT, ROWS, 2, level)
    assert ratio.tolist() == pytest.approx([math.exp(value) for value in logarithms])


def test_out_of_bounds_is_the_bound_or_nothing():
    ratio = tensor(0.4, 0.5, 1.0, 2.0, 2.1)
    assert truncated(ratio, 0.5, 2.0).tolist() == [0.5, 0.5, 1.0, 2.0, 2.0]
    assert masked(ratio, 0.5, 2.0).tolist() == [0.0, 0.5, 1.0, 2.0, 0.0]


@pytest.mark.parametrize(
    ("mode", "level", "weights", "acted"),
    [
        ("truncate", "token", [2.0, math.exp(0.5), 0.7], [1, 0, 1]),
        ("truncate", "sequence", [2.0, 2.0, 0.7], [1, 1, 1]),
        ("truncate", "geometric", [2.0, 2.0, 0.7], [1, 1, 1]),
        ("mask", "token", [0.0, math.exp(0.5), 0.0], [1, 0, 1]),
        ("mask", "sequence", [0.0, 0.0, 0.0], [1, 1, 1]),
    ],
)
def test_weights_and_their_metrics(mode, level, weights, acted):
    found, metrics = correction(TRAIN, ROLLOUT, ROWS, 2, low=0.7, high=2.0, level=level, mode=mode)
    assert found.tolist() == pytest.approx(weights)
    name = {"truncate": "tis_clipfrac", "mask": "tis_maskfrac"}[mode]
    assert set(metrics) == {"tis", "tis_abs", "tis_weight", name, "mismatch_kl", "mismatch_k3_kl"}
    assert metrics[name].tolist() == acted and metrics["tis_weight"].tolist() == found.tolist()
    ratio = mismatch_ratio(TRAIN, ROLLOUT, ROWS, 2, level)
    assert metrics["tis"].tolist() == ratio.tolist() and metrics["tis_abs"].tolist() == pytest.approx([abs(r - 1) for r in ratio.tolist()])


def test_a_whole_sequence_is_masked_or_none_of_it():
    found, _ = correction(TRAIN, ROLLOUT, ROWS, 2, low=0.5, high=2.0, level="geometric", mode="mask")
    assert found.tolist() == pytest.approx([0.0, 0.0, math.exp(-0.5)])


def test_the_divergence_of_engine_and_trainer_by_hand():
    metrics = mismatch_metrics(tensor(-1.0), tensor(-0.5))
    assert metrics["mismatch_kl"].tolist() == pytest.approx([0.5])
    assert metrics["mismatch_k3_kl"].tolist() == pytest.approx([math.exp(-0.5) + 0.5 - 1])


def test_the_divergence_is_unbiased_over_what_the_engine_samples():
    torch.manual_seed(0)
    engine, trainer = torch.softmax(torch.randn(6).double(), 0), torch.softmax(torch.randn(6).double(), 0)
    exact = (engine * (engine / trainer).log()).sum().item()
    for values in mismatch_metrics(trainer.log(), engine.log()).values():
        assert (engine * values).sum().item() == pytest.approx(exact)


def test_weights_carry_no_gradient_and_an_outlier_does_not_overflow():
    log_probs = torch.tensor([0.0, -1.0], requires_grad=True)
    for level in ("token", "sequence", "geometric"):
        found, metrics = correction(
            log_probs, torch.tensor([-500.0, -1.0]), torch.tensor([0, 0]), 1, low=0, high=2, level=level, mode="truncate"
        )
        assert not found.requires_grad and not any(values.requires_grad for values in metrics.values())
        assert all(bool(torch.isfinite(values).all()) for values in metrics.values())


@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_a_log_prob_that_is_no_number_is_not_taken_for_one_out_of_bounds(mode):
    found, _ = correction(tensor(-1.0), tensor(math.nan), torch.tensor([0]), 1, low=0.5, high=2, level="token", mode=mode)
    assert math.isnan(found.item())


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
