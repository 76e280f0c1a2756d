"""Every loss against a loop over tokens in float64: value and gradient, whatever the micro-batches."""

import math
import random

import pytest
import torch

from vime.train.objective import Objective

NUM_GPUS = 0

KL = {"use_kl_loss": True, "kl_loss_coef": 0.3}
CASES = {
    "ppo": {},
    "asymmetric_clip": {"eps_clip": 0.1, "eps_clip_high": 0.4},
    "dual_clip": {"eps_clip_c": 1.3},
    "gspo": {"advantage_estimator": "gspo", "eps_clip": 0.1, "eps_clip_high": 0.15},
    "cispo": {"advantage_estimator": "cispo", "eps_clip_high": 0.3},
    "entropy": {"entropy_coef": 0.2},
    **{
        f"tis_{mode}_{level}": {"use_tis": True, "tis_mode": mode, "tis_level": level, "tis_clip": 1.5, "tis_clip_low": 0.6}
        for mode in ("truncate", "mask")
        for level in ("token", "sequence", "geometric")
    },
    **{f"kl_{kind}": KL | {"kl_loss_type": kind} for kind in ("k1", "k2", "k3", "low_var_kl")},
    **{f"kl_{kind}_unbiased": KL | {"kl_loss_type": kind, "use_unbiased_kl": True} for kind in ("k1", "k3", "low_var_kl")},
    "all_terms": KL | {"kl_loss_type": "k3", "entropy_coef": 0.1, "use_tis": True, "tis_mode": "mask", "eps_clip_c": 1.4},
    "sft": {"loss_type": "sft_loss"},
}


def naive(config, case):
    """The loss of the whole step, token by token; numbers where the formula has a constant, tensors where it has a gradient."""
    batch = case.batch
    tokens_of = dict.fromkeys(batch.rollout_ids, 0)
    for rollout, mask in zip(batch.rollout_ids, batch.loss_masks, strict=True):
        tokens_of[rollout] += sum(mask)
    rollouts, tokens = sum(count > 0 for count in tokens_of.values()), sum(tokens_of.values())
    total = torch.zeros((), dtype=torch.float64)
    for row, logits, targets in zip(case.rows, case.logits, case.targets, strict=True):
        rollout = batch.rollout_ids[row.index]
        weight = {
            "sample": 1 / (rollouts * tokens_of[rollout]),
            "token": 1 / tokens,
            "constant": 1 / (rollouts * config.rollout_max_response_len),
        }[config.loss_aggregation]
        all_log_probs = [logits[k] - logits[k].exp().sum().log() for k in range(len(targets))]
        log_probs = [all_log_probs[k][target] for k, target in enumerate(targets)]
        if config.loss_type == "sft_loss":
            total = total + sum(-weight * log_prob for log_prob in log_probs)
            continue
        old = [p.item() for p in log_probs] if row.old_log_probs_M is None else row.old_log_probs_M.tolist()
        differences = [o - mu for o, mu in zip(old, row.rollout_log_probs_M.tolist(), strict=True)]
        sequence_ratio = torch.stack([p - o for p, o in zip(log_probs, old, strict=True)]).mean().exp()
        for k, log_prob in enumerate(log_probs):
            ratio, advantage = (log_prob - old[k]).exp(), row.advantages_M[k].item()
            loss = policy_loss(config, log_prob, sequence_ratio if config.advantage_estimator == "gspo" else ratio, advantage)
            if config.use_tis:
                loss = loss * tis_weight(config, differences, k)
            if config.entropy_coef:
                loss = loss + config.entropy_coef * (all_log_probs[k].exp() * all_log_probs[k]).sum()
            if config.use_kl_loss:
                loss = loss + config.kl_loss_coef * kl(config, log_prob, row.ref_log_probs_M[k].item(), ratio)
            total = total + weight * loss
    return total


def policy_loss(config, log_prob, ratio, advantage):
    low, high = 1 - config.eps_clip, 1 + config.eps_clip_high
    if config.advantage_estimator == "cispo":
        return -min(max(ratio.item(), low), high) * advantage * log_prob
    clipped = -advantage * min(max(ratio.item(), low), high)
    loss = -advantage * ratio
    if clipped > loss.item():
        loss = torch.tensor(clipped, dtype=torch.float64)
    if config.eps_clip_c is not None and advantage < 0 and loss.item() > -advantage * config.eps_clip_c:
        loss = torch.tensor(-advantage * config.eps_clip_c, dtype=torch.float64)
    return loss


def tis_weight(config, differences, k):
    product = math.prod(math.exp(value) for value in differences)
    ratio = {"token": math.exp(differences[k]), "sequence": product, "geometric": product ** (1 / len(differences))}[config.tis_level]
    if config.tis_mode == "mask":
        return ratio if config.tis_clip_low <= ratio <= config.tis_clip else 0.0
    return min(max(ratio, config.tis_clip_low), config.tis_clip)


def kl(config, log_prob, ref, ratio):
    d = ref - log_prob
    value = {"k1": -d, "k2": d * d / 2}.get(config.kl_loss_type, d.exp() - d - 1)
    return ratio * value if config.use_unbiased_kl else value


def gradients(loss, case):
    return torch.cat(
        [
            torch.zeros_like(leaf) if g is None else g
            for g, leaf in zip(torch.autograd.grad(loss, case.logits, allow_unused=True), case.logits, strict=True)
        ]
    )


def partition(count, rng):
    order = rng.sample(range(count), count)
    cuts = sorted(rng.sample(range(1, count), rng.randrange(count)))
    return [order[start:end] for start, end in zip([0, *cuts], [*cuts, count], strict=True)]


@pytest.mark.parametrize("aggregation", ["sample", "token", "constant"])
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_a_loop_in_any_split(make_config, make_loss_case, name, aggregation):
    config = make_config(loss_aggregation=aggregation, rollout_max_response_len=7, **CASES[name])
    objective = Objective(config)
    seed = ["sample", "token", "constant"].index(aggregation)
    case, rng = make_loss_case(seed), random.Random(name)
    if seed == 1:
        case.rows[2].old_log_probs_M = None  # a fresh row among recorded ones
    expected = naive(config, case)
    expected_gradient = gradients(expected, case)
    assert bool(expected_gradient.any())
    weights = case.weights(aggregation, 7)
    for plan in ([list(range(len(case.rows)))], partition(len(case.rows), rng)):
        losses, found = 0.0, torch.zeros_like(expected_gradient)
        for picked in plan:
            result = objective(*case.micro(picked, weights))
            losses, found = losses + result.sums["loss"].item(), found + gradients(result.loss, case)
        assert losses == pytest.approx(expected.item(), abs=1e-10)
        torch.testing.assert_close(found, expected_gradient, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("aggregation", ["sample", "token", "constant"])
def test_a_row_of_weight_zero_has_no_term_whatever_it_holds(make_config, make_loss_case, aggregation):
    """Ranks are kept in step by rows of weight 0: they may hold anything."""
    config = make_config(loss_aggregation=aggregation, entropy_coef=0.1, use_tis=True, **KL | {"kl_loss_type": "k3"})
    case, objective = make_loss_case(), Objective(config)
    weights = [0.0 if position == 1 else weight for position, weight in enumerate(case.weights(aggregation))]
    picked = list(range(len(case.rows)))
    clean = objective(*case.micro(picked, weights))
    case.rows[1].advantages_M.fill_(1e6)
    case.rows[1].rollout_log_probs_M.fill_(-1e3)
    case.rows[1].ref_log_probs_M.fill_(-1e3)
    dirty = objective(*case.micro(picked, weights))
    assert dirty.loss.item() == clean.loss.item()
    assert torch.equal(gradients(dirty.loss, case), gradients(clean.loss, case))
    assert {name: value.item() for name, value in dirty.means.items()} == {name: value.item() for name, value in clean.means.items()}


def test_masked_tokens_stay_in_the_denominator_and_the_reducer_sees_them_masked(make_config, make_loss_case):
    case = make_loss_case()
    weights, picked = case.weights("token"), list(range(len(case.rows)))
    config = make_config(use_tis=True, tis_mode="mask", tis_clip=1.2, tis_clip_low=0.9, loss_aggregation="token")
    result = Objective(config)(*case.micro(picked, weights))
    seen = []

    class Hook:
        label, hook = "plugin 'p'", "pg_loss_reducer"

        def run(self, **arguments):
            seen.extend(arguments["loss_masks"])
            return lambda per_token: (per_token * torch.cat(arguments["loss_masks"])).sum() * weights[0]

    class Plugins:
        def claimed(self, hook):
            return Hook() if hook == "pg_loss_reducer" else None

    reduced = Objective(config, Plugins())(*case.micro(picked, weights))
    assert reduced.loss.item() == pytest.approx(result.loss.item())
    kept = torch.cat(seen)
    assert 0 < kept.mean().item() < 1
    assert result.means["tis_maskfrac"].item() == pytest.approx(1 - kept.mean().item())


def test_the_gradient_of_each_kl_in_the_loss_is_what_its_docstring_says():
    """Over all tokens that the policy can sample: k1 none, k2 and the unbiased ones KL(p, ref), k3 KL(ref, p)."""
    from vime.train.losses import kl_divergence

    torch.manual_seed(0)
    logits, ref = torch.randn(6, dtype=torch.float64, requires_grad=True), torch.log_softmax(torch.randn(6, dtype=torch.float64), 0)
    log_probs = torch.log_softmax(logits, 0)
    sampled = log_probs.detach().exp()
    forward = torch.autograd.grad((log_probs.exp() * (log_probs - ref)).sum(), logits, retain_graph=True)[0]
    backward = torch.autograd.grad((ref.exp() * (ref - log_probs)).sum(), logits, retain_graph=True)[0]

    def gradient(kind, probabilities=sampled, old=None):
        ratio = None if old is None else log_probs - old
        return torch.autograd.grad((probabilities * kl_divergence(log_probs, ref, kind, ratio)).sum(), logits, retain_graph=True)[0]

    torch.testing.assert_close(gradient("k1"), torch.zeros(6, dtype=torch.float64))
    torch.testing.assert_close(gradient("k2"), forward)
    torch.testing.assert_close(gradient("k3"), backward)
    old = torch.log_softmax(torch.randn(6, dtype=torch.float64), 0)
    for kind in ("k1", "k3"):
        torch.testing.assert_close(gradient(kind, old.exp(), old), forward)
    with pytest.raises(ValueError, match="k2 times the ratio"):
        kl_divergence(log_probs, ref, "k2", log_probs)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
