"""`hf:` names, with the datasets library and data that lies on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vime.data.dataset import PromptRow, load_dataset
from vime.errors import DataError

datasets = pytest.importorskip("datasets")

NUM_GPUS = 0

ROWS = [
    {
        "messages": [{"role": "user", "content": f"{number}+1?"}],
        "answer": str(number + 1),
        "extra": {"level": number},
        "tools": [{"name": "calc"}],
    }
    for number in range(20)
]
KEYS: dict[str, Any] = {"input_key": "messages", "label_key": "answer", "metadata_key": "extra"}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture(params=["parquet", "jsonl"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A data set with the splits train and test, as the library writes it."""
    path = tmp_path / "sums"
    path.mkdir()
    for split, rows in (("train", ROWS), ("test", ROWS[:3])):
        made = datasets.Dataset.from_list(rows)
        if request.param == "parquet":
            made.to_parquet(path / f"{split}.parquet")
        else:
            made.to_json(path / f"{split}.jsonl")
    return path


def test_a_data_set_by_name_split_and_slice(folder: Path) -> None:
    data = load_dataset(f"hf:{folder}", **KEYS)
    assert len(data) == 20
    assert data[7] == PromptRow([{"role": "user", "content": "7+1?"}], "8", {"level": 7, "tools": [{"name": "calc"}]})
    assert [row.label for row in data] == [str(number + 1) for number in range(20)]
    assert len(load_dataset(f"hf:{folder}:test", **KEYS)) == 3
    assert len(load_dataset(f"hf:{folder}:default:test", **KEYS)) == 3
    assert [row.label for row in load_dataset(f"hf:{folder}:train@[5:7]", **KEYS)] == ["6", "7"]
    assert len(load_dataset(f"hf:{folder}:train[:10%]", **KEYS)) == 2


def test_a_wrong_split_or_key_says_what_there_is(folder: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be loaded: Unknown split \"dev\""):
        load_dataset(f"hf:{folder}:dev", **KEYS)
    with pytest.raises(DataError, match=r"row 0: it has no key 'question'; the keys that are there: 'messages', 'answer', 'extra'"):
        load_dataset(f"hf:{folder}", input_key="question")
    with pytest.raises(DataError, match="hf:no/such cannot be loaded"):
        load_dataset("hf:no/such", **KEYS)
    with pytest.raises(DataError, match="does not name a data set"):
        load_dataset("hf:a:b:c:d", **KEYS)


def test_rows_are_judged_as_those_of_files(tmp_path: Path) -> None:
    path = tmp_path / "mixed"
    path.mkdir()
    (path / "train.jsonl").write_text("".join(json.dumps({"input": text}) + "\n" for text in ("a", "", "c")))
    with pytest.raises(DataError, match=r"row 1: 'input' is empty"):
        load_dataset(f"hf:{path}")
    data = load_dataset(f"hf:{path}", skip_bad_rows=True)
    assert [row.prompt for row in data] == ["a", "c"] and data.skipped_rows == 1


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
