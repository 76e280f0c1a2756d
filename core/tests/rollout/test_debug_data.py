"""Rollouts in files: nothing of a sample is lost, wrong files are told apart, and what is loaded is checked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.config.load import load_config
from vime.config.run_config import RunConfig
from vime.errors import ConfigError, ContractError, DataError
from vime.rollout.debug_data import SavedRollouts, check_saved_rollouts, count_rollouts, load_rollout, rollout_path, save_rollout
from vime.sample import Sample, Status

pytest.importorskip("pyarrow")

NUM_GPUS = 0

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    length = draw(st.integers(0, 4))
    sample = Sample(
        group_index=draw(st.none() | st.integers(0, 9)),
        index=draw(st.none() | st.integers(0, 9)),
        rollout_id=draw(st.none() | st.integers(0, 9)),
        prompt=draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.just([{"role": "user", "content": "1+1"}])),
        tokens=draw(st.lists(st.integers(0, 2**31), min_size=length, max_size=8)),
        response=draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=8)),
        response_length=length,
        label=draw(JSON),
        reward=draw(st.none() | NUMBERS | st.dictionaries(st.text(max_size=3), NUMBERS)),
        loss_mask=draw(st.none() | st.lists(st.integers(0, 1), max_size=4)),
        rollout_log_probs=draw(st.none() | st.lists(NUMBERS, max_size=4)),
        weight_versions=draw(st.lists(st.integers(0, 9), max_size=2)),
        remove_sample=draw(st.booleans()),
        status=draw(st.sampled_from(Status)),
        metadata=draw(st.dictionaries(st.text(max_size=4), JSON, max_size=2)),
        session_id=draw(st.none() | st.just("s")),
    )
    for name, value in draw(st.dictionaries(st.sampled_from(["note", "turns"]), JSON)).items():
        setattr(sample, name, value)
    return sample


@given(groups=st.lists(st.lists(samples(), min_size=1, max_size=3), min_size=1, max_size=3))
def test_a_rollout_comes_back_as_it_was(groups: list[list[Sample]], tmp_path_factory: pytest.TempPathFactory) -> None:
    template = str(tmp_path_factory.mktemp("debug") / "{rollout_id}.parquet")
    save_rollout(template, 7, groups)
    again = load_rollout(template, 7)
    assert [[vars(sample) for sample in group] for group in again] == [[vars(sample) for sample in group] for group in groups]


def finished(index: int, **more: object) -> Sample:
    values = {"tokens": [1, 2, 3], "response": "x", "response_length": 2, "reward": 1.0, "status": Status.COMPLETED}
    return Sample(group_index=index // 2, index=index, **(values | more))


def test_pandas_style_columns_are_readable(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    path = save_rollout(f"{tmp_path}/{{rollout_id}}.parquet", 0, [[finished(0), finished(1, reward={"acc": 0.5})]])
    table = parquet.read_table(path).to_pydict()
    assert table["tokens"] == [[1, 2, 3], [1, 2, 3]]
    assert table["reward"] == ["1.0", '{"acc": 0.5}']
    assert table["status"] == ["completed", "completed"]
    assert table["group"] == [0, 0]


def test_what_cannot_be_saved_names_the_field(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the metadata of a sample cannot be saved"):
        save_rollout(f"{tmp_path}/{{rollout_id}}.parquet", 0, [[finished(0, metadata={"engine": object()})]])
    assert list(tmp_path.iterdir()) == []


def test_rollouts_are_counted_from_zero(tmp_path: Path) -> None:
    template = f"{tmp_path}/r{{rollout_id}}.parquet"
    with pytest.raises(DataError, match=r"there is no .*r0\.parquet"):
        check_saved_rollouts(config(template))
    for number in (0, 1, 3):
        save_rollout(template, number, [[finished(0)]])
    assert count_rollouts(template) == 2
    check_saved_rollouts(config(template))
    check_saved_rollouts(config(template, num_rollout=2))
    with pytest.raises(DataError, match=r"there is no .*r2\.parquet") as refused:
        check_saved_rollouts(config(template, num_rollout=3))
    assert "--num-rollout 2" in str(refused.value.hint)


def test_files_that_are_not_ours_are_told_apart(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    template = f"{tmp_path}/{{rollout_id}}.parquet"
    rollout_path(template, 0).write_text("not parquet")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        load_rollout(template, 0)
    parquet.write_table(pyarrow.table({"prompt": ["a"]}), rollout_path(template, 1))
    with pytest.raises(DataError, match=r"1\.parquet, row 0: it is not a sample of vime \(KeyError: 'group'\)"):
        load_rollout(template, 1)
    with pytest.raises(DataError, match=r"there is no .*2\.parquet for rollout 2"):
        load_rollout(template, 2)


def config(template: str, **more: object) -> RunConfig:
    return RunConfig(load_debug_rollout_data=template, rollout_batch_size=2, n_samples_per_prompt=2, **more)


def test_a_loaded_rollout_is_checked_as_a_fresh_one(tmp_path: Path) -> None:
    template = f"{tmp_path}/{{rollout_id}}.parquet"
    save_rollout(template, 0, [[finished(0), finished(1, remove_sample=True)], [finished(2), finished(3)]])
    save_rollout(template, 1, [[finished(0), finished(1)]])
    rollouts = SavedRollouts(config(template))
    rollout = asyncio.run(rollouts.train(0))
    assert [[sample.index for sample in group] for group in rollout.groups] == [[0, 1], [2, 3]]
    assert rollout.metrics["raw_reward"] == 1.0
    assert rollout.metrics["removed_samples"] == 1.0
    with pytest.raises(ContractError, match=r"1\.parquet: generate_rollout returned 1 groups, expected 2 \(rollout_batch_size\)"):
        asyncio.run(rollouts.train(1))


@pytest.mark.parametrize(
    ("path", "problem"),
    [("debug/all.parquet", "every rollout would have the same file"), ("debug/{rollout_id}.pt", "rollouts are parquet files")],
)
@pytest.mark.parametrize("field", ["save_debug_rollout_data", "load_debug_rollout_data"])
def test_a_path_that_cannot_hold_rollouts_is_refused(field: str, path: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        load_config({field: path, "plugin": ["math"]}, None, {})
    assert "debug/{rollout_id}.parquet" in str(refused.value.hint)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
