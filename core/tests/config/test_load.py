"""From flags, file and environment to a configuration: what goes over what, origins, messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vime.config.load import Resolved, dump_config, load_config, plain_values
from vime.config.run_config import RunConfig
from vime.errors import ConfigError

NUM_GPUS = 0


def load(flags: dict[str, Any] | None = None, file: Path | None = None, env: dict[str, str] | None = None, **more: Any) -> Resolved:
    return load_config(flags or {}, file, env or {}, check_files=False, **more)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def yaml_file(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


def refusal(*args: Any, **more: Any) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        load(*args, **more)
    return refused.value


def test_flags_go_over_the_file_and_the_file_over_defaults(yaml_file: Path) -> None:
    write(yaml_file, "lr: 1e-5\nrollout-batch-size: 4\nclip_grad: 2\n")
    resolved = load({"lr": "3e-6"}, yaml_file)
    config = resolved.config
    assert (config.lr, config.rollout_batch_size, config.clip_grad, config.eps_clip) == (3e-6, 4, 2.0, 0.2)
    origins = [resolved.origins[name] for name in ("lr", "rollout_batch_size", "eps_clip", "global_batch_size")]
    assert origins == ["flag --lr", f"file {yaml_file}", "default", "derived"]
    assert set(RunConfig.model_fields) <= set(resolved.origins)


def test_the_defaults_of_a_pipeline_are_said_to_be_its_own() -> None:
    for pipeline in ("async", "continuous"):
        resolved = load({"pipeline": pipeline, "runtime": "ray"})
        assert (resolved.config.use_tis, resolved.config.max_staleness) == (True, 1)
        assert resolved.origins["use_tis"] == resolved.origins["max_staleness"] == f"default of --pipeline {pipeline}"
        assert "use_tis" not in plain_values(resolved.config), "the file of a run does not fix what follows from another value"
    resolved = load({"pipeline": "async", "runtime": "ray", "use_tis": False, "max_staleness": "2"})
    assert (resolved.origins["use_tis"], resolved.origins["max_staleness"]) == ("flag --use-tis", "flag --max-staleness")


def test_words_become_typed_values() -> None:
    flags = {
        "lr": "1e-6",
        "rollout_top_k": "-1",
        "zero_stage": "2",
        "rollout_stop": ["a", "b"],
        "rollout_stop_token_ids": ["1", "2"],
        "apply_chat_template_kwargs": '{"enable_thinking": false}',
        "tensorboard": "false",
        "eval_interval": "none",
        "load": "",
        "rollout_batch_size": 3,
    }
    config = load(flags).config
    assert (config.lr, config.rollout_top_k, config.zero_stage) == (1e-6, -1, 2)
    assert (config.rollout_stop, config.rollout_stop_token_ids) == (["a", "b"], [1, 2])
    assert config.apply_chat_template_kwargs == {"enable_thinking": False}
    assert (config.tensorboard, config.eval_interval, config.load, config.rollout_batch_size) == (False, None, None, 3)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"lr": "abc"}, "--lr: expected a number of at least 0, got 'abc'"),
        ({"lr": "nan"}, "--lr: expected a finite number of at least 0, got nan"),
        ({"rollout_batch_size": "4.5"}, "--rollout-batch-size: expected a whole number of at least 1, got '4.5'"),
        ({"rollout_batch_size": "0"}, "--rollout-batch-size: expected a whole number of at least 1, got 0"),
        ({"gamma": "1.5"}, "--gamma: expected a number of at least 0 and at most 1, got 1.5"),
        ({"tensorboard": "maybe"}, "--tensorboard: expected true or false, got 'maybe'"),
        ({"on_exhausted": "stop"}, "--on-exhausted: expected one of error, fallback, underfill, got 'stop'"),
        ({"zero_stage": "4"}, "--zero-stage: expected one of 0, 1, 2, 3, got '4'"),
        ({"vllm_engine_args": "[1]"}, "--vllm-engine-args: expected a mapping, got '[1]'"),
        ({"rollout_stop_token_ids": ["1", "x"]}, "--rollout-stop-token-ids: expected a list, each a whole number, got 1 x"),
    ],
)
def test_a_wrong_type_says_flag_expected_and_got(flags: dict[str, Any], message: str) -> None:
    assert refusal(flags).message == message


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("rollout_batch: 4", "unknown key 'rollout_batch'", "did you mean rollout_batch_size?"),
        ("plugin: [a]\nplugins: [b]", "'plugins' and another key both set plugin", "keep one"),
        (
            "tensor_model_parallel_size: 2",
            "unknown key 'tensor_model_parallel_size': it belongs to Megatron or SGLang",
            "leave it out: DeepSpeed",
        ),
        ("sglang_mem_fraction_static: 0.8", "unknown key 'sglang_mem_fraction_static'", "use --vllm-gpu-memory-utilization"),
        ("lr: fast", "lr: expected a number of at least 0, got 'fast'", None),
        ("rollout_batch_size: true", "rollout_batch_size: expected a whole number of at least 1, got True", None),
        ("lr: 1\nlr: 2", "is not YAML", None),
        ("lr: [1", "is not YAML", None),
        ("- lr", "expected a mapping of keys to values, got list", None),
        ("eval: {defaults: {temprature: 0}, datasets: {}}", "eval.defaults: unknown key 'temprature'", "did you mean 'temperature'?"),
        (
            "eval: {datasets: {a: {path: a, top_p: 2}}}",
            "evaluation dataset 'a': top_p: expected a number above 0 and at most 1, got 2",
            None,
        ),
    ],
)
def test_wrong_files(yaml_file: Path, text: str, message: str, hint: str | None) -> None:
    error = refusal({}, write(yaml_file, text))
    assert message in error.message
    assert hint is None or (error.hint or "").startswith(hint)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "No such file" in refusal({}, tmp_path / "none.yaml").message


def test_flags_over_environment_over_file(yaml_file: Path) -> None:
    write(yaml_file, "plugins: [a, b]\n")
    env = {"VIME_PLUGINS": "c, d"}
    assert load({}, yaml_file).config.plugin == ["a", "b"]
    in_between = load({}, yaml_file, env)
    assert (in_between.config.plugin, in_between.origins["plugin"]) == (["c", "d"], "environment VIME_PLUGINS")
    on_top = load({"plugin": ["e"]}, yaml_file, env)
    assert (on_top.config.plugin, on_top.origins["plugin"]) == (["e"], "flag --plugin")


def test_no_plugin_subtracts(yaml_file: Path) -> None:
    write(yaml_file, "plugins: [math, Nonzero_Std]\n")
    assert load({"no_plugin": ["nonzero-std"]}, yaml_file).config.plugin == ["math"]


def test_one_word_stands_for_a_list_of_one(yaml_file: Path) -> None:
    assert load({}, write(yaml_file, "plugins: math\nrollout_stop: User\n")).config.plugin == ["math"]


def test_set_goes_over_the_settings_of_the_file(yaml_file: Path) -> None:
    write(yaml_file, "plugin_settings: {math: {timeout: 5, strict: true}}\n")
    resolved = load({"set": ["math.timeout=1e-1", "format.tags=[a, b]", "math.note="]}, yaml_file)
    assert resolved.config.plugin_settings == {"math": {"timeout": 0.1, "strict": True, "note": None}, "format": {"tags": ["a", "b"]}}
    assert resolved.origins["plugin_settings"] == "flag --set"


def test_a_secret_that_the_file_of_a_run_hides_is_given_again(yaml_file: Path) -> None:
    yaml_file.write_text("plugin_settings: {judge: {api_key: '***'}}\n")
    with pytest.raises(ConfigError, match=r"plugin_settings.judge.api_key is hidden in the file") as caught:
        load_config({}, yaml_file, {}, check_files=False)
    assert caught.value.hint == "give it again: --set judge.api_key=VALUE"
    config = load_config({"set": ["judge.api_key=abc"]}, yaml_file, {}, check_files=False).config
    assert config.plugin_settings == {"judge": {"api_key": "abc"}}
    yaml_file.write_text("rm_url: https://***@host/score\n")
    with pytest.raises(ConfigError, match="rm_url is hidden in the file"):
        load_config({}, yaml_file, {}, check_files=False)


def test_settings_of_a_plugin_are_one_however_it_is_spelt(yaml_file: Path) -> None:
    write(yaml_file, "plugin_settings: {My_Plugin: {timeout: 5, workers: 3}, my.plugin: {strict: true}}\n")
    config = load({"set": ["my-plugin.timeout=7"]}, yaml_file).config
    assert config.plugin_settings == {"my-plugin": {"timeout": 7, "workers": 3, "strict": True}}
    write(yaml_file, "plugin_settings: {Math: {timeout: 5}, math: {timeout: 6}}\n")
    assert "plugin_settings has math.timeout twice, in two spellings" in refusal({}, yaml_file).message


@pytest.mark.parametrize("given", ["{math: 3}", "3", "[math]"])
def test_settings_that_are_no_mapping(given: str, yaml_file: Path) -> None:
    write(yaml_file, f"plugin_settings: {given}\n")
    for flags in ({}, {"set": ["math.timeout=5"]}):
        assert "plugin_settings" in refusal(flags, yaml_file).message


def test_a_set_value_that_is_not_yaml_is_said_on_one_line() -> None:
    error = refusal({"set": ["math.timeout=[1"]})
    assert error.message == "--set math.timeout: '[1' is not a YAML value"


@pytest.mark.parametrize("text", ["[a]: 2\n", "{a: 1}: 2\n"])
def test_a_key_that_is_a_list_or_a_mapping(text: str, yaml_file: Path) -> None:
    assert "is a list or a mapping" in refusal({}, write(yaml_file, text)).message


def test_merge_keys_of_yaml(yaml_file: Path) -> None:
    write(yaml_file, "eval:\n  datasets:\n    a: &a {path: a.jsonl, top_k: 3}\n    b:\n      <<: *a\n      path: b.jsonl\n")
    second = load({}, yaml_file).config.eval_datasets[1]
    assert (second.path, second.top_k) == ("b.jsonl", 3)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("config: x", "'config' is for the command line only", "in one file"),
        ("set: [math.timeout=5]", "'set' is for the command line only", "plugin_settings"),
        ("no_tensorboard: true", "unknown key 'no_tensorboard'", "write tensorboard: false"),
        ("no-tensorboard: false", "unknown key 'no-tensorboard'", "write tensorboard: true"),
        ("quickstart: true", "'quickstart' is what a run says of itself", "leave it out"),
        ("vllm_router_port: 3", "unknown key 'vllm_router_port'", ""),
    ],
)
def test_keys_that_are_none(text: str, message: str, hint: str, yaml_file: Path) -> None:
    error = refusal({}, write(yaml_file, text))
    assert message in error.message and hint in (error.hint or "")


def test_a_dataset_has_a_name() -> None:
    assert "name: expected text that is not empty, got ''" in refusal({"eval_prompt_data": ["", "a.jsonl"]}).message


def test_an_empty_eval_section_names_nothing(yaml_file: Path) -> None:
    base = {"prompt_data": "q.jsonl", "eval": {"datasets": {"held": {"path": "h.jsonl"}}}, "eval_interval": 25}
    config = load({}, write(yaml_file, "eval: {}"), quickstart=lambda: base).config
    assert [data.name for data in config.eval_datasets] == ["held"]


def test_a_file_that_is_not_utf8(yaml_file: Path, tmp_path: Path) -> None:
    yaml_file.write_bytes(b"name: \xff\n")
    assert "is not UTF-8 (byte 6)" in refusal({}, yaml_file).message
    assert "--eval-config" in refusal({"eval_config": str(yaml_file)}).message


def test_rewards_without_a_label_key_are_doubtful(prompt_file: Path, model_folder: Path) -> None:
    flags = {"hf_checkpoint": str(model_folder), "prompt_data": str(prompt_file), "plugin": ["math"]}
    assert load_config(flags, None, {}).warnings == (
        "no --label-key: sample.label is None for every row; the data has 'label': --label-key label",
    )
    assert load(flags).warnings == ("no --label-key: sample.label is None for every row",)
    assert load(flags, purpose="eval").warnings == ()
    for fine in ({"label_key": "label"}, {"plugin": None}, {"loss_type": "sft_loss"}):
        assert load({**flags, **fine}).warnings == ()
    (doubt,) = load({**flags, "prompt_data": None, "eval_prompt_data": ["held", str(prompt_file)]}).warnings
    assert doubt.startswith("evaluation dataset 'held': no --label-key")


@pytest.mark.parametrize("wrong", ["math", "math=5", "math.timeout", ".x=1", "math.=1"])
def test_wrong_set(wrong: str) -> None:
    assert refusal({"set": [wrong]}).message == f"--set: expected plugin.key=value, got {wrong!r}"


def test_aliases_and_negations_in_the_file(yaml_file: Path) -> None:
    config = load({}, write(yaml_file, "model: m\nseed: 7\ndisable_rewards_normalization: true\n")).config
    assert (config.hf_checkpoint, config.rollout_seed, config.rewards_normalization) == ("m", 7, False)


def test_a_layer_hides_what_says_the_same_below(yaml_file: Path) -> None:
    write(
        yaml_file,
        "num_rollout: 100\nrollout_batch_size: 4\nn_samples_per_prompt: 2\nglobal_batch_size: 8\neval_prompt_data: [a, a.jsonl]\n",
    )
    config = load({"num_epoch": "2", "num_steps_per_rollout": "4", "eval_prompt_data": ["b", "b.jsonl"]}, yaml_file).config
    assert (config.num_rollout, config.num_epoch, config.global_batch_size) == (None, 2, 2)
    assert [dataset.name for dataset in config.eval_datasets] == ["b"]


def quickstart() -> dict[str, Any]:
    return {
        "hf_checkpoint": "q/model",
        "prompt_data": "q.jsonl",
        "num_rollout": 20,
        "eval_prompt_data": ["held-out", "h.jsonl"],
        "lr": 1e-3,
    }


def test_quickstart_is_below_everything_else(tmp_path: Path, yaml_file: Path) -> None:
    resolved = load({"lr": "1e-4"}, quickstart=quickstart)
    config = resolved.config
    assert config.quickstart and (config.prompt_data, config.num_rollout, config.lr) == ("q.jsonl", 20, 1e-4)
    assert [resolved.origins[name] for name in ("prompt_data", "lr")] == ["quickstart", "flag --lr"]
    assert load({}, write(yaml_file, "lr: 2e-4"), quickstart=quickstart).config.lr == 2e-4
    assert load({"num_epoch": "1"}, quickstart=quickstart).config.num_rollout is None


@pytest.mark.parametrize("named", [{"hf_checkpoint": "m"}, {"prompt_data": "p.jsonl"}, {"eval_prompt_data": ["a", "a.jsonl"]}])
def test_no_quickstart_where_a_model_or_data_is_named(named: dict[str, Any]) -> None:
    assert not load(named, quickstart=quickstart).config.quickstart


def test_an_evaluation_of_checkpoints_with_the_file_of_their_run(yaml_file: Path) -> None:
    write(
        yaml_file, f"hf_checkpoint: base\nload: auto\nrun_dir: {yaml_file.parent}\nlr: 1e-5\neval_datasets: [{{name: a, path: a.jsonl}}]\n"
    )
    resolved = load({}, yaml_file, purpose="eval", model="run/checkpoints/step_2")
    config = resolved.config
    assert (config.hf_checkpoint, config.load, config.run_dir, config.num_rollout) == ("run/checkpoints/step_2", None, None, 0)
    assert (config.run_name, config.lr, [data.name for data in config.eval_datasets]) == ("checkpoints", 1e-5, ["a"])
    assert resolved.origins["hf_checkpoint"] == "flag --checkpoints"
    assert load({"run_dir": "x"}, yaml_file, purpose="eval").config.run_dir == "x"
    assert load({}, yaml_file).config.run_dir == str(yaml_file.parent)


THREE_LEVELS = "defaults: {top_k: 3, temperature: 0.5}\ndatasets: {a: {path: a.jsonl, temperature: 0}}\n"
AS_A_LIST = "defaults: {top_k: 3, temperature: 0.5}\ndatasets: [{name: a, path: a.jsonl, temperature: 0}]\n"


@pytest.mark.parametrize("text", [THREE_LEVELS, AS_A_LIST], ids=["mapping", "list"])
@pytest.mark.parametrize("where", ["root", "under eval", "in --config"])
def test_origins_of_dataset_settings(yaml_file: Path, tmp_path: Path, text: str, where: str) -> None:
    under = "eval:\n" + "".join(f"  {line}\n" for line in text.splitlines())
    file = yaml_file if where == "in --config" else tmp_path / "eval.yaml"
    write(yaml_file, "eval_top_p: 0.25\n")
    write(file, {"root": text, "under eval": under, "in --config": f"eval_top_p: 0.25\n{under}"}[where])
    flags = {"eval_max_response_len": "7"} | ({} if where == "in --config" else {"eval_config": str(file)})
    resolved = load(flags, yaml_file)
    expected = {
        "name": (f"dataset entry ({file})", "a"),
        "path": (f"dataset entry ({file})", "a.jsonl"),
        "temperature": (f"dataset entry ({file})", 0.0),
        "top_k": (f"eval.defaults ({file})", 3),
        "max_response_len": ("flag --eval-max-response-len", 7),
        "top_p": (f"file {yaml_file} (eval_top_p)", 0.25),
        "input_key": ("default (--input-key)", "input"),
        "n_samples_per_eval_prompt": ("default (--n-samples-per-eval-prompt)", 1),
        "min_eval_samples": ("default", None),
        "rm_type": ("default", None),
    }
    (dataset,) = resolved.config.eval_datasets
    assert {key: (resolved.origins[f"eval_datasets.a.{key}"], getattr(dataset, key)) for key in expected} == expected


def test_a_wrong_value_is_named_with_dataset_and_level(yaml_file: Path) -> None:
    write(yaml_file, "defaults: {apply_chat_template: 'true'}\ndatasets: {a: {path: a.jsonl}}\n")
    assert refusal({"eval_config": str(yaml_file)}).message == (
        "evaluation dataset 'a': apply_chat_template (eval.defaults): expected true or false, got 'true'"
    )
    write(yaml_file, "datasets: [{name: a, path: a.jsonl, stop: '</s>'}]\n")
    assert (
        refusal({"eval_config": str(yaml_file)}).message
        == "evaluation dataset 'a': stop: expected a list, each text that is not empty, got '</s>'"
    )
    write(yaml_file, "datasets: [{name: a, path: a.jsonl, stop: ['']}]\n")
    assert (
        refusal({"eval_config": str(yaml_file)}).message
        == "evaluation dataset 'a': stop: expected a list, each text that is not empty, got ''"
    )
    write(yaml_file, "datasets: [{name: 2024, path: a.jsonl}]\n")
    assert refusal({"eval_config": str(yaml_file)}).message.startswith("evaluation dataset 2024: name: expected text")


def test_a_dump_reads_back_equal_and_can_be_changed(yaml_file: Path) -> None:
    flags = {"rollout_batch_size": "4", "plugin": ["math"], "eval_prompt_data": ["a", "a.jsonl"], "rm_type": "math", "lr": "1e-6"}
    config = load(flags, quickstart=None).config
    write(yaml_file, dump_config(config))
    again = load({}, yaml_file).config
    assert {name: getattr(again, name) for name in RunConfig.model_fields if name != "eval_prompt_data"} == {
        name: getattr(config, name) for name in RunConfig.model_fields if name != "eval_prompt_data"
    }
    assert not again.eval_datasets[0].sets("rm_type")
    assert load({"rollout_batch_size": "2"}, yaml_file).config.global_batch_size == 16


def test_warnings_are_carried() -> None:
    assert load({"n_samples_per_prompt": "1"}).warnings[0].startswith("n_samples_per_prompt is 1")


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
