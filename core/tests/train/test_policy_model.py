"""Log-probs of chosen tokens, against logits computed whole."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from vime.errors import ConfigError
from vime.train import policy_model
from vime.train.model_loading import check_model_folder, count_parameters, load_model
from vime.train.policy_model import PolicyModel
from vime.train.quiet import quiet_transformers

NUM_GPUS = 0

ROWS = [[1, 5, 9, 3, 7, 2], [4, 4, 8]]


def inputs():
    width = max(len(row) for row in ROWS)
    input_ids = torch.tensor([row + [0] * (width - len(row)) for row in ROWS])
    select = torch.tensor([0, 1, 2, 3, 4, width, width + 1])
    return input_ids, select, torch.tensor([5, 9, 3, 7, 2, 4, 8])


def reference(model: nn.Module, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """One row at a time, whole logits, no padding."""
    log_probs, entropies = [], []
    for row in ROWS:
        distribution = torch.log_softmax(model(torch.tensor([row])).logits[0].double() / temperature, dim=-1)
        log_probs += [distribution[position, token] for position, token in enumerate(row[1:])]
        entropies += [-(distribution[position].exp() * distribution[position]).sum() for position in range(len(row) - 1)]
    return torch.stack(log_probs), torch.stack(entropies)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.3])
def test_log_probs_entropy_and_gradients_equal_those_of_whole_logits(make_model, monkeypatch, temperature, is_chunked, entropy_coef):
    if is_chunked:
        monkeypatch.setattr(policy_model, "LOGITS_AT_ONCE", 1)
    path = make_model(tied=not is_chunked)
    cpu = torch.device("cpu")
    policy = PolicyModel(load_model(path, torch.float32, "auto", cpu), temperature, chunk_size=2)
    whole = load_model(path, torch.float32, "auto", cpu)
    weights = torch.linspace(-1, 1, 7)
    log_probs, entropy = policy(*inputs(), entropy_grad=entropy_coef != 0)
    expected, expected_entropy = reference(whole, temperature)
    torch.testing.assert_close(log_probs.double(), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy.double(), expected_entropy, atol=1e-5, rtol=0)
    ((log_probs + entropy_coef * entropy) * weights).sum().backward()
    ((expected + entropy_coef * expected_entropy) * weights).sum().backward()
    for (name, ours), theirs in zip(policy.model.named_parameters(), whole.parameters(), strict=True):
        assert ours.grad is not None, name
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4)


def test_the_entropy_has_no_gradient_unless_asked(model_path):
    policy = PolicyModel(load_model(model_path, torch.float32, "auto", torch.device("cpu")), 1.0)
    _, entropy = policy(*inputs())
    assert not entropy.requires_grad


def test_no_tensor_of_all_logits_exists(model_path, monkeypatch):
    monkeypatch.setattr(policy_model, "LOGITS_AT_ONCE", 1)
    policy = PolicyModel(load_model(model_path, torch.float32, "auto", torch.device("cpu")), 1.0, chunk_size=3)
    sizes: list[int] = []
    policy.model.get_submodule("lm_head").register_forward_hook(lambda module, args, output: sizes.append(len(output)))
    log_probs, _ = policy(*inputs())
    log_probs.sum().backward()
    assert max(sizes) == 3 and sum(sizes) == 14  # 7 tokens, made twice


def test_dropout_is_off_in_training(tmp_path):
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    with quiet_transformers():
        GPT2LMHeadModel(config).save_pretrained(tmp_path)
    policy = PolicyModel(load_model(str(tmp_path), torch.float32, "auto", torch.device("cpu")).train(), 1.0)
    assert torch.equal(policy(*inputs())[0], policy(*inputs())[0])


def test_parameters_are_counted_without_loading(model_path):
    assert count_parameters(model_path) == sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(model_path).parameters())


@pytest.mark.parametrize("make_path", [lambda folder: folder, lambda folder: folder / "nothing"])
def test_a_folder_that_is_not_a_model_is_refused(tmp_path, make_path):
    with pytest.raises(ConfigError, match=r"config\.json|does not exist"):
        check_model_folder(str(make_path(tmp_path)))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
