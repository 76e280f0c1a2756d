"""Evaluation datasets: the ways to give them, and the levels that their settings come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vime.config.eval import EvalDatasetConfig
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
        ({"defaults": {"name": "a"}, "datasets": {}}, "eval.defaults: unknown key 'name'", "known keys: "),
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
