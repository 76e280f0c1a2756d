"""Log-probs of samples' trained tokens: as a plain forward pass has them, in any micro-batches, without a trace in training."""

import math

import pytest

from vime.errors import TrainerError
from vime.rollout.held_out import loss_metrics
from vime.sample import Sample, Status

NUM_GPUS = 0

torch = pytest.importorskip("torch")


@pytest.fixture
def samples(make_groups):
    """Samples of several lengths and masks, one of them removed, one without a prompt, one with nothing trained."""
    samples = [sample for group in make_groups() for sample in group]
    samples[1].loss_mask = [0] + [1] * (samples[1].response_length - 1)
    samples[2].loss_mask = [0] * samples[2].response_length
    samples[3].remove_sample = True
    samples.append(Sample(index=99, tokens=[3, 4, 5], response_length=3, loss_mask=[1, 1, 1], reward=0.0, status=Status.COMPLETED))
    return samples


def one_by_one(model_path, samples):
    """The log-probs by a plain float64 forward pass of each sequence."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    result = []
    for sample in samples:
        with torch.no_grad():
            log_probs = model(torch.tensor([sample.tokens])).logits[0].log_softmax(-1)
        start = len(sample.tokens) - sample.response_length
        mask = [0] * start + (sample.loss_mask or [1] * sample.response_length)
        trained = [place for place, flag in enumerate(mask) if flag and place and not sample.remove_sample]
        result.append([float(log_probs[place - 1, sample.tokens[place]]) for place in trained])
    return result


def assert_close(found, expected):
    assert [len(row) for row in found] == [len(row) for row in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=2e-5)


@pytest.mark.parametrize("limits", [{}, {"max_tokens_per_gpu": 8}, {"max_tokens_per_gpu": 40}, {"rollout_temperature": 0.5}])
def test_log_probs_are_those_of_a_plain_forward_pass(make_config, make_trainer, model_path, samples, limits):
    from vime.train.scoring import ModelScorer

    config, expected = make_config(**limits), one_by_one(model_path, samples)
    assert sum(map(len, expected)) > 40 and expected[2] == expected[3] == [] and len(expected[-1]) == 2
    assert_close(make_trainer(config).sample_log_probs(samples), expected)
    assert_close(ModelScorer(config, model_path).sample_log_probs(samples), expected)


def test_the_loss_of_a_dataset_is_one_number_for_any_split_and_order(make_config, model_path, samples):
    from vime.train.scoring import ModelScorer

    def loss(rows, **limits):
        return loss_metrics("held", rows, ModelScorer(make_config(**limits), model_path).sample_log_probs(rows))["held/loss"]

    whole = loss(samples)
    assert math.isfinite(whole)
    for limit in (1, 16, 64):
        assert loss(samples, max_tokens_per_gpu=limit) == pytest.approx(whole, abs=1e-6)
    assert loss(samples[::-1]) == pytest.approx(whole, abs=1e-6)


def test_a_supervised_step_reports_the_loss_that_an_evaluation_has(make_config, make_trainer, samples):
    from vime.train.batch import build_train_batch

    fields = {"rollout_batch_size": 12, "n_samples_per_prompt": 1, "rollout_temperature": 0.5}
    config = make_config(loss_type="sft_loss", loss_aggregation="token", **fields)
    trainer = make_trainer(config)
    expected = loss_metrics("held", samples, trainer.sample_log_probs(samples))["held/loss"]
    metrics = trainer.train(build_train_batch(config, None, [[sample] for sample in samples[:-1]]))
    without_last = loss_metrics("held", samples[:-1], make_trainer(config).sample_log_probs(samples[:-1]))["held/loss"]
    assert metrics["loss"] == pytest.approx(without_last, abs=1e-5) and expected != pytest.approx(without_last, abs=1e-5)


def test_scoring_leaves_no_trace_in_training(make_config, make_trainer, make_groups, samples):
    from vime.train.batch import build_train_batch

    def weights_after(score):
        config = make_config()
        trainer = make_trainer(config)
        for seed in range(2):
            if score:
                trainer.sample_log_probs(samples)
                assert all(parameter.grad is None or not parameter.grad.any() for parameter in trainer.model.parameters())
            trainer.train(build_train_batch(config, None, make_groups(seed=seed)))
        return {name: weight.clone() for name, weight in trainer.named_weights()}

    plain, scored = weights_after(False), weights_after(True)
    assert all(torch.equal(plain[name], scored[name]) for name in plain)


def test_a_token_that_the_model_does_not_have_names_its_sample(make_config, model_path, samples):
    from vime.train.scoring import ModelScorer

    samples[5].tokens[-1] = 32
    with pytest.raises(TrainerError, match=f"sample {samples[5].index} holds token 32, and the model has 32 tokens"):
        ModelScorer(make_config(), model_path).sample_log_probs(samples)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
