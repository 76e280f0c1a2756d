"""The same batch through our loss and through that of TRL's GRPOTrainer: its own code, called on a stand-in for the trainer.

TRL is a development dependency; without it there is nothing to compare with. Its trainer needs a model and a data set
only to make the tensors of the batch, which are given here, so that only `_compute_loss` and the statements that compute
its importance weights run.
"""

import ast
import inspect
import math
import textwrap
import warnings
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from vime.train.objective import Objective

NUM_GPUS = 0

LONGEST = 9


@pytest.fixture(scope="module")
def grpo_trainer():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trl = pytest.importorskip("trl")
        return trl.GRPOTrainer


@pytest.fixture
def case(make_loss_case):
    """TRL has no siblings and averages over rows without tokens too: here every row is a rollout, and has some."""
    made = make_loss_case(3)
    made.batch.rollout_ids = list(range(len(made.batch)))
    return made


def padded(case, values):
    """One tensor of M numbers for each row -> (B, T): masked positions and padding hold 0."""
    result = torch.zeros(len(case.rows), LONGEST, dtype=torch.float64)
    for number, (row, row_values) in enumerate(zip(case.rows, values, strict=True)):
        start = len(row.tokens) - case.batch.response_lengths[row.index]
        result[number, [position - start for position in row.positions]] = row_values
    return result


def theirs(grpo_trainer, case, log_probs, entropies, **settings):
    """TRL's loss of the batch. `log_probs` and `entropies` have a tensor for each row, with gradient."""
    mask = padded(case, [torch.ones(len(row.positions)).double() for row in case.rows])
    options = {
        "loss_type": "grpo",
        "importance_sampling_level": "token",
        "beta": 0.0,
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "delta": None,
        "use_bias_correction_kl": False,
        "entropy_coef": 0.0,
        "vllm_importance_sampling_mode": None,
        "vllm_importance_sampling_clip_min": None,
        "vllm_importance_sampling_clip_max": None,
    } | settings
    corrects = options["vllm_importance_sampling_mode"] is not None
    trainer = SimpleNamespace(
        **options,
        args=SimpleNamespace(delta=options["delta"], use_bias_correction_kl=options["use_bias_correction_kl"], steps_per_generation=1),
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=True),
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *_, **__: (padded(case, log_probs), padded(case, entropies), None),
        current_gradient_accumulation_steps=1,
        max_completion_length=LONGEST,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=corrects,
        vllm_importance_sampling_correction=corrects,
        _entropy_bonus_enabled=options["entropy_coef"] != 0,
        use_adaptive_entropy=False,
    )
    inputs = {
        "prompt_ids": torch.zeros(len(case.rows), 1),
        "prompt_mask": torch.ones(len(case.rows), 1),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": torch.stack([row.advantages_M[0] for row in case.rows]),
        "old_per_token_logps": padded(case, [row.old_log_probs_M for row in case.rows]),
        "ref_per_token_logps": padded(case, [row.ref_log_probs_M for row in case.rows]),
        "num_items_in_batch": mask.sum(),
    }
    if corrects:
        names = {
            "self": trainer,
            "completion_mask": mask,
            "tool_mask": None,
            "old_per_token_logps": inputs["old_per_token_logps"],
            "sampling_per_token_logps": padded(case, [row.rollout_log_probs_M for row in case.rows]),
        }
        exec(importance_weight_statements(grpo_trainer), {"torch": torch, "math": math}, names)
        inputs["importance_sampling_ratio"] = names["vllm_importance_sampling_ratio"]
    return grpo_trainer._compute_loss(trainer, None, inputs)


def importance_weight_statements(grpo_trainer):
    """The block of TRL's rollout method that computes the importance weights: all that is needed of a method that generates."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(grpo_trainer._generate_and_score_completions)))
    blocks = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "per_token_logps_diff" in ast.unparse(node.body[1:2] or node.body)
    ]
    return compile(ast.Module(body=blocks[:1], type_ignores=[]), "<trl>", "exec")


def gradient(loss, case):
    return torch.cat(torch.autograd.grad(loss, case.logits, retain_graph=True))


DAPO = ({"loss_aggregation": "token"}, {"loss_type": "dapo"})
KL = ({"use_kl_loss": True, "kl_loss_coef": 0.3, "kl_loss_type": "k3"}, {"beta": 0.3})


def both(*pairs):
    """Our options and TRL's, put together."""
    ours, other = {}, {}
    for first, second in pairs:
        ours, other = ours | first, other | second
    return ours, other


PAIRS = {
    "grpo": ({}, {}),
    "bnpo": ({"loss_aggregation": "token"}, {"loss_type": "bnpo"}),
    "dapo": DAPO,
    "dr_grpo": ({"advantage_estimator": "dr_grpo", "rollout_max_response_len": LONGEST}, {"loss_type": "dr_grpo"}),
    "clip_higher": both(DAPO, ({"eps_clip": 0.1, "eps_clip_high": 0.35}, {"epsilon_low": 0.1, "epsilon_high": 0.35})),
    "dual_clip": ({"eps_clip_c": 1.4}, {"delta": 1.4}),
    "gspo": (
        {"advantage_estimator": "gspo", "eps_clip": 0.1, "eps_clip_high": 0.15},
        {"importance_sampling_level": "sequence", "epsilon_low": 0.1, "epsilon_high": 0.15},
    ),
    # TRL bounds the weight by epsilon_high itself, and not from below
    "cispo": (
        {"advantage_estimator": "cispo", "loss_aggregation": "token", "eps_clip": 1.0, "eps_clip_high": 0.3},
        {"loss_type": "cispo", "epsilon_high": 1.3},
    ),
    "kl": KL,
    "kl_token": both(DAPO, KL),
    "unbiased_kl": both(KL, ({"use_unbiased_kl": True}, {"use_bias_correction_kl": True})),
    "entropy": both(DAPO, ({"entropy_coef": 0.1}, {"entropy_coef": 0.1})),
    **{
        f"{mode}_{level}": both(
            KL,
            (
                {"use_tis": True, "tis_mode": mode, "tis_level": level, "tis_clip": 1.5, "tis_clip_low": 0.6},
                {
                    "vllm_importance_sampling_mode": f"{level}_{mode}",
                    "vllm_importance_sampling_clip_max": 1.5,
                    "vllm_importance_sampling_clip_min": 0.6,
                },
            ),
        )
        for mode in ("truncate", "mask")
        for level in ("token", "sequence")
    },
}


@pytest.mark.parametrize("name", PAIRS)
def test_loss_and_gradient_are_those_of_trl(grpo_trainer, make_config, case, name):
    ours, other = PAIRS[name]
    config = make_config(**ours)
    micro, log_probs_K, entropy_K = case.micro(
        range(len(case.rows)), case.weights(config.loss_aggregation, config.rollout_max_response_len)
    )
    mine = Objective(config)(micro, log_probs_K, entropy_K).loss
    trl = theirs(grpo_trainer, case, micro.split(log_probs_K), micro.split(entropy_K), **other)
    assert mine.item() == pytest.approx(trl.item(), abs=1e-9)
    torch.testing.assert_close(gradient(mine, case), gradient(trl, case), atol=1e-9, rtol=1e-7)


def test_the_comparison_notices_a_difference(grpo_trainer, make_config, case):
    micro, log_probs_K, entropy_K = case.micro(range(len(case.rows)), case.weights("sample"))
    mine = Objective(make_config(eps_clip_high=0.3))(micro, log_probs_K, entropy_K).loss
    trl = theirs(grpo_trainer, case, micro.split(log_probs_K), micro.split(entropy_K), epsilon_high=0.25)
    assert abs(mine.item() - trl.item()) > 1e-5


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
