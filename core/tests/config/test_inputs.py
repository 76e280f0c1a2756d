"""Files that a configuration names: refused with what is missing, before anything is started."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from vime.config import extras
from vime.config.inputs import find_model
from vime.config.load import Resolved, dump_config, load_config
from vime.errors import CheckpointError, ConfigError, VimeError

NUM_GPUS = 0


def load(flags: dict[str, Any], **more: Any) -> Resolved:
    return load_config({key: str(value) if isinstance(value, Path) else value for key, value in flags.items()}, None, {}, **more)


def refusal(flags: dict[str, Any], kind: type[VimeError] = ConfigError, **more: Any) -> VimeError:
    with pytest.raises(kind) as refused:
        load(flags, **more)
    assert refused.value.exit_code == 2
    return refused.value


def test_a_model_and_data_are_enough(model_folder: Path, prompt_file: Path) -> None:
    load({"hf_checkpoint": model_folder, "prompt_data": prompt_file})
    load({"hf_checkpoint": model_folder, "prompt_data": f"{prompt_file}@[0:1]"})
    load({"hf_checkpoint": model_folder, "prompt_data": "hf:org/name:train"})
    load({"hf_checkpoint": model_folder, "data_source_path": "my.module.Source"})
    load({"hf_checkpoint": model_folder, "eval_prompt_data": [str(prompt_file)]}, purpose="eval")
    load({"hf_checkpoint": model_folder, "eval_prompt_data": [str(prompt_file)], "num_rollout": "0"})


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        (["config.json"], "it has no config.json"),
        (["model.safetensors"], "it has no weights (*.safetensors)"),
        (["tokenizer.json"], "it has no tokenizer (tokenizer.json)"),
        (["config.json", "model.safetensors", "tokenizer.json"], "no config.json and no weights (*.safetensors) and no tokenizer"),
    ],
)
def test_a_folder_that_is_not_a_model(model_folder: Path, prompt_file: Path, gone: list[str], message: str) -> None:
    for name in gone:
        (model_folder / name).unlink()
    error = refusal({"hf_checkpoint": model_folder, "prompt_data": prompt_file})
    assert error.message.startswith(f"--hf-checkpoint {model_folder}: not a model folder") and message in error.message


def test_models_that_are_not_there(model_folder: Path, prompt_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert "no such folder" in refusal({"hf_checkpoint": tmp_path / "none", "prompt_data": prompt_file}).message
    assert "a file, not the folder" in refusal({"hf_checkpoint": prompt_file, "prompt_data": prompt_file}).message
    error = refusal({"hf_checkpoint": "org/name", "prompt_data": prompt_file})
    assert "neither a folder nor a model in the local" in error.message and error.hint and "hf download org/name" in error.hint
    assert "--ref-load" in refusal({"hf_checkpoint": model_folder, "prompt_data": prompt_file, "ref_load": tmp_path / "none"}).message


def test_a_reference_model_has_the_vocabulary_and_shape_of_the_policy(model_folder: Path, prompt_file: Path, tmp_path: Path) -> None:
    given = {"hf_checkpoint": model_folder, "prompt_data": prompt_file, "ref_load": tmp_path / "reference", "kl_coef": 0.1}
    shutil.copytree(model_folder, tmp_path / "reference")
    load(given)
    policy = {"model_type": "llama", "vocab_size": 100, "hidden_size": 8}
    (model_folder / "config.json").write_text(json.dumps(policy))
    for key, value in {"vocab_size": 101, "hidden_size": 4, "model_type": "qwen3"}.items():
        (tmp_path / "reference" / "config.json").write_text(json.dumps(policy | {key: value}))
        error = refusal(given)
        assert error.message.endswith(f"its {key} is {value}, the policy's is {policy[key]}") and "--ref-load" in error.message
        assert error.hint and "--hf-checkpoint" in error.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, ": no such file"), ("{broken", " cannot be read: "), ("[1, 2]", " holds a list")],
)
def test_a_deepspeed_config_is_read_before_anything_is_started(
    model_folder: Path, prompt_file: Path, tmp_path: Path, content: str | None, message: str
) -> None:
    file = tmp_path / "deepspeed.json"
    if content is not None:
        file.write_text(content)
    error = refusal({"hf_checkpoint": model_folder, "prompt_data": prompt_file, "deepspeed_config": file})
    assert error.message.startswith(f"--deepspeed-config {file}{message}")
    file.write_text('{"zero_optimization": {}}')
    load({"hf_checkpoint": model_folder, "prompt_data": prompt_file, "deepspeed_config": file})


def test_an_engine_of_several_devices_gets_a_part_of_the_heads_each(
    model_folder: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: object())
    (model_folder / "config.json").write_text('{"model_type": "llama", "num_attention_heads": 6}')
    given = {"hf_checkpoint": model_folder, "prompt_data": prompt_file, "runtime": "ray"}
    load(given | {"engine_tp": "3"})
    error = refusal(given | {"engine_tp": "4"})
    assert error.message == f"--engine-tp 4 does not divide the 6 attention heads of {model_folder}"
    assert error.hint == "possible sizes are 1, 2, 3, 6"


def test_a_model_of_the_local_cache(model_folder: Path, tmp_path: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "hub" / "models--org--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    (repository / "snapshots").mkdir()
    model_folder.rename(repository / "snapshots" / "abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert find_model("org/name") == repository / "snapshots" / "abc"
    config = load({"hf_checkpoint": "org/name", "prompt_data": prompt_file}).config
    assert config.hf_checkpoint == str(repository / "snapshots" / "abc")


WHOLE = b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'


def safetensors(header: bytes = WHOLE, tensors: int = 8, length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + bytes(tensors)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{", "config.json is not JSON"),
        ("config.json", b"[]", "config.json holds no JSON object"),
        ("config.json", b"{}", "config.json has no 'model_type'"),
        ("tokenizer.json", b"", "tokenizer.json is not JSON"),
        ("tokenizer_config.json", b"\xff", "tokenizer_config.json is not JSON"),
        ("model.safetensors", b"", "model.safetensors is not a safetensors file, or cut off: it has 0 bytes"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1", "model.safetensors is not a safetensors file, or cut off"),
        ("model.safetensors", safetensors(b"[1, 2]", 0), "model.safetensors is not a safetensors file: its header cannot be read"),
        ("model.safetensors", safetensors(tensors=7), "model.safetensors is cut off: it has 76 bytes, and its header says 77"),
        ("model.safetensors", safetensors(tensors=9), "model.safetensors is too long"),
        ("model.safetensors.index.json", b'{"weight_map": {"w": "a.safetensors"}}', "1 of 1 weight files are missing, the first is a.s"),
    ],
)
def test_a_model_whose_files_are_broken(model_folder: Path, prompt_file: Path, name: str, content: bytes, message: str) -> None:
    (model_folder / name).write_bytes(content)
    error = refusal({"hf_checkpoint": model_folder, "prompt_data": prompt_file})
    assert error.message.startswith(f"--hf-checkpoint {model_folder}: {message}")


def test_a_model_whose_files_are_whole(model_folder: Path) -> None:
    (model_folder / "model.safetensors").write_bytes(safetensors())
    (model_folder / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model.safetensors"}}')
    assert find_model(str(model_folder)) == model_folder


def test_what_a_data_file_may_be_is_said_by_the_reader_of_data(model_folder: Path, prompt_file: Path) -> None:
    capitals = prompt_file.rename(prompt_file.with_suffix(".JSONL"))
    load({"hf_checkpoint": model_folder, "prompt_data": capitals})


def test_a_checkpoint_that_is_not_there(model_folder: Path, prompt_file: Path, tmp_path: Path) -> None:
    flags = {"hf_checkpoint": model_folder, "prompt_data": prompt_file}
    assert "no such folder" in refusal({**flags, "load": tmp_path / "none"}, CheckpointError).message
    load({**flags, "load": "auto"})


def test_a_checkpoint_is_a_model_too(model_folder: Path, prompt_file: Path) -> None:
    resolved = load({"load": model_folder, "prompt_data": prompt_file})
    assert (resolved.config.hf_checkpoint, resolved.origins["hf_checkpoint"]) == (str(model_folder), "flag --load")


def test_the_model_of_the_critic(model_folder: Path, prompt_file: Path, tmp_path: Path) -> None:
    flags = {"hf_checkpoint": model_folder, "prompt_data": prompt_file, "advantage_estimator": "ppo"}
    load({**flags, "lambd": "0.95", "value_clip": "0.5", "critic_lr": "1e-5", "num_critic_only_steps": "2"})
    assert refusal({**flags, "critic_load": tmp_path / "none"}).message == f"--critic-load {tmp_path / 'none'}: no such folder"
    critic = tmp_path / "step_3" / "critic"
    shutil.copytree(model_folder, critic)
    for file in critic.glob("tokenizer*"):
        file.unlink()  # a critic reads tokens only
    for folder in (critic, critic.parent):
        load({**flags, "critic_load": folder})
    (critic / "model.safetensors").write_bytes(b"broken")
    assert "model.safetensors is not a safetensors file" in refusal({**flags, "critic_load": critic.parent}).message


def test_only_one_of_model_and_data(model_folder: Path, prompt_file: Path) -> None:
    assert refusal({"hf_checkpoint": model_folder}).message == "no prompts: --prompt-data is not set, though a model is"
    assert refusal({"prompt_data": prompt_file}).message == "no model: --hf-checkpoint is not set, though data is"
    assert refusal({"hf_checkpoint": model_folder}, purpose="eval").message == "nothing to evaluate on"
    assert refusal({"hf_checkpoint": model_folder, "num_rollout": "0"}).message == "nothing to evaluate on"


def test_the_configuration_that_a_run_writes_is_read_back(model_folder: Path, prompt_file: Path, tmp_path: Path) -> None:
    flags = {"hf_checkpoint": model_folder, "prompt_data": prompt_file, "lambd": "1.0"}
    written = tmp_path / "config.yaml"  # every field with its value
    written.write_text(dump_config(load(flags).config))
    assert load_config({}, written, {}).config.lambd == 1.0


def test_no_rollouts_means_evaluation_only(model_folder: Path, prompt_file: Path) -> None:
    flags = {"hf_checkpoint": model_folder, "eval_prompt_data": [str(prompt_file)]}
    assert load({**flags, "num_rollout": "0"}).warnings == ()
    error = refusal({**flags, "num_rollout": "0", "skip_eval_before_train": True})
    assert error.message.startswith("--num-rollout 0 evaluates only")


def test_vime_eval_is_a_run_of_no_rollouts(model_folder: Path, prompt_file: Path) -> None:
    flags = {"hf_checkpoint": model_folder, "eval_prompt_data": [str(prompt_file)]}
    for given in ({}, {"num_rollout": "5"}, {"num_epoch": "3"}, {"skip_eval_before_train": True}):
        resolved = load({**flags, **given}, purpose="eval")
        assert (resolved.config.num_rollout, resolved.origins["num_rollout"], resolved.warnings) == (0, "derived", ())


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
