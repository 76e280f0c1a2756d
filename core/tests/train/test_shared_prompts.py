"""Rows that share a prompt as one sequence: the same log-probs and gradients as rows of their own, and which rows do so."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from vime.config.run_config import RunConfig
from vime.train.microbatch import Row, collate, plan_sequences
from vime.train.policy_model import PolicyModel
from vime.train.shared_prompts import attention_pair_cost, sequence_length, share_prompts

NUM_GPUS = 0

VOCAB = 32
SIZE = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
WIDE = SIZE | {"intermediate_size": 48, "num_key_value_heads": 1, "sliding_window": None}
SHARING = {
    "qwen3": Qwen3Config(**WIDE, head_dim=16),
    "qwen2, with biases": Qwen2Config(**WIDE),
    "llama": LlamaConfig(**WIDE),
    "mistral without a window": MistralConfig(**WIDE),
    "gpt2, learned positions": GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=2, n_positions=64),
}
SEPARATE = {
    "a window": MistralConfig(**(WIDE | {"sliding_window": 8})),
    "layers with a window": Gemma2Config(**(WIDE | {"sliding_window": 8}), head_dim=16),
    "alibi": FalconConfig(**SIZE, alibi=True),
}


def load(config, attention: str = "sdpa"):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention)


def row(prompt: list[int], response: list[int], index: int = 0, mask: list[int] | None = None) -> Row:
    positions = [len(prompt) + offset for offset, flag in enumerate(mask or [1] * len(response)) if flag]
    return Row(prompt + response, positions, index, True, torch.ones(len(positions)))


PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5], [7] * 6]
ROWS = [
    row(PROMPTS[0], [10, 11, 12, 13]),
    row(PROMPTS[0], [14]),
    row(PROMPTS[0], [10, 15, 16, 17, 18, 19], mask=[1, 0, 0, 1, 1, 0]),
    row(PROMPTS[1], [20, 21]),
    row(PROMPTS[2], [22, 23, 24]),
    row(PROMPTS[2], [25, 26, 27, 28, 29]),
]
SIZES = [3, 1, 2]


@pytest.mark.parametrize("config", SHARING.values(), ids=SHARING)
def test_log_probs_and_gradients_are_those_of_separate_rows(config):
    found = []
    for sizes in (None, SIZES):
        policy = PolicyModel(load(config), 0.8).eval()
        assert policy.pair_cost is not None
        micro = collate(ROWS, [1.0] * len(ROWS), torch.device("cpu"), sizes=sizes)
        assert (micro.attention_mask_B_1_T_T is None) == (sizes is None)
        log_probs_K, entropy_K = policy(micro.input_ids_B_T, micro.select_K, micro.targets_K, entropy_grad=True, **micro.layout)
        ((log_probs_K + 0.1 * entropy_K) * torch.linspace(-1, 1, len(log_probs_K))).sum().backward()
        found.append((log_probs_K.detach(), [parameter.grad for parameter in policy.parameters()], micro))
    (separate, expected, _), (shared, gradients, micro) = found
    torch.testing.assert_close(shared, separate, atol=1e-5, rtol=1e-5)
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, atol=1e-5, rtol=1e-4)
    assert micro.input_ids_B_T.shape == (3, 8 + 3 + 0 + 4), "the longest sequence: its prompt once, and of each row what goes through"
    assert [len(part) for part in micro.split(micro.targets_K)] == [4, 1, 3, 2, 3, 5]


def test_the_mask_is_kept_once_for_all_layers():
    policy = PolicyModel(load(SHARING["llama"]), 0.8)
    micro = collate(ROWS, [1.0] * len(ROWS), torch.device("cpu"), sizes=SIZES)
    masks: set[int] = set()

    def keep(tensor):
        if tensor.shape[-2:] == (15, 15):
            masks.add(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = policy(micro.input_ids_B_T, micro.select_K, micro.targets_K, **micro.layout)
    assert len(masks) == 1, outputs


@pytest.mark.parametrize("config", SEPARATE.values(), ids=SEPARATE)
def test_models_whose_attention_is_not_to_all_before_do_not_share(config):
    assert attention_pair_cost(load(config)) is None


def test_attention_that_takes_no_mask_of_ours_does_not_share():
    assert attention_pair_cost(load(SHARING["llama"], "eager")) is None


PROMPT = st.sampled_from(PROMPTS)
ANY_ROWS = st.lists(st.builds(row, PROMPT, st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9)), min_size=1, max_size=12)


@given(rows=ANY_ROWS, pair_cost=st.sampled_from([0.0, 1e-3, 0.1, 10.0]), max_tokens=st.integers(1, 60), max_rows=st.integers(1, 12))
def test_each_row_is_in_one_sequence_with_rows_of_its_prompt(rows, pair_cost, max_tokens, max_rows):
    sequences = share_prompts(rows, pair_cost, max_tokens, max_rows)
    assert sorted(position for sequence in sequences for position in sequence) == list(range(len(rows)))
    for sequence in sequences:
        members = [rows[position] for position in sequence]
        assert len({tuple(member.tokens[: member.positions[0]]) for member in members}) == 1
        assert len(members) == 1 or (sequence_length(members) <= max_tokens and len(members) <= max_rows)


def test_rows_share_where_it_pays():
    short = [row([1] * 20, [number] * 4) for number in range(8)]
    assert share_prompts(short, 1e-3, 8192, 99) == [list(range(8))]
    balanced = [row([1] * 20, [number] * 20) for number in range(8)]
    largest = [max(map(len, share_prompts(balanced, cost, 8192, 99))) for cost in (1e-6, 3e-3, 1.0)]
    assert largest[0] == 8 > largest[1] > largest[2] == 1, "the others' responses are masked, and cost attention all the same"
    long = [row([1] * 2, [number] * 40) for number in range(8)]
    assert share_prompts(long, 1e-3, 8192, 99) == [[number] for number in range(8)], "next to nothing is shared"


def test_a_shared_sequence_is_never_so_long_that_its_mask_fills_the_memory():
    rows = [row([1] * 6000, [number] * 500) for number in range(16)]
    parts = share_prompts(rows, 1e-5, 32768, 99)
    assert [len(part) for part in parts] == [4] * 4, "6000 + 4 * 500 tokens"


def test_the_flag_decides_and_packed_rows_do_not_share():
    rows = [row([1] * 20, [number] * 4) for number in range(8)]

    def sequences(**flags):
        return plan_sequences(rows, RunConfig(**flags), 1, 1e-3)[0][0]

    together, alone = [list(range(8))], [[number] for number in range(8)]
    assert sequences() == together
    assert sequences(share_prompts=True) == together
    assert sequences(share_prompts=False) == alone
    assert sequences(pack_sequences=True) == alone
    assert plan_sequences(rows, RunConfig(), 1, None)[0][0] == alone


def test_ranks_have_about_equally_much_to_do():
    rows = [row([prompt] * 20, [number] * 4) for prompt in range(2) for number in range(8)]
    plans = plan_sequences(rows, RunConfig(), 2, 1e-3)
    sizes = [[len(sequence) for micro in plan for sequence in micro] for plan in plans]
    assert sizes == [[2, 2, 2, 2], [2, 2, 2, 2]]
    assert sorted(position for plan in plans for micro in plan for sequence in micro for position in sequence) == list(range(16))


@pytest.mark.parametrize("options", [{}, {"num_steps_per_rollout": 2}, {"use_kl_loss": True, "kl_loss_coef": 0.1}], ids=str)
def test_training_is_the_same_with_shared_prompts(make_trainer, make_config, make_groups, options):
    groups = make_groups(3, 4)
    for group in groups:
        for sample in group:
            response = sample.tokens[-sample.response_length :]
            sample.tokens = [*range(9), group[0].tokens[0], *response]
    from vime.train.batch import build_train_batch

    found = []
    for share in (False, True):
        config = make_config(share_prompts=share, **options)
        trainer = make_trainer(config)
        metrics = trainer.train(build_train_batch(config, None, groups))
        found.append((metrics, dict(trainer.named_weights())))
    (metrics, weights), (of_shared, shared) = found
    assert of_shared.keys() == metrics.keys()
    for name in ("loss", "grad_norm", "entropy_loss", "train_rollout_logprob_abs_diff"):
        assert of_shared[name] == pytest.approx(metrics[name], rel=1e-4, abs=1e-6)
    for name, weight in weights.items():
        torch.testing.assert_close(shared[name], weight, atol=2e-4, rtol=0)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
