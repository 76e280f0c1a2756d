"""What every hook made of a sample is with the sample, in order, and in the sample files."""

from __future__ import annotations

import copy

import pytest

from vime.api import DynamicFilterOutput, Sample
from vime.sample import VERDICTS, note_verdict
from vime.track.samples import write_samples
from vime.train.batch import build_train_batch

NUM_GPUS = 0


def said(sample):
    return [(each["hook"], each["plugin"], each["verdict"]) for each in getattr(sample, VERDICTS, [])]


async def generates(args, sample, sampling_params, engine):
    sample.tokens = [1, 2]
    generation = await engine.generate(sample.tokens, sampling_params)
    sample.append_response_tokens(args, tokens=generation.token_ids, log_probs=generation.log_probs, text=generation.text)
    sample.status = Sample.Status.COMPLETED
    return sample


def replaces_odd(args, sample):
    return copy.copy(sample) if sample.index % 2 else None


def seven_eighths(args, sample):
    return sample.index / 8


def refuses_group_1(args, samples):
    return DynamicFilterOutput(keep=samples[0].group_index != 1, reason="number one")


def removes_odd(args, samples):
    for group in samples:
        for sample in group:
            sample.remove_sample = bool(sample.index % 2)


def halves(args, samples):
    return [sample.reward for sample in samples], [sample.reward / 2 for sample in samples]


def test_every_hook_is_there_in_the_order_of_the_calls(setup_run, tmp_path):
    run = setup_run(
        custom_generate=generates,
        rollout_sample_hook=replaces_odd,
        reward=seven_eighths,
        shape_reward=lambda sample: 0.25 if sample.index else None,
        dynamic_sampling_filter=[lambda samples: True, refuses_group_1],
        rollout_sample_filter=removes_odd,
        post_process_rewards=halves,
    )
    rollout = run.train()
    build_train_batch(run.config, run.plugins, rollout.groups)
    kept = {sample.index: sample for group in rollout.groups for sample in group}
    assert said(kept[0]) == [
        ("custom_generate", "custom_generate-0", "generated"),
        ("rollout_sample_hook", "rollout_sample_hook-0", "seen"),
        ("custom_rm", "custom_rm-0", "0"),
        ("dynamic_sampling_filter", "dynamic_sampling_filter-0", "keep"),
        ("dynamic_sampling_filter", "dynamic_sampling_filter-1", "keep"),
        ("rollout_sample_filter", "rollout_sample_filter-0", "kept"),
        ("post_process_rewards", "post_process_rewards-0", "0"),
    ]
    assert said(kept[1])[1:4] == [
        ("rollout_sample_hook", "rollout_sample_hook-0", "replaced"),
        ("custom_rm", "custom_rm-0", "0.125"),
        ("shape_reward", "shape_reward-0", "+0.25"),
    ]
    assert said(kept[1])[-2:] == [
        ("rollout_sample_filter", "rollout_sample_filter-0", "removed"),
        ("post_process_rewards", "post_process_rewards-0", "0.1875"),
    ]
    (dropped, reason) = rollout.dropped[0]
    assert reason == "number_one"
    assert said(dropped[0])[-2:] == [
        ("dynamic_sampling_filter", "dynamic_sampling_filter-0", "keep"),
        ("dynamic_sampling_filter", "dynamic_sampling_filter-1", "drop: number_one"),
    ]

    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(write_samples(tmp_path, 0, "train", rollout.groups, rollout.dropped)).to_pylist()
    assert {row["index"]: [tuple(each.values()) for each in row["verdicts"]] for row in rows if row["kept"]} == {
        index: said(sample) for index, sample in kept.items()
    }


def test_a_sample_that_no_hook_touched_has_none(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(write_samples(tmp_path, 0, "train", [[Sample()]])).to_pylist()
    assert rows[0]["verdicts"] == []


def test_a_reward_that_failed_says_how(setup_run):
    def sometimes(args, sample):
        if sample.index == 1:
            raise ZeroDivisionError
        return float("nan") if sample.index == 2 else 1.0

    run = setup_run(reward=sometimes, on_reward_error="zero", rollout_batch_size=2)
    samples = {sample.index: sample for group in run.train().groups for sample in group}
    assert said(samples[0]) == [("custom_rm", "custom_rm-0", "1")]
    assert said(samples[1]) == [("custom_rm", "custom_rm-0", "failed: ZeroDivisionError")]
    assert said(samples[2]) == [("custom_rm", "custom_rm-0", "failed: bad_value")]


def test_each_part_of_a_sum_and_the_values_of_a_dict(setup_run):
    run = setup_run(reward=[lambda sample: 1.0, lambda sample: 2], rm_type="custom_rm-0+custom_rm-1")
    sample = run.train().groups[0][0]
    assert sorted(said(sample)) == [("custom_rm", "custom_rm-0", "1"), ("custom_rm", "custom_rm-1", "2")]
    run = setup_run(reward=lambda sample: {"acc": 1.0, "note": 2}, reward_key="acc")
    assert said(run.train().groups[0][0]) == [("custom_rm", "custom_rm-0", '{"acc": 1.0, "note": 2}')]


def test_groups_out_of_the_buffer_say_who_chose_them(setup_run):
    run = setup_run(buffer_filter=lambda buffer, num_samples: buffer[:num_samples], over_sampling_batch_size=4)
    run.train()
    (again, *_) = run.train(1).groups
    assert ("buffer_filter", "buffer_filter-0", "chosen") in said(again[0])


def test_verdicts_travel_with_the_sample_until_it_is_generated_anew():
    sample = Sample()
    note_verdict([sample], "custom_rm", "math", "1")
    again = Sample.from_dict(sample.to_dict())
    assert said(again) == [("custom_rm", "math", "1")]
    note_verdict([again], "shape_reward", "len", "+1")
    assert len(said(sample)) == 1
    again.reset_for_generation()
    assert said(again) == []


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
