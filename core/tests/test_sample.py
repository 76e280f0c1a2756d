"""Samples: response tokens stay aligned, and what generation wrote can be forgotten."""

from __future__ import annotations

import pytest

from vime.sample import SCORED, Sample, Status

NUM_GPUS = 0


def generated(**fields) -> Sample:
    sample = Sample(index=3, tokens=[1, 2])
    sample.append_response_tokens(tokens=[3, 4], log_probs=[-0.1, -0.2], meta_info={"weight_version": 1}, text="34")
    for name, value in fields.items():
        setattr(sample, name, value)
    return sample


def test_appended_tokens_keep_everything_aligned():
    sample = generated()
    sample.append_response_tokens(tokens=[5], trainable=False)
    sample.append_response_tokens(tokens=[6], log_probs=[-0.3], text="6")
    assert (sample.tokens, sample.response_length, sample.response) == ([1, 2, 3, 4, 5, 6], 4, "346")
    assert sample.loss_mask == [1, 1, 0, 1] and sample.rollout_log_probs == [-0.1, -0.2, 0.0, -0.3]


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ({"loss_mask": [1]}, "sample 3: loss_mask has 1 entries for a response of 2 tokens"),
        ({"rollout_log_probs": [-0.1]}, "sample 3: rollout_log_probs has 1 entries for a response of 2 tokens"),
        ({"rollout_log_probs": None}, "sample 3: 1 tokens with log-probs cannot follow 2 response tokens without"),
    ],
)
def test_tokens_cannot_follow_what_is_out_of_step(there, message):
    sample = generated(**there)
    before = sample.to_dict()
    with pytest.raises(ValueError, match=message):
        sample.append_response_tokens(tokens=[5], log_probs=[-0.3])
    assert sample.to_dict() == before


@pytest.mark.parametrize("options", [{}, {"log_probs": [-0.1, -0.2]}, {"log_probs": [-0.1], "trainable": False}])
def test_log_probs_belong_to_trainable_tokens(options):
    with pytest.raises(ValueError, match="sample 3: 1 "):
        generated().append_response_tokens(tokens=[5], **options)


def test_a_reset_forgets_what_generation_and_reward_wrote_and_keeps_the_metadata():
    sample = generated(
        reward=1.0, teacher_log_probs=[-1.0, -2.0], non_generation_time=2.5, remove_sample=True, status=Status.COMPLETED, metadata={"a": 1}
    )
    setattr(sample, SCORED, True)
    sample.reset_for_generation()
    assert sample.to_dict() == Sample(index=3, tokens=[1, 2], metadata={"a": 1}).to_dict()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
