"""Samples and groups that are made for tests are what a rollout would leave."""

from __future__ import annotations

import subprocess
import sys

import pytest

import vime.testing
from vime.api import Status, rollouts
from vime.config.run_config import RunConfig
from vime.rollout.guards import check_train_output, normalise_train_output
from vime.testing import fan_out_group, finished_group, finished_groups, finished_sample, make_group, make_sample, strategies
from vime.testing.checks.base import CheckFailed, fail
from vime.testing.fakes import FakeTokenizer

NUM_GPUS = 0


def assert_aligned(sample) -> None:
    assert sample.response_length <= len(sample.tokens)
    for values in (sample.loss_mask, sample.rollout_log_probs):
        assert values is None or len(values) == sample.response_length
    if sample.loss_mask is not None:
        assert all(kept or value == 0.0 for kept, value in zip(sample.loss_mask, sample.rollout_log_probs, strict=True))


def test_a_finished_sample_has_the_tokens_of_its_text() -> None:
    sample = finished_sample(3, r"so \boxed{4}", label="4", reward=1.0)
    tokenizer = FakeTokenizer()
    assert tokenizer.decode(sample.tokens, skip_special_tokens=True) == r"1+1=so \boxed{4}"
    assert (sample.index, sample.label, sample.reward, sample.status) == (3, "4", 1.0, Status.COMPLETED)
    assert sample.tokens[-1] == tokenizer.eos_token_id
    assert finished_sample(status=Status.TRUNCATED).tokens[-1] != tokenizer.eos_token_id
    assert_aligned(sample)


def test_fields_of_a_sample_can_be_given() -> None:
    sample = finished_sample(metadata={"a": 1}, loss_mask=[1, 0], custom_rm_path="pkg.fn")
    assert (sample.metadata, sample.loss_mask, sample.custom_rm_path) == ({"a": 1}, [1, 0], "pkg.fn")
    assert make_sample(prompt=[{"role": "user", "content": "hi"}]).tokens


def test_groups_have_consecutive_indices_and_share_nothing() -> None:
    first, second = finished_groups(2, [1.0, {"score": 0.0}], metadata={"seen": []})
    assert [(sample.group_index, sample.index) for sample in first + second] == [(0, 0), (0, 1), (1, 2), (1, 3)]
    first[0].metadata["seen"].append(1)
    assert first[1].metadata == second[0].metadata == {"seen": []}
    assert [sample.reward for sample in finished_group(2)] == [None, None]
    assert [sample.status for sample in make_group(2)] == [Status.PENDING] * 2


def test_siblings_share_their_rollout_and_reward() -> None:
    group = fan_out_group([1.0, 0.0], siblings=3)
    assert [len(siblings) for siblings in rollouts(group)] == [3, 3]
    assert [sample.reward for sample in group] == [1.0] * 3 + [0.0] * 3


def test_batches_are_what_the_core_accepts() -> None:
    kinds: set[type] = set()
    sizes: set[int] = set()

    def body(batch) -> None:
        for sample in (sample for group in batch for sample in group):
            assert_aligned(sample)
        kinds.add(type(batch[0][0].reward))
        sizes.add(len(batch))
        keyed = {"reward_key": "score"} if isinstance(batch[0][0].reward, dict) else {}
        config = RunConfig(rollout_batch_size=len(batch), n_samples_per_prompt=3, **keyed)
        check_train_output(config, "it", normalise_train_output("it", batch), fewer_allowed=False)

    strategies.for_all(strategies.batches(fan_out=True, masks=True), body)
    assert kinds == {float, dict} and len(sizes) > 1


def test_what_is_given_is_used() -> None:
    def body(group) -> None:
        assert [sample.reward for sample in group] == [0.5] * 3
        assert {(sample.prompt, sample.response, sample.label, sample.status) for sample in group} == {("p", "r", "l", Status.FAILED)}

    from hypothesis.strategies import just

    strategies.for_all(
        strategies.groups(n_samples=3, rewards=just(0.5), prompt="p", response="r", label="l", status=just(Status.FAILED)),
        body,
        max_examples=5,
    )


@pytest.mark.parametrize(
    "name", ["prompts", "labels", "responses", "hostile_responses", "rewards", "dict_rewards", "statuses", "samples", "chats"]
)
def test_examples_are_the_same_every_time_and_differ(name) -> None:
    def drawn() -> list[str]:
        found: list[str] = []
        strategies.for_all(getattr(strategies, name)(), lambda value: found.append(repr(value)), max_examples=10)
        return found

    first = drawn()
    assert first == drawn() and len(set(first)) > 1


def test_chats_end_with_the_user() -> None:
    strategies.for_all(strategies.chats(), lambda chat: [turn["role"] for turn in chat][-1] == "user" or fail(str(chat)))


def test_the_simplest_failing_example_is_raised() -> None:
    def body(group) -> None:
        if len(group) > 2:
            fail(f"{len(group)} samples")

    with pytest.raises(CheckFailed, match="3 samples"):
        strategies.for_all(strategies.groups(), body)


def test_every_public_name_is_there_and_none_loads_the_checks_before_it_is_used() -> None:
    assert all(getattr(vime.testing, name) is not None for name in vime.testing.__all__)
    assert set(vime.testing.__all__) <= set(dir(vime.testing))
    with pytest.raises(AttributeError, match="has no attribute 'chek'"):
        vime.testing.chek  # noqa: B018
    code = "import sys, vime.testing; vime.testing.FakeEngine; print([n for n in sys.modules if 'hypothesis' in n or '.checks' in n])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
