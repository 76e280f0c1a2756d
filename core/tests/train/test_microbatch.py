"""Steps and micro-batches: nothing lost, nothing twice, little padding, the same number on every rank."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vime.config.run_config import RunConfig
from vime.train.batch import TrainBatch
from vime.train.microbatch import MIN_TOKENS, collate, packs_rows, plan_micro_batches, split_steps, trained_rows

NUM_GPUS = 0


def make_batch(rollout_ids, masks=None, versions=None) -> TrainBatch:
    count = len(rollout_ids)
    masks = masks or [[1, 1]] * count
    return TrainBatch(
        tokens=[[index, 10 + index, *range(20, 20 + len(mask))] for index, mask in enumerate(masks)],
        response_lengths=[len(mask) for mask in masks],
        loss_masks=masks,
        rewards=[float(index) for index in range(count)],
        raw_rewards=[0.0] * count,
        truncated=[0] * count,
        sample_indices=list(range(count)),
        rollout_ids=rollout_ids,
        rollout_log_probs=[[-0.1 * (index + 1)] * len(mask) for index, mask in enumerate(masks)],
        weight_versions=versions or [],
    )


lengths_of_rows = st.lists(st.integers(1, 60), min_size=1, max_size=80)


@given(lengths_of_rows, st.integers(1, 4), st.integers(1, 300))
def test_every_row_is_in_one_micro_batch(lengths, ranks, budget):
    plans = plan_micro_batches(lengths, max_tokens=budget, rows_each=None, ranks=ranks)
    assert sorted(position for chunks in plans for chunk in chunks for position in chunk) == list(range(len(lengths)))
    assert len({len(chunks) for chunks in plans}) == 1
    for chunk in (chunk for chunks in plans for chunk in chunks if chunk):
        assert len(chunk) == 1 or len(chunk) * max(lengths[position] for position in chunk) <= budget


def test_case_a11_five_rows_on_two_ranks_take_as_many_passes_on_both():
    plans = plan_micro_batches([5, 4, 3, 2, 1], max_tokens=None, rows_each=1, ranks=2)
    assert [len(chunks) for chunks in plans] == [3, 3]
    assert plans[1][-1] == []


def test_padding_is_small_for_spread_lengths():
    rng = random.Random(0)
    lengths = [min(600, 10 + int(rng.expovariate(1 / 120))) for _ in range(256)]
    (chunks,) = plan_micro_batches(lengths, max_tokens=8192, rows_each=None)
    padded = sum(len(chunk) * max(lengths[p] for p in chunk) for chunk in chunks)
    assert 1 - sum(lengths) / padded < 0.06
    assert sum(sum(lengths[p] for p in chunk) < MIN_TOKENS for chunk in chunks) <= 1


def test_rows_each_fixes_the_number_of_rows():
    (chunks,) = plan_micro_batches([9, 1, 5, 3, 7], max_tokens=None, rows_each=2)
    assert chunks == [[0, 4], [2, 3], [1]]


def test_steps_keep_siblings_together():
    batch = make_batch([0, 1, 1, 2, 3])
    assert split_steps(batch, 2, None) == [[0, 1, 2], [3, 4]]
    assert split_steps(batch, None, 4) == [[0], [1, 2], [3], [4]]
    assert split_steps(batch, None, None) == [[0, 1, 2, 3, 4]]


def test_rows_name_their_trained_tokens():
    batch = make_batch([0, 1, 2], masks=[[1, 0, 1, 0], [0, 0], [1]], versions=[[3], [3], [2, 3]])
    rows = trained_rows(batch, 3, torch.device("cpu"))
    assert [row.index for row in rows] == [0, 2]
    assert [row.positions for row in rows] == [[2, 4], [2]]
    assert [row.is_current for row in rows] == [True, False]
    assert rows[0].input_length == 4


def test_rows_of_unknown_version_count_as_current():
    assert all(row.is_current for row in trained_rows(make_batch([0]), 5, torch.device("cpu")))


def test_collate_points_at_the_token_before():
    rows = trained_rows(make_batch([0, 1], masks=[[1, 0, 1], [1]]), 0, torch.device("cpu"))
    micro = collate(rows, [0.5, 0.25], torch.device("cpu"))
    assert micro.input_ids_B_T.tolist() == [[0, 10, 20, 21], [1, 11, 0, 0]]
    assert micro.select_K.tolist() == [1, 3, 5]
    assert micro.targets_K.tolist() == [20, 22, 20]
    assert micro.row_K.tolist() == [0, 0, 1]
    assert micro.weights_K.tolist() == [0.5, 0.5, 0.25]
    assert [part.tolist() for part in micro.split(micro.targets_K)] == [[20, 22], [20]]


def test_packed_rows_lie_end_to_end():
    rows = trained_rows(make_batch([0, 1], masks=[[1, 0, 1], [1]]), 0, torch.device("cpu"))
    micro = collate(rows, [0.5, 0.25], torch.device("cpu"), packed=True)
    assert micro.input_ids_B_T.tolist() == [[0, 10, 20, 21, 1, 11]]
    assert micro.position_ids_B_T is not None and micro.position_ids_B_T.tolist() == [[0, 1, 2, 3, 0, 1]]
    assert micro.select_K.tolist() == [1, 3, 5]
    assert micro.targets_K.tolist() == [20, 22, 20]


def test_packed_rows_share_a_budget_of_their_own_tokens():
    assert plan_micro_batches([9, 1, 5, 3, 7], max_tokens=12, rows_each=None, packed=True) == [[[0], [4, 2], [3, 1]]]
    assert plan_micro_batches([9, 1, 5, 3, 7], max_tokens=None, rows_each=2, packed=True) == [[[0, 4], [2, 3], [1]]]


def test_a_flash_attention_packs_unless_told_otherwise():
    assert packs_rows(RunConfig(attn_implementation="flash_attention_2"))
    assert packs_rows(RunConfig(attn_implementation="kernels-community/flash-attn3"))
    assert not packs_rows(RunConfig(attn_implementation="flash_attention_2", pack_sequences=False))
    assert not packs_rows(RunConfig())
    assert packs_rows(RunConfig(pack_sequences=True))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
