"""The sync pushes all weights and notices any that did not arrive."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from vime.errors import EngineError
from vime.train.batch import build_train_batch
from vime.train.policy_model import PolicyModel
from vime.train.weights import PROBE_TOKENS, RECENT_TOKENS, WeightSync, random_probe

NUM_GPUS = 0


class ModelEngine:
    """An engine with weights of its own: a second copy of the model, scored row by row."""

    def __init__(self, path):
        self.model = AutoModelForCausalLM.from_pretrained(path)
        self.max_model_len = self.model.config.max_position_embeddings
        self.weight_version = 0
        self.updates = 0
        self.scored: list[int] = []

    def update_weights(self, named_tensors, version, *, keep_requests=False):
        state = dict(named_tensors)
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}
        self.weight_version, self.updates = version, self.updates + 1

    @torch.no_grad()
    def score(self, sequences):
        self.scored.append(sum(len(tokens) - 1 for tokens in sequences))
        policy, results = PolicyModel(self.model, 1.0), []
        for tokens in sequences:
            log_probs, _ = policy(torch.tensor([tokens[:-1]]), torch.arange(len(tokens) - 1), torch.tensor(tokens[1:]))
            results.append(log_probs.tolist())
        return results


@pytest.fixture
def synced(make_trainer, make_config, make_model):
    def make(*, tied=True, **values):
        path = make_model(tied=tied)
        config = make_config(**values)
        trainer = make_trainer(config, path)
        engine = ModelEngine(path)
        return trainer, engine, WeightSync(config, trainer, engine, lambda version: engine.update_weights(trainer.named_weights(), version))

    return make


def step(trainer, make_groups):
    trainer.train(build_train_batch(trainer.config, None, make_groups()))


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_engine_follows_the_trainer(synced, make_groups, is_tied):
    trainer, engine, sync = synced(tied=is_tied)
    step(trainer, make_groups)
    with pytest.raises(EngineError):
        sync.verify()
    sync.sync()
    numbers = sync.verify()
    assert numbers["mean"] < 1e-6 and numbers["tokens"] >= PROBE_TOKENS
    assert engine.weight_version == sync.synced_version == 1


def test_nothing_is_sent_where_nothing_has_changed(synced, make_groups):
    trainer, engine, sync = synced(advantage_estimator="ppo", num_critic_only_steps=1)
    sync.sync()
    for number, updates in ((0, 1), (1, 2)):  # the first rollout trains the critic only
        trainer.train(build_train_batch(trainer.config, None, make_groups(), rollout_id=number))
        sync.sync()
        assert (engine.updates, engine.weight_version, sync.synced_version) == (updates, number, number)
    engine.weight_version = -1  # an engine that says that it holds others gets them again
    sync.sync()
    assert engine.updates == 3


def test_checks_are_made_after_the_first_step_and_then_now_and_then(synced, make_groups):
    trainer, engine, sync = synced(check_weights_every=3)
    sync.sync()
    assert not engine.scored  # nothing has been trained, nothing can have been lost
    checks = []
    for _ in range(7):
        step(trainer, make_groups)
        sync.sync()
        checks.append(len(engine.scored))
    assert checks == [1, 1, 1, 2, 2, 2, 3]


def test_any_tensor_that_is_changed_shows(synced):
    _, engine, sync = synced(tied=False)
    for name, parameter in engine.model.named_parameters():
        original = parameter.detach().clone()
        with torch.no_grad():
            for change in (torch.zeros_like(original), original + 0.3 * torch.randn_like(original), original.roll(1, 0)):
                if torch.equal(change, original):
                    continue
                parameter.copy_(change)
                with pytest.raises(EngineError) as error:
                    sync.verify()
                parameter.copy_(original)
        assert "does not hold the trainer's weights (version 0)" in str(error.value), name
    sync.verify()


def test_a_stale_tied_head_shows(synced, make_groups):
    trainer, engine, sync = synced()
    step(trainer, make_groups)
    stale = torch.nn.Parameter(engine.model.lm_head.weight.detach().clone())
    engine.model.lm_head.weight = stale
    engine.update_weights(trainer.named_weights(), 1)
    engine.model.lm_head.weight = stale
    with pytest.raises(EngineError, match="in the mean and"):
        sync.verify()


def test_values_that_are_not_numbers_are_a_difference(synced):
    _, engine, sync = synced()
    with torch.no_grad():
        engine.model.model.norm.weight[0] = float("nan")
    with pytest.raises(EngineError, match=r"nan in the mean and nan at most, the tolerance is 0\.001; worst: token"):
        sync.verify()


def test_an_engine_that_leaves_tokens_out_is_named(synced):
    _, engine, sync = synced()
    engine.score = lambda sequences: [[0.0] for _ in sequences]
    with pytest.raises(EngineError, match="scored 1 tokens of probe 0, expected"):
        sync.verify()


@pytest.mark.parametrize("stale", [0, 1])
def test_of_several_engines_the_one_with_other_weights_is_named(synced, stale):
    _, engine, sync = synced()
    sync.sync()
    other = ModelEngine(engine.model.name_or_path)
    with torch.no_grad():
        next(other.model.parameters()).mul_(1.5)

    class Both:
        restarts = 0
        max_model_len, weight_version = engine.max_model_len, engine.weight_version

        def score_each(self, sequences):
            pair = [engine, engine]
            pair[stale] = other
            return {f"engine {number}": one.score(sequences) for number, one in enumerate(pair)}

    sync.engine = Both()
    with pytest.raises(EngineError, match=f"^engine {stale} does not hold the trainer's weights"):
        sync.verify()


@pytest.mark.parametrize(
    ("values", "tolerance"),
    [({}, 1e-3), ({"train_dtype": "bfloat16"}, 5e-2), ({"engine_dtype": "bfloat16"}, 5e-2), ({"check_weights_tolerance": 0.5}, 0.5)],
)
def test_the_tolerance_follows_the_coarser_side(synced, values, tolerance):
    trainer, *_ = synced(**values)
    assert trainer.sync_tolerance() == tolerance


def test_below_float32_only_enough_responses_count(synced):
    _, _, sync = synced(train_dtype="bfloat16")
    sync.set_probe([[1, 2, 3, 4]] * 200, [2] * 200)
    assert [first for _, first in sync._probe()] == [2] * len(sync._probe())
    assert sync.verify()["tokens"] >= PROBE_TOKENS
    sync.set_probe([[1, 2, 3, 4]] * 20, [2] * 20)
    assert {first for _, first in sync._probe()} == {1}


def test_recent_rollouts_join_the_probe(synced):
    _, engine, sync = synced()
    sync.verify()
    sync.set_probe([[1, 2, 3], [4]] + [[5] * 400] * 9)
    sync.verify()
    alone, together = engine.scored
    assert alone + 2 < together <= alone + RECENT_TOKENS + 128


@pytest.mark.parametrize(("vocab", "positions"), [(32, 128), (300, 16), (50_000, 4096), (8, 2)])
def test_the_random_probe_spreads_over_the_vocabulary(vocab, positions):
    probe = random_probe(vocab, positions)
    assert probe == random_probe(vocab, positions)
    assert sum(len(tokens) - 1 for tokens in probe) >= PROBE_TOKENS
    assert max(len(tokens) for tokens in probe) <= positions
    seen = {token for tokens in probe for token in tokens}
    assert len(seen) >= min(vocab, PROBE_TOKENS) and max(seen) < vocab


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
