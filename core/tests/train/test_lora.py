"""Adapters: only they are trained, and everyone outside the trainer sees the merged model."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from vime.errors import CheckpointError, ConfigError
from vime.train.batch import build_train_batch
from vime.train.lora import AdaptersOff, merged
from vime.train.reference import Reference, load_reference

NUM_GPUS = 0

pytestmark = [pytest.mark.filterwarnings("ignore:.*reduce_scatter_tensor:FutureWarning")]

STAGES = [(stage, dtype) for dtype in ("float32", "bfloat16") for stage in (0, 1, 2, 3)]


def weights_of(trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.float().clone() for name, tensor in trainer.named_weights()}


def stored(folder) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {name: tensor.float() for name, tensor in load_file(Path(folder) / "model.safetensors").items()}


def test_merged_is_the_formula_by_hand():
    weight, a, b = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), torch.tensor([[1.0, -1.0]]), torch.tensor([[1.0], [0.0], [2.0]])
    expected = torch.tensor([[1.5, 1.5], [3.0, 4.0], [6.0, 5.0]])
    assert torch.equal(merged(weight, a, b, 0.5), expected)
    assert torch.equal(merged(weight.T.contiguous(), a, b, 0.5, is_transposed=True), expected.T)
    assert merged(weight.bfloat16(), a.bfloat16(), b.bfloat16(), 0.5).dtype is torch.bfloat16


@pytest.mark.parametrize("tied", [True, False])
def test_a_new_adapter_changes_nothing(make_trainer, make_config, make_model, tied):
    path = make_model(tied=tied)
    plain, adapted = make_trainer(make_config(), path), make_trainer(make_config(lora_rank=4), path)
    assert adapted.score([[1, 2, 3, 4]]) == plain.score([[1, 2, 3, 4]])
    ours, theirs = weights_of(adapted), weights_of(plain)
    assert list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)
    trained = {name for name, parameter in adapted.model.named_parameters() if parameter.requires_grad}
    assert trained and all(".lora_" in name for name in trained)
    assert len([name for name in trained if "lora_A" in name]) == 2 * 7  # the linear layers of two blocks, not the head


@pytest.mark.e2e
@pytest.mark.parametrize(("stage", "dtype"), STAGES)
def test_only_adapters_train_and_a_resume_is_exact(make_trainer, make_config, make_groups, model_path, tmp_path, stage, dtype):
    config = make_config(
        hf_checkpoint=model_path,
        zero_stage=stage,
        train_dtype=dtype,
        lora_rank=4,
        num_steps_per_rollout=2,
        lr=1e-2,
        gradient_checkpointing=stage % 2 == 1,
        optimizer_offload=stage == 2,
    )
    batches = [build_train_batch(config, None, make_groups(seed=seed)) for seed in range(3)]
    trainer = make_trainer(config)
    start = weights_of(trainer)
    trainer.train(batches[0])
    moved = weights_of(trainer)
    changed = {name for name in start if not torch.equal(moved[name], start[name])}
    assert changed == {name for name in start if name.endswith("proj.weight")}
    assert all(torch.equal(value, moved[name]) for _ in range(20) for name, value in weights_of(trainer).items())  # no sync drifts
    with torch.no_grad(), trainer.adapters.off():
        base = trainer.score([[1, 2, 3, 4]])
    assert base == make_trainer(make_config(zero_stage=stage, train_dtype=dtype)).score([[1, 2, 3, 4]])
    trainer.save(tmp_path / "checkpoint")
    assert_loadable(tmp_path / "checkpoint", model_path, trainer, 1e-4 if dtype == "float32" else 5e-2)
    expected = trainer.train(batches[1])
    resumed = make_trainer(config, tmp_path / "checkpoint")  # as a run does that goes on
    resumed.load(tmp_path / "checkpoint")
    assert resumed.train(batches[1]) == expected
    assert all(torch.equal(value, weights_of(trainer)[name]) for name, value in weights_of(resumed).items())


def assert_loadable(folder, base, trainer, tolerance) -> None:
    """The folder is a plain model, `adapter/` an adapter of the base; both answer as the trainer does."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    (expected,) = trainer.score([[1, 2, 3, 4, 5, 6]])
    ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), folder / "adapter")
    for model in (plain, adapted):
        log_probs = model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None]).squeeze(-1)
        assert (log_probs - torch.tensor(expected)).abs().max() < tolerance
    assert not any("lora" in name or "base_layer" in name for name in stored(folder))
    assert json.loads((folder / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == base


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_the_reference_is_the_base_and_switching_it_does_not_disturb_training(make_trainer, make_config, make_groups, model_path, stage):
    config = make_config(
        zero_stage=stage, lora_rank=4, lr=1e-2, num_steps_per_rollout=2, use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="k3"
    )
    batches = [build_train_batch(config, None, make_groups(seed=seed)) for seed in range(2)]
    torch.manual_seed(1)
    ours = make_trainer(config)
    assert isinstance(ours.reference, AdaptersOff)
    torch.manual_seed(1)
    other = make_trainer(config)
    other.reference = load_reference(config, model_path, other.model, other.dtype, other.device, print)  # a second copy
    assert isinstance(other.reference, Reference)
    results = [[trainer.train(batch) for batch in batches] for trainer in (ours, other)]
    assert results[0] == results[1]
    assert results[0][1]["kl_loss"] > 0


def test_a_reference_that_is_renewed_is_a_copy_which_takes_the_merged_weights(make_trainer, make_config, make_groups):
    config = make_config(lora_rank=4, lr=1e-2, use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="k3", ref_update_interval=1)
    trainer = make_trainer(config)
    trainer.train(build_train_batch(config, None, make_groups()))
    own = trainer.reference.model.model.state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in trainer.named_weights())


def test_an_offloaded_reference_without_a_copy_is_told(make_trainer, make_config):
    told = []
    values = {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "k3", "ref_offload": True}
    make_trainer(make_config(lora_rank=4, **values), warn=told.append)
    assert len(told) == 1 and told[0].startswith("--ref-offload does nothing with --lora-rank")


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({"lora_rank": 8}, "was written with lora_rank 4, this run has 8"),
        ({}, "was written with lora_rank 4, this run has 0"),
        ({"lora_rank": 4, "lora_alpha": 32}, "was written with lora_alpha 16, this run has 32"),
        ({"lora_rank": 4, "lora_target_modules": ["q_proj"]}, "was written with lora_target_modules"),
    ],
)
def test_a_resume_with_other_adapters_is_refused(make_trainer, make_config, tmp_path, now, message):
    make_trainer(make_config(lora_rank=4)).save(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        make_trainer(make_config(**now)).load(tmp_path)


def test_a_resume_on_another_base_is_refused_and_the_merged_model_is_a_plain_one(make_trainer, make_config, make_groups, tmp_path):
    config = make_config(lora_rank=4, lr=1e-2)
    trainer = make_trainer(config)
    trainer.train(build_train_batch(config, None, make_groups()))
    trainer.save(tmp_path)
    with pytest.raises(CheckpointError, match="adapters of another model"):
        make_trainer(config, tmp_path).load(tmp_path)
    plain = make_trainer(make_config(), tmp_path)
    assert plain.score([[1, 2, 3]])[0] == pytest.approx(trainer.score([[1, 2, 3]])[0], abs=1e-5)
    with pytest.raises(CheckpointError, match="this run has 0"):
        plain.load(tmp_path)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["q_proj", "attention"], "--lora-target-modules attention: no linear layer of qwen3 has this name"),
        (["lm_head"], "--lora-target-modules lm_head is the output head"),
        (["embed_tokens"], "--lora-target-modules embed_tokens: no linear layer"),
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_targets_that_are_not_there_are_refused(make_trainer, make_config, make_model, targets, message, tied):
    with pytest.raises(ConfigError, match=message) as caught:
        make_trainer(make_config(lora_rank=4, lora_target_modules=targets), make_model(tied=tied))
    if "no linear layer" in message:
        assert "there are down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj; all-linear" in str(caught.value.hint)


def test_some_targets_only(make_trainer, make_config):
    trainer = make_trainer(make_config(lora_rank=2, lora_target_modules=["q_proj", "v_proj"]))
    adapted = {name.split(".lora_")[0].rpartition(".")[2] for name, p in trainer.model.named_parameters() if p.requires_grad}
    assert adapted == {"q_proj", "v_proj"}


def test_experts_are_refused(make_trainer, make_config, tmp_path):
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    shape = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_experts": 4, "num_experts_per_tok": 2, "vocab_size": 32}
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **heads)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"experts of a mixture \(qwen3_moe has num_experts 4\)"):
        make_trainer(make_config(lora_rank=4), tmp_path)


def test_layers_that_keep_their_weights_transposed(make_trainer, make_config, make_groups, tmp_path):
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 32, "initializer_range": 0.2}
    GPT2LMHeadModel(GPT2Config(**shape)).save_pretrained(tmp_path / "base")
    config = make_config(lora_rank=4, lr=1e-2)
    trainer = make_trainer(config, tmp_path / "base")
    trainer.train(build_train_batch(config, None, make_groups()))
    trainer.save(tmp_path / "checkpoint")
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    logits = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint")(ids).logits[0, :-1]
    log_probs = logits.log_softmax(-1).gather(-1, ids[0, 1:, None]).squeeze(-1)
    assert trainer.score(ids.tolist())[0] == pytest.approx(log_probs.tolist(), abs=1e-5)


def test_the_optimizer_holds_adapters_only(make_trainer, make_config):
    trainer = make_trainer(make_config(lora_rank=2))
    counted = sum(parameter.numel() for group in trainer.engine.optimizer.param_groups for parameter in group["params"])
    linear = [module for module in trainer.model.modules() if isinstance(module, nn.Linear)]
    own = sum(p.numel() for name, p in trainer.model.named_parameters() if ".lora_" in name)
    assert counted == own < sum(module.weight.numel() for module in linear)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
