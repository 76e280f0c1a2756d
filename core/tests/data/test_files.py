"""Which file a path means, and what is said about one that means none."""

from __future__ import annotations

from pathlib import Path

import pytest

from vime.config.run_config import RunConfig
from vime.data.dataset import check_prompt_data, load_dataset
from vime.data.files import open_rows, split_slice
from vime.errors import DataError, MissingExtraError

NUM_GPUS = 0


def _five(tmp_path: Path) -> Path:
    path = tmp_path / "five.jsonl"
    path.write_text("".join(f'{{"input": "p{i}"}}\n' for i in range(5)))
    return path


@pytest.mark.parametrize(
    ("ending", "prompts"),
    [
        ("", ["p0", "p1", "p2", "p3", "p4"]),
        ("@[1:3]", ["p1", "p2"]),
        ("@[3:]", ["p3", "p4"]),
        ("@[:2]", ["p0", "p1"]),
        ("@[:]", ["p0", "p1", "p2", "p3", "p4"]),
        ("@[3:200]", ["p3", "p4"]),
        ("@[-2:]", ["p3", "p4"]),
        ("@[:-3]", ["p0", "p1"]),
    ],
)
def test_a_slice_takes_the_rows_that_python_would(tmp_path, ending, prompts):
    assert [row.prompt for row in load_dataset(f"{_five(tmp_path)}{ending}")] == prompts


@pytest.mark.parametrize("ending", ["@[a:b]", "@[1]", "@[1:2:3]", "@[-:3]", "@[1:2"])
def test_an_ending_that_is_no_slice_is_refused(tmp_path, ending):
    with pytest.raises(DataError, match="ends in something that is not a slice"):
        load_dataset(f"{_five(tmp_path)}{ending}")


def test_a_slice_without_rows_names_how_many_there_are(tmp_path):
    with pytest.raises(DataError, match=r"@\[7:9\] selects no row: .*five.jsonl has 5 rows"):
        load_dataset(f"{_five(tmp_path)}@[7:9]")


def test_a_file_whose_own_name_looks_like_a_slice_is_that_file(tmp_path):
    path = tmp_path / "a.jsonl@[0:1]"
    path.write_text("x")
    assert split_slice(str(path)) == (str(path), slice(None))


def test_a_suffix_in_capitals(tmp_path):
    path = tmp_path / "rows.JSONL"
    path.write_text('{"input": "good"}\n')
    check_prompt_data(RunConfig(prompt_data=f"{path}@[0:1]"))
    with pytest.raises(DataError, match="ends in something that is not a slice"):
        check_prompt_data(RunConfig(prompt_data=f"{path}@[0:1"))


def test_rows_outside_the_slice_are_not_judged(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"input": "good"}\nbroken\n')
    assert [row.prompt for row in load_dataset(f"{path}@[:1]")] == ["good"]


def test_a_missing_file_is_named_with_the_nearest_of_its_folder(tmp_path):
    _five(tmp_path)
    with pytest.raises(DataError, match=r"fife.jsonl does not exist") as caught:
        load_dataset(str(tmp_path / "fife.jsonl"))
    assert "five.jsonl" in str(caught.value)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(DataError, match=r"there is no folder .*nowhere"):
        load_dataset(str(tmp_path / "nowhere" / "a.jsonl"))


def test_a_folder_is_not_a_file(tmp_path):
    _five(tmp_path)
    with pytest.raises(DataError, match="is a folder, not a data file") as caught:
        load_dataset(str(tmp_path))
    assert "five.jsonl" in str(caught.value)


@pytest.mark.parametrize("name", ["a.txt", "noending"])
def test_an_unknown_format_names_the_known_ones(tmp_path, name):
    (tmp_path / name).write_text("x")
    with pytest.raises(DataError, match="is not a data format") as caught:
        load_dataset(str(tmp_path / name))
    assert ".jsonl, .json, .parquet, .csv" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"), [("a.jsonl", ""), ("b.jsonl", "\n \n"), ("c.json", "[]"), ("d.csv", ""), ("e.csv", "input,label\n")]
)
def test_a_file_without_rows_is_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=f"{name} has no rows"):
        load_dataset(str(tmp_path / name))


def test_a_hub_data_set_without_the_library_names_the_pip_line():
    try:
        import datasets  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match="hf:gsm8k needs the datasets library") as caught:
            open_rows("hf:gsm8k", {"question"})
        assert caught.value.hint == "pip install datasets"
    else:
        pytest.skip("the datasets library is installed")


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
