"""Files that no one meant to write: each is read as it should be, or refused with file and place."""

from __future__ import annotations

import gzip
import json
import math
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from vime.data.dataset import load_dataset
from vime.errors import DataError

NUM_GPUS = 0


def prompts(path: Path, **options: Any) -> list[Any]:
    return [row.prompt for row in load_dataset(str(path), **options)]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"input": "a"}\n\x00\x00\x00\x00\n', "line 2: it is not JSON"),
        (b'{"input": "a"}\n{"input": "\x00"}\n', "line 2: it is not JSON .Invalid control character"),
        (gzip.compress(b'{"input": "a"}\n', mtime=0), "line 1: it is not UTF-8"),
        ('{"input": "a"}\n'.encode("utf-16"), "line 1: it is not UTF-8"),
        (b'{"input": "a"} {"input": "b"}\n', "line 1: it is not JSON .Extra data"),
        (b"{'input': 'a'}\n", "line 1: it is not JSON"),
        (b'{"input": "a"}\r{"input": "b"}\r', "line 1: it is not JSON"),
        (b'{"input": 1e400}\n', "line 1: 'input' is a JSON number"),
        (b'{"input": "a", "metadata": "[1"}\n', "line 1: 'metadata' is a JSON string"),
        (b'{"input": "a", "tools": [[1]]}\n', "line 1: 'tools' is not a list of tool descriptions"),
        (b'{"input": [[{"role": "user", "content": "a"}]]}\n', "line 1: message 0 of 'input' is not an object"),
        (b'{"Input": "a"}\n', "line 1: it has no key 'input'; the keys that are there: 'Input'"),
        (b"{}\n", "line 1: it has no key 'input'; the keys that are there: none"),
    ],
)
def test_a_jsonl_file_that_is_none(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"rows.jsonl, {problem}"):
        load_dataset(str(path))


def test_odd_lines_that_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = ['{"input": "x", "input": "last one counts"}', f'{{"input": "n", "label": {2**63}}}', '{"input": "i", "label": -Infinity}']
    path.write_text("\n".join([*lines, json.dumps({"input": "long " * 200_000}), '\t{"input": "\\u2028 \u2028"} ']), encoding="utf-8")
    data = load_dataset(str(path), skip_bad_rows=True, label_key=None)
    assert [row.prompt[:15] for row in data] == ["last one counts", "n", "i", "long long long ", "\u2028 \u2028"]
    labels = load_dataset(f"{path}@[1:3]", label_key="label")
    assert [labels[0].label, labels[1].label] == [2**63, -math.inf]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[{"input": "a"},]', "line 1: it is not JSON .Expecting value"),
        ('[{"input": "a"}\n{"input": "b"}]', "line 2: it is not JSON .Expecting ',' delimiter"),
        ('[{"input": "a"}] x', "line 1: it is not JSON .Extra data"),
        ('[{"input": "a"}', "line 1: it is not JSON .Expecting ',' delimiter"),
        ('{"input": "a"} ', " holds a JSON object, not a list"),
        ("7", " holds a JSON number, not a list"),
        ("", "line 1: it is not JSON .Expecting value"),
        ('[{"input": "a"}, ["b"]]', "row 1: it is a JSON list, not an object"),
    ],
)
def test_a_json_file_that_is_none(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(DataError, match=f"rows.json,? ?{problem}"):
        load_dataset(str(path))


def test_a_json_file_with_all_that_may_be_in_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes('\ufeff\r\n [ {"input": "ü]},["} ,\n\n{"input": "b\\"" }\t]\n '.encode())
    data = load_dataset(str(path))
    assert [data[1].prompt, data[0].prompt] == ['b"', "ü]},["]
    assert len(pickle.dumps(data)) < 1000, "offsets, not rows"
    path.write_bytes(b'[{"input": "good"}, {"input": "\xff"}]')
    with pytest.raises(DataError, match="row 1: it is not JSON"):
        load_dataset(str(path))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'input,label\n"a","b"c"\n', "line 2: "),
        (b"input,label\na,b,c\n", "line 2: it has 3 values for 2 columns"),
        (b"input,label\n\xff,1\n", "line 2: it is not UTF-8"),
        (b"input\n" + b"x" * 200_000 + b"\n", "line 2: field larger than field limit"),
        (b"a\n1\n", "line 2: it has no key 'input'; the keys that are there: 'a'"),
        (b"input\n" + b'""\n', "line 2: 'input' is empty"),
    ],
)
def test_a_csv_file_that_is_none(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"rows.csv, {problem}"):
        load_dataset(str(path))


def test_parquet_columns_of_all_kinds(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    path = tmp_path / "rows.parquet"
    tools = [[{"name": "calc", "args": {"x": "int"}}], [{"name": "search", "args": None}]]
    rows = [
        {"input": [{"role": "user", "content": f"q{n}", "name": None}], "label": [1.5, None], "tools": tools[n], "metadata": '{"k": 1}'}
        for n in range(2)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    first, second = load_dataset(str(path), label_key="label")
    assert first.prompt == [{"role": "user", "content": "q0"}]
    assert first.label == [1.5, None] and first.metadata == {"k": 1, "tools": [{"name": "calc", "args": {"x": "int"}}]}
    assert second.metadata["tools"] == [{"name": "search"}]

    for column, kind in (({"input": [b"a"]}, "b'a'"), ({"input": [5]}, "JSON number"), ({"input": ["a", None]}, "JSON null")):
        parquet.write_table(pyarrow.table(column), path)
        with pytest.raises(DataError, match=rf"rows.parquet, row \d: .*{kind}"):
            load_dataset(str(path))
    parquet.write_table(pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, names=["input", "input"]), path)
    with pytest.raises(DataError, match="the column 'input' is there twice"):
        load_dataset(str(path))


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv"])
def test_a_file_that_grows_is_replaced_or_vanishes_is_read_as_it_was(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"rows.{kind}"
    rows = {"jsonl": '{"input": "a"}\n{"input": "b"}\n', "json": '[{"input": "a"}, {"input": "b"}]', "csv": "input\na\nb\n"}
    path.write_text(rows[kind])
    data = load_dataset(str(path))
    with path.open("a") as file:
        file.write('{"input": "c"}\n')
    assert [row.prompt for row in data] == ["a", "b"]
    other = tmp_path / "other"
    other.write_text("something else")
    other.replace(path)
    assert data[1].prompt == "b"
    path.unlink()
    assert data[0].prompt == "a"
    with pytest.raises(DataError, match=f"rows.{kind} cannot be read any more: No such file"):
        pickle.loads(pickle.dumps(data))[0]


def test_links_are_followed_and_dead_ones_are_none(tmp_path: Path) -> None:
    real = tmp_path / "real.jsonl"
    real.write_text('{"input": "a"}\n')
    link = tmp_path / "link.jsonl"
    link.symlink_to(real)
    assert prompts(link) == ["a"]
    real.unlink()
    with pytest.raises(DataError, match=r"link.jsonl does not exist"):
        load_dataset(str(link))


def test_what_is_no_file_on_disk(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(DataError, match=r"pipe.jsonl is not a regular file"):
        load_dataset(str(tmp_path / "pipe.jsonl"))
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError, match=r"folder.jsonl is a folder, not a data file"):
        load_dataset(str(tmp_path / "folder.jsonl"))
    with pytest.raises(DataError, match="cannot be read: File name too long"):
        load_dataset("x" * 300 + ".jsonl")
    with pytest.raises(DataError, match="File name too long"):
        load_dataset("x" * 300 + ".jsonl@[0:1]")
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"input": "a"}\n'))
    with pytest.raises(DataError, match=r"(?s)ends in .\.gz.*decompress it"):
        load_dataset(str(packed))


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable for root")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"input": "a"}\n')
    path.chmod(0)
    with pytest.raises(DataError, match="cannot be read: Permission denied"):
        load_dataset(str(path))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
