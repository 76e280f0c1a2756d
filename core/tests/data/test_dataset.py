"""Rows become prompts: formats, keys, templates, limits, and every way a row can be bad."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from vime.config.eval import EvalDatasetConfig
from vime.config.run_config import RunConfig
from vime.data.dataset import PromptRow, check_prompt_data, load_dataset
from vime.errors import ConfigError, DataError

NUM_GPUS = 0

ROWS = [
    {"input": "one", "label": 1, "metadata": {"level": 3}},
    {"input": "zwei ü", "label": {"a": [1, None]}},
    {"input": "three", "label": None},
]


class WordTokenizer:
    """A tokenizer of words, with a chat template."""

    chat_template: str | None = "words"

    def __call__(self, texts: list[str], add_special_tokens: bool = True) -> dict[str, list[list[int]]]:
        assert not add_special_tokens
        return {"input_ids": [[len(word) for word in text.split()] for text in texts]}

    def apply_chat_template(self, messages, tools=None, tokenize=True, add_generation_prompt=False, **options):
        assert not tokenize
        if messages[0]["role"] == "nobody":
            raise ValueError("unknown role nobody")
        text = "".join(f"[{m['role']}] {m['content']} " for m in messages)
        tail = "[assistant]" if add_generation_prompt else ""
        return f"{text}{tail}{sorted(options.items()) if options else ''}{tools or ''}"


def _jsonl(tmp_path: Path, *lines: str | dict) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), encoding="utf-8")
    return str(path)


# Formats


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
def test_each_format_gives_the_same_rows(tmp_path, ending):
    path = tmp_path / f"rows.{ending}"
    rows = [{"input": "one", "label": "1", "metadata": {"level": 3}}, {"input": "zwei ü\n", "label": "2", "metadata": {"level": 4}}]
    if ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif ending == "json":
        path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    else:
        pytest.importorskip("pyarrow")
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    data = load_dataset(str(path), label_key="label")
    assert [data[1], data[0], data[-1]] == [PromptRow(*rows[1].values()), PromptRow(*rows[0].values()), PromptRow(*rows[1].values())]
    assert len(list(data)) == len(data) == 2


def test_csv_gives_strings_and_reads_quoted_line_breaks_in_any_order(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes('\ufeffinput,label,metadata\r\n"a, b",007,\r\n\r\n"two\nlines ""q""",2,"{""k"": 1}"\r\nlast,3,'.encode())
    data = load_dataset(str(path), label_key="label")
    expected = [PromptRow("a, b", "007", {}), PromptRow('two\nlines "q"', "2", {"k": 1}), PromptRow("last", "3", {})]
    assert [data[i] for i in (2, 0, 1)] == [expected[i] for i in (2, 0, 1)]


def test_csv_with_a_short_row_names_its_line(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('input,label\n"a\nb",1\nc\n')
    with pytest.raises(DataError, match=r"rows.csv, line 4: it has 1 values for 2 columns"):
        load_dataset(str(path))


def test_csv_with_an_open_quote_names_its_line(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('input\ngood\n"never closed\n')
    with pytest.raises(DataError, match=r"rows.csv, line 3"):
        load_dataset(str(path))


def test_csv_with_a_column_twice_is_refused(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("input,input\na,b\n")
    with pytest.raises(DataError, match="the column 'input' appears twice"):
        load_dataset(str(path))


def test_byte_order_mark_crlf_blank_lines_and_no_last_line_break(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"input": "a"}\r\n\r\n  \n{"input": "b"}\r\n\n{"input": "c"}')
    assert [row.prompt for row in load_dataset(str(path))] == ["a", "b", "c"]


def test_json_that_holds_no_list_says_what_it_holds(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('{"input": "a"}')
    with pytest.raises(DataError, match="holds a JSON object, not a list of objects"):
        load_dataset(str(path))


def test_jsonl_in_a_json_file_gets_the_hint(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('{"input": "a"}\n{"input": "b"}\n')
    with pytest.raises(DataError, match=r"rows.json, line 2: it is not JSON") as caught:
        load_dataset(str(path))
    assert ".jsonl" in str(caught.value)


def test_a_file_that_is_not_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"not parquet at all")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        load_dataset(str(path))


def test_parquet_refuses_a_missing_key_and_a_label_that_json_has_not(tmp_path):
    pytest.importorskip("pyarrow")
    import datetime

    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"input": "a", "day": datetime.date(2020, 1, 2)}]), path)
    with pytest.raises(DataError, match=r"row 0: it has no key 'prompt'; the keys that are there: 'input', 'day'"):
        load_dataset(str(path), input_key="prompt")
    with pytest.raises(DataError, match=r"row 0: 'day' holds a value that JSON does not have \(datetime.date"):
        load_dataset(str(path), label_key="day")


def test_parquet_in_any_order_over_several_batches(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"input": f"p{i}"} for i in range(2500)]), path, row_group_size=700)
    data = load_dataset(f"{path}@[5:]")
    assert [data[i].prompt for i in (2494, 0, 1019, 1018, 2043, 3)] == ["p2499", "p5", "p1024", "p1023", "p2048", "p8"]


# Keys


def test_labels_of_any_json_type(tmp_path):
    data = load_dataset(_jsonl(tmp_path, *ROWS), label_key="label")
    assert [row.label for row in data] == [1, {"a": [1, None]}, None]
    assert [row.metadata for row in data] == [{"level": 3}, {}, {}]


def test_case_j8_a_missing_key_lists_the_keys_that_are_there(tmp_path):
    with pytest.raises(DataError, match=r"rows.jsonl, line 1: it has no key 'prompt'; the keys that are there: 'question', 'answer'"):
        load_dataset(_jsonl(tmp_path, {"question": "?", "answer": 1}), input_key="prompt")


def test_a_missing_key_suggests_the_nearest(tmp_path):
    with pytest.raises(DataError) as caught:
        load_dataset(_jsonl(tmp_path, {"prompt": "?", "lable": 1}), input_key="prompt", label_key="label")
    assert caught.value.hint == "name the right key: --label-key lable"


def test_a_metadata_key_that_no_row_has_is_a_slip(tmp_path):
    with pytest.raises(DataError, match=r"no row has the key 'extra_inf'; the keys of the first row: 'input', 'extra_info'"):
        load_dataset(_jsonl(tmp_path, {"input": "a", "extra_info": {}}), metadata_key="extra_inf")
    assert load_dataset(_jsonl(tmp_path, {"input": "a"}, {"input": "b", "extra": {"k": 1}}), metadata_key="extra")[1].metadata == {"k": 1}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"input": ""}, "'input' is empty"),
        ({"input": None}, "'input' is a JSON null, not text or a list of chat messages"),
        ({"input": 5}, "'input' is a JSON number"),
        ({"input": []}, "'input' is an empty list"),
        ({"input": ["hi"]}, "message 0 of 'input' is not an object with 'role' and 'content'"),
        ({"input": [{"role": "user", "content": "a"}, {"content": "b"}]}, "message 1 of 'input' is not an object with"),
        ({"input": [{"role": "user", "text": "a"}]}, "message 0 of 'input' has no 'content'; its keys: 'role', 'text'"),
        ({"input": [{"role": "user", "content": 3}]}, "the content of message 0 of 'input' is a JSON number, not text"),
        ({"input": "a", "metadata": [1]}, "'metadata' is a JSON list, not an object"),
        ({"input": "a", "metadata": "text"}, "'metadata' is a JSON string, not an object"),
        ({"input": "a", "tools": {"name": "x"}}, "'tools' is not a list of tool descriptions"),
    ],
)
def test_a_row_that_is_no_prompt(tmp_path, row, problem):
    with pytest.raises(DataError, match=f"line 2: {problem}"):
        load_dataset(_jsonl(tmp_path, {"input": "fine"}, row))


# Bad rows


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"input": "b"', "it is not JSON .*column"),
        ("[1, 2]", "it holds a JSON list, not an object"),
        ("null", "it holds a JSON null, not an object"),
        ("[" * 5000 + "]" * 5000, "it is not JSON"),
        ('{"input": "\\ud800"}', "it is not JSON"),
    ],
)
def test_case_j7_a_broken_line_is_named_or_counted(tmp_path, line, problem):
    path = _jsonl(tmp_path, {"input": "a"}, line, {"input": "c"})
    with pytest.raises(DataError, match=f"rows.jsonl, line 2: {problem}"):
        load_dataset(path)
    data = load_dataset(path, skip_bad_rows=True)
    assert [row.prompt for row in data] == ["a", "c"]
    assert data.skipped_rows == 1


def test_a_line_number_counts_blank_lines(tmp_path):
    with pytest.raises(DataError, match="line 4: it is not JSON"):
        load_dataset(_jsonl(tmp_path, {"input": "a"}, "", "", "oops"))


def test_a_line_that_is_not_utf8(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"input": "a"}\n{"input": "\xff"}\n')
    with pytest.raises(DataError, match="line 2: it is not UTF-8"):
        load_dataset(str(path))
    assert len(load_dataset(str(path), skip_bad_rows=True)) == 1


def test_only_bad_rows_are_no_data(tmp_path):
    with pytest.raises(DataError, match="0 of 2 rows left: all of them are bad"):
        load_dataset(_jsonl(tmp_path, "x", "y"), skip_bad_rows=True)


def test_a_file_that_changes_under_the_run_is_named(tmp_path):
    path = _jsonl(tmp_path, {"input": "a"}, {"input": "b"})
    data = load_dataset(path)
    Path(path).write_text('{"inp')
    with pytest.raises(DataError, match="it was a good row when the run started"):
        data[0]


# Ownership


def test_rows_share_nothing(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('[{"input": [{"role": "user", "content": "a"}], "label": [1], "metadata": {"k": [1]}}]')
    data = load_dataset(str(path), label_key="label")
    first = data[0]
    assert isinstance(first.prompt, list)
    first.prompt.append({})
    first.label.append("x")
    first.metadata["k"].append("x")
    assert data[0] == PromptRow([{"role": "user", "content": "a"}], [1], {"k": [1]})


def test_a_dataset_goes_to_another_process(tmp_path):
    data = load_dataset(_jsonl(tmp_path, *ROWS), label_key="label")
    assert data[0].label == 1
    assert [row.prompt for row in pickle.loads(pickle.dumps(data))] == ["one", "zwei ü", "three"]


def test_the_memory_of_a_row_is_its_offset(tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_text(f'{{"input": "{"x" * 200}"}}\n' * 20_000)
    data = load_dataset(str(path))
    assert len(pickle.dumps(data)) / len(data) < 10


# Templates and limits


def test_messages_stay_messages_without_a_template(tmp_path):
    messages = [{"role": "system", "content": "s"}, {"role": "assistant", "content": None, "tool_calls": [{"id": 1}]}]
    assert load_dataset(_jsonl(tmp_path, {"input": messages}))[0].prompt == messages


def test_chat_template_with_its_arguments_and_tools(tmp_path):
    path = _jsonl(
        tmp_path, {"input": [{"role": "user", "content": "2+3?"}], "tools": [{"name": "calc", "default": None}]}, {"input": "plain"}
    )
    data = load_dataset(
        path, tokenizer=WordTokenizer(), tool_key="tools", apply_chat_template=True, apply_chat_template_kwargs={"think": False}
    )
    assert data[0] == PromptRow("[user] 2+3? [assistant][('think', False)][{'name': 'calc'}]", None, {"tools": [{"name": "calc"}]})
    assert data[1].prompt == "[user] plain [assistant][('think', False)]"
    quiet = load_dataset(
        path, tokenizer=WordTokenizer(), apply_chat_template=True, apply_chat_template_kwargs={"add_generation_prompt": False}
    )
    assert quiet[1].prompt == "[user] plain "


def test_a_template_that_refuses_names_the_row_at_start(tmp_path):
    path = _jsonl(tmp_path, {"input": [{"role": "nobody", "content": "x"}]})
    with pytest.raises(DataError, match="line 1: the chat template refuses this prompt: unknown role nobody"):
        load_dataset(path, tokenizer=WordTokenizer(), apply_chat_template=True)


def test_a_template_needs_a_tokenizer_that_has_one(tmp_path):
    path = _jsonl(tmp_path, {"input": "a"})
    with pytest.raises(ConfigError, match="needs the model's tokenizer"):
        load_dataset(path, apply_chat_template=True)
    tokenizer = WordTokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match="the tokenizer has no chat template"):
        load_dataset(path, tokenizer=tokenizer, apply_chat_template=True)


def test_longer_prompts_are_dropped_and_counted(tmp_path):
    path = _jsonl(tmp_path, *({"input": " ".join("w" * n)} for n in (3, 1, 4, 2)))
    data = load_dataset(path, tokenizer=WordTokenizer(), max_prompt_len=2)
    assert [row.prompt for row in data] == ["w", "w w"]
    assert data.dropped_long == 2


def test_the_limit_counts_the_rendered_prompt(tmp_path):
    path = _jsonl(tmp_path, {"input": [{"role": "user", "content": "a b"}]}, {"input": "a"})
    assert len(load_dataset(path, tokenizer=WordTokenizer(), max_prompt_len=3)) == 1
    assert len(load_dataset(path, tokenizer=WordTokenizer(), max_prompt_len=4)) == 2


def test_case_j10_no_prompt_is_short_enough(tmp_path):
    with pytest.raises(DataError, match="0 of 2 rows left: every prompt is longer than 2 tokens"):
        load_dataset(_jsonl(tmp_path, {"input": "a b c"}, {"input": "d e f"}), tokenizer=WordTokenizer(), max_prompt_len=2)


# The check before anything starts


def test_check_prompt_data_reads_training_and_evaluation_data(tmp_path):
    good = _jsonl(tmp_path, {"q": "a", "a": 1})
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"q": "a"}\n')
    config = RunConfig(prompt_data=good, input_key="q", label_key="a")
    check_prompt_data(config)
    with pytest.raises(DataError, match=r"bad.jsonl, line 1: it has no key 'a'"):
        check_prompt_data(config.model_copy(update={"eval_datasets": [EvalDatasetConfig(name="x", path=str(bad))]}))
    with pytest.raises(DataError, match="no key 'question'"):
        check_prompt_data(config.model_copy(update={"input_key": "question"}))
    with pytest.raises(DataError, match="does not exist"):
        check_prompt_data(config.model_copy(update={"prompt_data": str(tmp_path / "none.jsonl")}))


def test_data_that_the_run_does_not_read_is_not_checked():
    nothing = {"eval_datasets": [], "skip_bad_rows": False}
    check_prompt_data(SimpleNamespace(prompt_data=None, **nothing))
    check_prompt_data(SimpleNamespace(prompt_data="own:thing", data_source_path="a.b.Own", **nothing))
    check_prompt_data(SimpleNamespace(prompt_data="gone.jsonl", debug_train_only=True, **nothing))


def test_the_check_imports_nothing_heavy(tmp_path):
    path = _jsonl(tmp_path, {"input": "a"})
    code = (
        "import sys; from types import SimpleNamespace; from vime.data.dataset import check_prompt_data\n"
        f"check_prompt_data(SimpleNamespace(prompt_data={path!r}, input_key='input', label_key=None, metadata_key='metadata',"
        " tool_key=None, skip_bad_rows=False, eval_datasets=[]))\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'pyarrow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"


LONG = "1" * 5000


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (f'{{"input": "a", "n": {LONG}}}', "number out of range"),
        ('{"input": "\\ud800"}', "unexpected end of hex escape"),
        (f'{{"input": {"[" * 300}{"]" * 300}}}', "recursion limit exceeded"),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "json"])
def test_json_that_python_refuses_is_a_bad_row(tmp_path, kind, row, message):
    good = '{"input": "good"}'
    path = tmp_path / f"rows.{kind}"
    path.write_text(f"{good}\n{row}\n" if kind == "jsonl" else f"[{good},\n{row}]")
    where = "line 2" if kind == "jsonl" else "row 1"
    with pytest.raises(DataError, match=f"{where}: it is not JSON .{message}"):
        load_dataset(str(path))
    data = load_dataset(str(path), skip_bad_rows=True)
    assert len(data) == 1 and data.skipped_rows == 1


def test_a_json_file_that_is_nested_too_deeply(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"it is not JSON .it is nested too deeply"):
        load_dataset(str(path))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
