"""What holds without ZeRO holds in every stage and number format."""

import dataclasses
import math

import pytest
import torch

from vime.train.batch import build_train_batch

NUM_GPUS = 0

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore:.*reduce_scatter_tensor:FutureWarning")]

STAGES = [(stage, dtype) for dtype in ("float32", "bfloat16") for stage in (0, 1, 2, 3)]


def weights_of(trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.float().clone() for name, tensor in trainer.named_weights()}


def moments_of(trainer) -> list[torch.Tensor]:
    """The optimizer's state, step counts too, wherever DeepSpeed keeps it."""
    optimizer = getattr(trainer.engine.optimizer, "optimizer", trainer.engine.optimizer)
    found = [value.clone() for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    assert len(found) >= 2
    return found


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


class NoNumber(torch.autograd.Function):
    """A finite value whose gradient is not a number."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * math.nan


@pytest.mark.parametrize(("stage", "dtype"), STAGES)
def test_steps_skips_and_resumes(make_trainer, make_config, make_groups, tmp_path, stage, dtype):
    config = make_config(
        zero_stage=stage,
        train_dtype=dtype,
        num_steps_per_rollout=2,
        max_tokens_per_gpu=60,
        lr=1e-2,
        lr_warmup_iters=9,
        max_bad_steps=9,
        use_kl_loss=True,
        kl_loss_coef=0.1,
        kl_loss_type="k3",
        ref_update_interval=1,
    )
    good = [build_train_batch(config, None, make_groups(seed=seed)) for seed in range(3)]
    bad = build_train_batch(config, None, make_groups())
    bad.rewards = [math.nan] * len(bad)
    trainer = make_trainer(config)
    start = weights_of(trainer)
    trainer.train(good[0], verify=lambda: trainer.score([[1, 2, 3]]))
    moved, moments = weights_of(trainer), moments_of(trainer)
    assert any(not torch.equal(moved[name], start[name]) for name in start)
    objective = trainer.objective
    for batch in (bad, good[1]):
        assert trainer.train(batch)["skipped_steps"] == 2.0
        assert all(torch.equal(value, moved[name]) for name, value in weights_of(trainer).items())
        assert same(moments, moments_of(trainer))
        assert trainer.weight_version == 1 and trainer.applied_steps == 2

        def without_gradient(*inputs):
            result = objective(*inputs)
            return dataclasses.replace(result, loss=NoNumber.apply(result.loss))

        trainer.objective = without_gradient  # finite loss, no finite gradient
    trainer.objective = objective
    trainer.train(good[1])
    assert same(list(weights_of(trainer).values()), [tensor.float() for tensor in trainer.reference.model.model.parameters()])
    trainer.save(tmp_path / "checkpoint")
    expected = trainer.train(good[2])
    clean = make_trainer(config)  # the same without the skipped steps
    for batch in good[:2]:
        clean.train(batch)
    assert clean.train(good[2]) == expected
    resumed = make_trainer(config)
    resumed.load(tmp_path / "checkpoint")
    assert expected["kl_loss"] > 0
    assert resumed.train(good[2]) == expected
    assert all(torch.equal(value, weights_of(trainer)[name]) for name, value in weights_of(resumed).items())


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_stage_takes_the_same_step(make_trainer, make_config, make_groups, stage):
    plain, sharded = make_config(lr=1e-2, entropy_coef=0.01), make_config(lr=1e-2, entropy_coef=0.01, zero_stage=stage)
    batch = build_train_batch(plain, None, make_groups())
    first, second = make_trainer(plain), make_trainer(sharded)
    metrics, others = first.train(batch), second.train(batch)
    assert others == pytest.approx(metrics, rel=1e-5, abs=1e-7)
    theirs = weights_of(second)
    assert all(torch.allclose(value, theirs[name], atol=1e-6) for name, value in weights_of(first).items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_optimizer_on_the_host_takes_the_same_steps(make_trainer, make_config, make_groups, tmp_path, stage, dtype):
    values = {"lr": 1e-2, "zero_stage": stage, "train_dtype": dtype}
    batches = [build_train_batch(make_config(**values), None, make_groups(seed=seed)) for seed in range(3)]
    device, host = make_trainer(make_config(**values)), make_trainer(make_config(**values, optimizer_offload=True))
    for batch in batches[:2]:
        assert host.train(batch) == pytest.approx(device.train(batch), rel=1e-4, abs=1e-6)
    host.save(tmp_path / "checkpoint")
    expected = host.train(batches[2])
    resumed = make_trainer(make_config(**values, optimizer_offload=True))
    resumed.load(tmp_path / "checkpoint")
    assert resumed.train(batches[2]) == expected
    theirs = weights_of(resumed)
    assert all(torch.equal(value, theirs[name]) for name, value in weights_of(host).items())


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_rows_take_the_same_step_as_padded_ones(make_trainer, make_config, make_groups, stage, attention):
    values = {"lr": 1e-2, "entropy_coef": 0.01, "zero_stage": stage, "attn_implementation": attention, "num_steps_per_rollout": 2}
    padded, packed = make_config(**values), make_config(**values, pack_sequences=True, max_tokens_per_gpu=40)
    batch = build_train_batch(padded, None, make_groups())
    first, second = make_trainer(padded), make_trainer(packed)
    metrics, others = first.train(batch), second.train(batch)
    assert metrics.pop("padding_fraction") > 0 and others.pop("padding_fraction") == 0
    assert others == pytest.approx(metrics, rel=1e-5, abs=1e-7)
    theirs = weights_of(second)
    assert all(torch.allclose(value, theirs[name], atol=1e-4) for name, value in weights_of(first).items())


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
