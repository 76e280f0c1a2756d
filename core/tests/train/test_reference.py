"""The reference model: what it is compared with, where it is kept, when it changes, and that a resumed run has the same one."""

import pytest
import torch

from vime.errors import CheckpointError, ConfigError
from vime.train.batch import build_train_batch
from vime.train.policy_model import PolicyModel
from vime.train.reference import FILE, Reference

NUM_GPUS = 0

KL = {"use_kl_loss": True, "kl_loss_coef": 0.2, "kl_loss_type": "k3", "num_steps_per_rollout": 2, "lr": 1e-2}


class TinyModel(torch.nn.Module):
    """Enough of a causal LM to be wrapped and moved."""

    def __init__(self) -> None:
        super().__init__()
        self.config = type("Config", (), {"vocab_size": 4, "_attn_implementation": "eager", "get_text_config": lambda self: self})()
        self.head = torch.nn.Linear(2, 4)


def make_reference(device: str = "cpu", *, offload: bool = False, update_interval: int | None = None) -> Reference:
    return Reference(PolicyModel(TinyModel(), 1.0), torch.device(device), offload=offload, update_interval=update_interval)


def where(reference: Reference) -> set[str]:
    return {parameter.device.type for parameter in reference.model.parameters()}


def test_an_offloaded_model_is_on_the_device_only_while_it_scores(monkeypatch):
    """The device is torch's meta: a place other than the host that every machine has."""
    reference = make_reference("meta", offload=True)
    moved: list[str] = []
    monkeypatch.setattr(reference.model, "to", lambda target: moved.append(target.type))  # what is on meta does not come back
    assert where(reference) == {"cpu"}
    with pytest.raises(RuntimeError), reference.scoring():
        raise RuntimeError
    assert moved == ["meta", "cpu"]


def test_it_is_frozen_and_stays_where_it_is_without_offload():
    reference = make_reference()
    with reference.scoring() as model:
        assert where(reference) == {"cpu"} and not model.training
    assert not any(parameter.requires_grad for parameter in reference.model.parameters())


def test_it_takes_the_policy_every_so_many_rollouts_and_is_saved_then(tmp_path):
    (tmp_path / FILE).parent.mkdir()
    reference, updates = make_reference(update_interval=3), []
    weights = {"head.weight": torch.ones(4, 2), "head.bias": torch.zeros(4)}
    for rollout in range(7):
        reference.save(tmp_path)
        assert (tmp_path / FILE).exists() == bool(updates)
        reference.after_rollout(rollout, lambda rollout=rollout: updates.append(rollout) or weights.items())
    assert updates == [2, 5]
    other = make_reference()
    other.load(tmp_path)
    assert all(torch.equal(tensor, other.model.model.state_dict()[name]) for name, tensor in weights.items())
    assert other.was_updated  # and so is in the next checkpoint too


@pytest.mark.parametrize(
    ("weights", "message"),
    [({"head.scale": torch.ones(1)}, "head.scale of shape .* does not have it"), ({"head.bias": torch.ones(5)}, r"has \(4,\)")],
)
def test_weights_of_another_model_are_named(weights, message):
    with pytest.raises(CheckpointError, match=message):
        make_reference().update(weights.items())


def test_offload_on_the_cpu_says_that_it_does_nothing(make_trainer, make_config, make_groups):
    said: list[str] = []
    plain, offloaded = make_config(**KL), make_config(ref_offload=True, **KL)
    batch = build_train_batch(plain, None, make_groups())
    assert make_trainer(offloaded, warn=said.append).train(batch) == make_trainer(plain, warn=said.append).train(batch)
    assert said == ["--ref-offload does nothing on the CPU: the reference model is in the memory of the host anyway"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"vocab_size": 40}, "its vocab_size is 40, the policy's is 32"), ({"num_hidden_layers": 1}, "num_hidden_layers")],
)
def test_another_kind_of_model_is_refused(make_trainer, make_config, make_model, changes, message):
    with pytest.raises(ConfigError, match=message):
        make_trainer(make_config(ref_load=make_model(**changes), **KL))


def test_a_resumed_run_compares_with_what_the_run_began_with(make_trainer, make_config, make_groups, model_path, tmp_path):
    """The trainer is then built from the checkpoint, as the runtime does, and the reference must not be."""
    config = make_config(hf_checkpoint=model_path, **KL)
    first, second = (build_train_batch(config, None, make_groups(seed=seed)) for seed in range(2))
    trainer = make_trainer(config)
    trainer.train(first)
    trainer.save(tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint" / FILE).exists()
    expected = trainer.train(second)
    resumed = make_trainer(config, tmp_path / "checkpoint")
    resumed.load(tmp_path / "checkpoint")
    assert resumed.train(second) == expected
    assert expected["kl_loss"] > 1e-6


def test_an_updated_reference_is_in_the_checkpoint(make_trainer, make_config, make_groups, model_path, tmp_path):
    config = make_config(hf_checkpoint=model_path, ref_update_interval=2, **KL)
    batches = [build_train_batch(config, None, make_groups(seed=seed), rollout_id=seed) for seed in range(4)]
    trainer = make_trainer(config)
    kept = [trainer.train(batch)["kl_loss"] for batch in batches[:3]]
    trainer.save(tmp_path / "checkpoint")
    expected = trainer.train(batches[3])
    resumed = make_trainer(config, tmp_path / "checkpoint")
    resumed.load(tmp_path / "checkpoint")
    assert resumed.train(batches[3]) == expected
    assert kept[1] > kept[0] and kept[2] < kept[1]  # after rollout 1 the policy is compared with itself


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
