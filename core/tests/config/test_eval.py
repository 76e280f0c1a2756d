"""Evaluation datasets: the ways to give them, and the levels that their settings come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vime.config.eval import EvalDatasetConfig, dataset_doubts
from vime.config.run_config import RunConfig
from vime.errors import ConfigError

NUM_GPUS = 0


def datasets(**given: Any) -> list[EvalDatasetConfig]:
    return RunConfig(**given).eval_datasets


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a", "x/a.jsonl"], [("a", "x/a.jsonl")]),
        (["a", "a.jsonl", "b", "b.jsonl@[0:10]"], [("a", "a.jsonl"), ("b", "b.jsonl@[0:10]")]),
        (["x/gsm8k.jsonl"], [("gsm8k", "x/gsm8k.jsonl")]),
        (["x/gsm8k.jsonl@[0:5]"], [("gsm8k", "x/gsm8k.jsonl@[0:5]")]),
        (["hf:org/data:test"], [("data-test", "hf:org/data:test")]),
    ],
)
def test_words(words: list[str], expected: list[tuple[str, str]]) -> None:
    assert [(dataset.name, dataset.path) for dataset in datasets(eval_prompt_data=words)] == expected


def test_an_odd_number_of_words_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected names and paths in turn, got 3 words: a a\.jsonl b"):
        datasets(eval_prompt_data=["a", "a.jsonl", "b"])


@pytest.mark.parametrize(
    "entries", [[{"name": "a", "path": "a.jsonl", "top_k": 5}], {"a": {"path": "a.jsonl", "top_k": 5}}], ids=["list", "mapping"]
)
def test_section(entries: Any) -> None:
    (dataset,) = datasets(eval={"defaults": {"temperature": 0}, "datasets": entries})
    assert (dataset.name, dataset.top_k, dataset.temperature) == ("a", 5, 0.0)


@pytest.mark.parametrize("under", ["", "eval:\n"])
def test_file(tmp_path: Path, under: str) -> None:
    indent = "  " if under else ""
    lines = ["datasets:", "  a: {path: a.jsonl, top-p: 0.5}", "  b: {path: b.jsonl}"]
    (tmp_path / "eval.yaml").write_text(under + "".join(f"{indent}{line}\n" for line in lines))
    first, second = datasets(eval_config=str(tmp_path / "eval.yaml"))
    assert (first.name, first.top_p, second.name, second.top_p) == ("a", 0.5, "b", 1.0)


def test_the_levels_in_order() -> None:
    flags: dict[str, Any] = {"rollout_temperature": 0.9, "eval_top_p": 0.8, "rollout_top_p": 0.7, "input_key": "q", "eval_label_key": "l"}
    section = {"defaults": {"top_k": 4, "max_response_len": 8}, "datasets": {"a": {"path": "a.jsonl", "max_response_len": 9}}}
    (dataset,) = datasets(eval=section, label_key="other", n_samples_per_eval_prompt=3, **flags)
    assert dataset.max_response_len == 9  # entry
    assert dataset.top_k == 4  # eval.defaults
    assert dataset.top_p == 0.8  # eval flag
    assert dataset.temperature == 0.9  # the rollout's flag
    assert (dataset.input_key, dataset.label_key, dataset.tool_key, dataset.metadata_key) == ("q", "l", "tools", "metadata")
    assert dataset.n_samples_per_eval_prompt == 3
    assert dataset.sets("top_k") and not dataset.sets("top_p")


def test_zero_and_false_are_values() -> None:
    (dataset,) = datasets(eval={"datasets": {"a": {"path": "a", "temperature": 0, "apply_chat_template": False}}}, apply_chat_template=True)
    assert dataset.temperature == 0 and dataset.apply_chat_template is False
    assert datasets(eval_prompt_data=["a", "a"], eval_temperature=0.0)[0].temperature == 0


@pytest.mark.parametrize(
    ("section", "message", "hint"),
    [
        ({"defaults": {"temprature": 0}, "datasets": {}}, "eval.defaults: unknown key 'temprature'", "did you mean 'temperature'?"),  # J1
        ({"datasets": {"a": {"path": "a", "topk": 1}}}, "eval.datasets.a: unknown key 'topk'", "did you mean 'top_k'?"),
        ({"dataset": {}}, "eval: unknown key 'dataset'", "did you mean 'datasets'?"),
        ({"defaults": {"name": "a"}, "datasets": {}}, "eval.defaults: unknown key 'name'", "each dataset has a name of its own"),
        ({"defaults": {"path": "a"}, "datasets": {}}, "eval.defaults: unknown key 'path'", "each dataset has a path of its own"),
        ({"datasets": [{"name": "a", "path": "a", "tempreature": 1}]}, "eval.datasets.a: unknown key 'tempreature'", "did you mean"),
        ({"defaults": {}}, "eval: no datasets", "for example datasets: ["),
        ({"datasets": []}, "eval.datasets names no dataset", "for example datasets: ["),
        ({"datasets": {}}, "eval.datasets names no dataset", "for example datasets: ["),
        ({"datasets": {"a": {"path": None}}}, "eval.datasets.a: no path", "each dataset has a name and a path"),
        ({"datasets": {True: {"path": "a"}}}, "eval.datasets: the name True is not text", "write names such as yes"),
        ({"datasets": {"a": {"name": "b", "path": "a"}}}, "eval.datasets.a: it is named 'b' inside", "leave out the name"),
        (
            {"datasets": {"a": {"path": "a", "top-p": 1.0, "top_p": 1.0}}},
            "eval.datasets.a: 'top_p' comes twice, in two spellings",
            "keep one",
        ),
        ({"datasets": [{"path": "a"}]}, "eval.datasets.0: no name", "each dataset has a name and a path"),
        ({"datasets": {"a": {}}}, "eval.datasets.a: no path", "each dataset has a name and a path"),
        ({"datasets": ["a.jsonl"]}, "eval.datasets[0]: expected a mapping, got 'a.jsonl'", ""),
        ({"datasets": "a.jsonl"}, "eval.datasets: expected a list or a mapping of datasets, got 'a.jsonl'", ""),
    ],
)
def test_wrong_sections(section: Any, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        datasets(eval=section)
    assert refused.value.message == message
    assert (refused.value.hint or "").startswith(hint)


@pytest.mark.parametrize("given", [{"eval_prompt_data": ["a", "1.jsonl", "a", "2.jsonl"]}, {"eval_prompt_data": ["a", "1.jsonl"] * 2}])
def test_case_j6_one_name_twice_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="two evaluation datasets are named 'a'"):
        datasets(**given)


def test_one_name_twice_in_a_yaml_mapping_is_refused(tmp_path: Path) -> None:
    (tmp_path / "eval.yaml").write_text("datasets:\n  a: {path: 1.jsonl}\n  a: {path: 2.jsonl}\n")
    with pytest.raises(ConfigError, match=r"the key 'a' comes twice.*line 3"):
        datasets(eval_config=str(tmp_path / "eval.yaml"))


def test_two_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="given twice: by eval_config and by eval_prompt_data"):
        datasets(eval_config="x.yaml", eval_prompt_data=["a", "a.jsonl"])


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--eval-config .*none\.yaml: No such file"):
        datasets(eval_config=str(tmp_path / "none.yaml"))
    (tmp_path / "broken.yaml").write_text("a: [1,\n")
    with pytest.raises(ConfigError, match="is not YAML"):
        datasets(eval_config=str(tmp_path / "broken.yaml"))


def test_an_empty_file_and_keys_beside_eval_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "eval.yaml"
    file.write_text("# nothing yet\n")
    with pytest.raises(ConfigError, match=r"--eval-config .*eval\.yaml is empty"):
        datasets(eval_config=str(file))
    file.write_text("eval: {datasets: {a: {path: a.jsonl}}}\ndefaults: {temperature: 0}\n")
    with pytest.raises(ConfigError, match=r"eval\.yaml: unknown key 'defaults' beside eval") as refused:
        datasets(eval_config=str(file))
    assert refused.value.hint == "put it under eval:"


def test_a_slice_between_braces_needs_quotes(tmp_path: Path) -> None:
    (tmp_path / "eval.yaml").write_text("datasets: {a: {path: a.jsonl@[0:20]}}\n")
    with pytest.raises(ConfigError, match="is not YAML") as refused:
        datasets(eval_config=str(tmp_path / "eval.yaml"))
    assert refused.value.hint == 'between braces a path with a slice needs quotes: {path: "test.jsonl@[0:100]"}'


def test_a_path_in_the_place_of_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'x/a\.jsonl' stands where the name of 'b\.jsonl' is expected") as refused:
        datasets(eval_prompt_data=["x/a.jsonl", "b.jsonl"])
    assert refused.value.hint == "names and paths in turn: --eval-prompt-data a x/a.jsonl ..."


def test_null_leaves_a_setting_to_the_next_level() -> None:
    section = {"defaults": {"top_k": 4, "top_p": None}, "datasets": {"a": {"path": "a", "top_k": None, "metadata_overrides": None}}}
    (dataset,) = datasets(eval=section, eval_top_p=0.5)
    assert (dataset.top_k, dataset.top_p, dataset.metadata_overrides) == (4, 0.5, {})
    assert dataset.sets("top_k") and not dataset.sets("top_p")


def test_anchors_and_merges(tmp_path: Path) -> None:
    (tmp_path / "eval.yaml").write_text(
        "defaults: &d {temperature: 0}\ndatasets:\n  - &a {name: a, path: a.jsonl, top_k: 3}\n"
        "  - {<<: *a, name: b}\n  - {<<: *d, name: c, path: c}\n"
    )
    assert [(d.name, d.path, d.top_k, d.temperature) for d in datasets(eval_config=str(tmp_path / "eval.yaml"))] == [
        ("a", "a.jsonl", 3, 0.0),
        ("b", "a.jsonl", 3, 0.0),
        ("c", "c", -1, 0.0),
    ]


@pytest.mark.parametrize("name", ["math/aime 24", "数学", "a-b", "a.b@1"])
def test_names_may_have_slashes_blanks_and_other_letters(name: str) -> None:
    assert datasets(eval_prompt_data=[name, "a.jsonl"])[0].name == name


@pytest.mark.parametrize("name", [" a", "a\n", "a\x1b[31m"])
def test_names_that_cannot_be_shown_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="its name begins or ends in a blank, or has a character that cannot be shown"):
        datasets(eval_prompt_data=[name, "a.jsonl"])


@pytest.mark.parametrize("end", ["-pass@2", "-truncated_ratio", "/failed_samples", "/response_len/mean"])
def test_a_name_that_is_a_metric_of_another_dataset_is_refused(end: str) -> None:
    with pytest.raises(ConfigError, match=f"the mean reward of the one is called as a metric of the other, eval/a{end}"):
        datasets(eval_prompt_data=[f"a{end}", "b.jsonl", "a", "a.jsonl"])
    assert len(datasets(eval_prompt_data=["a-hard", "b.jsonl", "a", "a.jsonl"])) == 2


def test_lengths_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"dataset 'a': min_new_tokens is 9, more than its max_response_len 8"):
        datasets(eval={"datasets": {"a": {"path": "a", "max_response_len": 8}}}, rollout_min_new_tokens=9)


@pytest.mark.parametrize(
    ("entry", "flags", "doubt"),
    [
        ({"rm_type": "math"}, {"custom_rm_path": "m.f"}, "evaluation dataset 'a': rm_type math has no effect beside custom_rm_path m.f"),
        ({"apply_chat_template_kwargs": {"x": 1}}, {}, "evaluation dataset 'a': apply_chat_template_kwargs has no effect without"),
        ({}, {"skip_eval_before_train": True}, "there is no evaluation: --skip-eval-before-train"),
    ],
)
def test_what_has_no_effect_is_said(entry: dict[str, Any], flags: dict[str, Any], doubt: str) -> None:
    given = {"eval": {"datasets": {"a": {"path": "a", **entry}}}, **flags}
    (found,) = dataset_doubts(RunConfig(**given))
    assert found.startswith(doubt)
    usual: dict[str, Any] = {"eval_prompt_data": ["a", "a.jsonl"], "eval_interval": 2}
    assert not dataset_doubts(RunConfig(**usual))


def test_an_evaluation_function_without_datasets_has_no_effect() -> None:
    assert dataset_doubts(RunConfig(eval_function_path="m.f")) == [
        "eval_function_path has no effect without evaluation datasets (--eval-prompt-data or --eval-config)"
    ]


def test_metadata_is_written_over() -> None:
    section = {"datasets": {"a": {"path": "a", "rm_type": "math", "metadata_overrides": {"level": 2, "rm_type": "dapo"}}}}
    (dataset,) = datasets(eval=section)
    assert dataset.inject_metadata({"level": 1, "id": 7, "rm_type": "f1"}) == {"level": 2, "id": 7, "rm_type": "dapo"}
    row = {"rm_type": "f1"}
    (own,) = datasets(eval={"datasets": {"a": {"path": "a", "rm_type": "math"}}})
    assert own.inject_metadata(row) == {"rm_type": "math"} and row == {"rm_type": "f1"}
    assert own.inject_metadata(None) == {"rm_type": "math"}


def test_the_flag_does_not_replace_the_rm_type_of_a_row() -> None:
    (dataset,) = datasets(eval_prompt_data=["a", "a.jsonl"], rm_type="math")
    assert dataset.rm_type == "math"
    assert dataset.inject_metadata({"rm_type": "f1"}) == {"rm_type": "f1"}
    assert dataset.inject_metadata({}) == {"rm_type": "math"}


def test_upstream_import_path() -> None:
    from vime.utils.eval_config import EvalDatasetConfig as Upstream

    assert Upstream is EvalDatasetConfig


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
