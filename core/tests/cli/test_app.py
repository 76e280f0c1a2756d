"""`vime` as its users call it: commands, exit codes, and what goes where."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vime.cli import ready
from vime.cli.app import COMMANDS, main
from vime.cli.help import of_training_only
from vime.config import extras
from vime.config.eval import EvalDatasetConfig
from vime.config.load import FIELDS
from vime.config.names import flag_of
from vime.config.run_config import SECTIONS
from vime.errors import PluginError
from vime.plugins.child import ChildTraceback

NUM_GPUS = 0

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    for name in ("config.json", "model.safetensors", "tokenizer.json", "train.jsonl"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (tmp_path / "train.jsonl").write_text('{"input": "1+1="}')
    return tmp_path


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_names_the_commands(words: list[str], capsys: Captured) -> None:
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and text in shown for name, text in COMMANDS.items())


@pytest.mark.parametrize("words", [["train", "--help"], ["train", "--lr", "1", "-h"], ["config", "show", "--help"]])
def test_help_of_a_command_shows_every_flag_whole(words: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert [name for name in FIELDS if f" {flag_of(name)}" not in shown] == []
    assert [section.__doc__ for section in SECTIONS if f" {section.__doc__} " not in shown] == []


@pytest.mark.parametrize("group", ["plugin", "config"])
def test_a_group_alone_shows_its_commands(group: str, capsys: Captured) -> None:
    assert main([group]) == 0
    shown = capsys.readouterr()
    assert "show" in shown.out and shown.err == ""


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["plugin", "show"], "vime plugin show --help"),
        (["plugin", "check", "a", "b"], "vime plugin check --help"),
        (["plugin", "nosuch"], "vime plugin --help"),
        (["config", "nosuch"], "vime config --help"),
    ],
)
def test_a_wrong_use_of_a_command_has_the_help_of_that_command(words: list[str], hint: str, capsys: Captured) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.splitlines()[1:] == [f"  hint: {hint} shows what there is"]


def test_help_of_eval_leaves_out_what_only_training_uses(capsys: Captured) -> None:
    assert main(["eval", "--help"]) == 0
    shown = capsys.readouterr().out
    for flag in ("--model", "--eval-prompt-data", "--eval-config", "--custom-rm-path", "--label-key", "--plugin", "--train-dtype"):
        assert f" {flag}" in shown or f", {flag}" in shown, flag
    for flag in ("--lr", "--advantage-estimator", "--save-interval", "--num-rollout", "--zero-stage", "--custom-loss-function-path"):
        assert f" {flag} " not in shown, flag
    assert of_training_only() <= set(FIELDS)


@pytest.mark.parametrize("command", ["train", "eval"])
def test_help_says_where_the_file_of_datasets_is_described(command: str, capsys: Captured) -> None:
    assert main([command, "--help"]) == 0
    assert "docs/evaluation.md describes the file of --eval-config" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["config"], ["plugin"], ["plugin", "list"], ["plugin", "show"], ["plugin", "explain"]])
def test_help_of_groups(words: list[str], capsys: Captured) -> None:
    assert main([*words, "--help"]) == 0
    assert "usage: " in capsys.readouterr().out.lower()


def test_version(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("vime 0.")


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["trian"], "error: unknown command 'trian'", "hint: did you mean 'train'?"),
        (["train", "--lrr", "1"], "error: unknown flag --lrr", "hint: did you mean --lr?"),
        (["train", "--lr", "x"], "error: --lr: expected a number of at least 0, got 'x'", ""),
        (["train", "--lr", "inf"], "error: --lr: expected a finite number of at least 0, got inf", ""),
        (["train", "--traceback=1"], "error: --traceback takes no value", "hint: write --traceback"),
        (["-v"], "error: unknown flag -v", "hint: vime --version"),
        (["--verbose"], "error: unknown flag --verbose", "hint: vime --help"),
        (["plugin", "lst"], "error: vime plugin lst: No such command 'lst'", "hint: vime plugin --help"),
        (["config", "shwo"], "error: vime config shwo: No such command 'shwo'", "hint: vime config --help"),
        (["train", "--prompt-data", "none.jsonl", "--model", "none"], "error: --hf-checkpoint none: no such folder", "hint: "),
    ],
)
def test_refusals(words: list[str], message: str, hint: str, capsys: Captured) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    first, *rest = shown.err.splitlines()
    assert shown.out == "" and first.startswith(message) and len(rest) <= 1
    assert not hint or rest[0].strip().startswith(hint)


def test_the_traceback_comes_when_asked_for(capsys: Captured) -> None:
    assert main(["train", "--lrr", "1", "--traceback"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.usefixtures("no_extras")
@pytest.mark.parametrize("command", ["train", "eval"])
def test_a_missing_extra(command: str, model_folder: Path, capsys: Captured) -> None:
    data = str(model_folder / "train.jsonl")
    assert main([command, "--model", str(model_folder), "--prompt-data", data, "--eval-prompt-data", data]) == 2
    first, hint = capsys.readouterr().err.splitlines()
    assert first.startswith("error: this needs torch, transformers, vllm, deepspeed")
    assert "pip install" not in first, "pip alone cannot install it"
    assert "uv pip install 'vime[" in hint


@pytest.mark.usefixtures("no_extras")
@pytest.mark.parametrize(
    ("words", "message"), [(["--plugin", "nosuch"], "nosuch"), (["--eval-prompt-data", "held", "none.jsonl"], "none.jsonl does not exist")]
)
def test_what_else_is_wrong_comes_before_a_missing_extra(words: list[str], message: str, model_folder: Path, capsys: Captured) -> None:
    assert main(["train", "--model", str(model_folder), "--prompt-data", str(model_folder / "train.jsonl"), *words]) == 2
    shown = capsys.readouterr().err
    assert message in shown and "needs torch" not in shown


def test_install_commands_name_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert extras.install_command("cpu").endswith(f"uv pip install 'vime[cpu]' --override - --python {sys.executable}")
    assert extras.install_command("cpu").startswith("echo 'torch==")
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert extras.install_command("gpu") == "uv pip install 'vime[gpu]'"


def test_config_show(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIME_PLUGINS", raising=False)
    (tmp_path / "run.yaml").write_text("lr: 1e-5\n")
    words = ["config", "show", "--config", str(tmp_path / "run.yaml"), "--model", "m", "--eval-prompt-data", "a", "a.jsonl"]
    assert main(words) == 0
    text = capsys.readouterr().out
    lines = {line.split(":")[0].strip(): line for line in text.splitlines()}
    assert lines["lr"].endswith(f"# file {tmp_path / 'run.yaml'}") and lines["hf_checkpoint"].endswith("# flag --hf-checkpoint")
    assert lines["eps_clip"] == "eps_clip: 0.2" and lines["global_batch_size"].endswith("# derived")

    assert main([*words, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["lr"] == {"value": 1e-5, "origin": f"file {tmp_path / 'run.yaml'}"}
    assert shown["eval_datasets"]["a"]["path"] == {"value": "a.jsonl", "origin": "flag --eval-prompt-data"}
    assert set(FIELDS) <= set(shown)


def test_config_show_names_the_level_of_every_setting_of_a_dataset(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "eval.yaml"
    file.write_text("eval:\n  defaults: {top_k: 3}\n  datasets: [{name: a b, path: a.jsonl, temperature: 0}]\n")
    words = ["config", "show", "--model", "m", "--eval-config", str(file), "--eval-top-p", "0.5"]
    expected = {
        "temperature": (0.0, f"dataset entry ({file})"),
        "top_k": (3, f"eval.defaults ({file})"),
        "top_p": (0.5, "flag --eval-top-p"),
        "max_response_len": (1024, "default (--rollout-max-response-len)"),
    }
    assert main(words) == 0
    _, _, text = capsys.readouterr().out.partition("# evaluation dataset a b\n")
    lines = {line.split(":")[0].strip(): line for line in text.splitlines()}
    for name, (value, origin) in expected.items():
        assert lines[name].split("#")[0].strip() == f"{name}: {value}" and lines[name].endswith(f"# {origin}")
    assert set(EvalDatasetConfig.model_fields) <= set(lines)

    assert main([*words, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["eval_datasets"]["a b"]
    assert {name: (shown[name]["value"], shown[name]["origin"]) for name in expected} == expected


def test_config_show_warns_of_plugins_that_a_run_would_refuse(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIME_PLUGINS", "nosuch")
    assert main(["config", "show", "--model", "m", "--set", "other.limit=1"]) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("warning: a run would be refused: there is no plugin 'nosuch'")
    assert second.startswith("warning: a run would be refused: settings are given for the plugin 'other', which is not enabled")


@pytest.mark.usefixtures("no_extras")
@pytest.mark.parametrize(("missing", "message"), [("torch.nn", "this needs torch"), ("zoo", "it does not import")])
def test_a_plugin_that_needs_the_extra_is_not_the_first_thing_to_say(
    missing: str, message: str, model_folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = PluginError("it does not import")
    error.__cause__ = ChildTraceback("", missing)
    monkeypatch.setattr(ready, "try_plugins", lambda config: error)
    assert main(["train", "--model", str(model_folder), "--prompt-data", str(model_folder / "train.jsonl")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_a_thread_of_a_plugin_does_not_hold_up_a_refusal() -> None:
    script = """
import sys, threading, time
from vime.cli.app import main
threading.Thread(target=time.sleep, args=(1000,)).start()
sys.argv[1:] = ["train", "--lrr"]
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("error: unknown flag --lrr")


def test_warnings_go_to_stderr(capsys: Captured) -> None:
    assert main(["config", "show", "--model", "m", "--n-samples-per-prompt", "1"]) == 0
    assert capsys.readouterr().err.startswith("warning: n_samples_per_prompt is 1")


def test_refusals_load_nothing_heavy(model_folder: Path) -> None:
    script = """
import sys
from vime.cli.app import main
assert main(["train", "--model", sys.argv[1], "--prompt-data", sys.argv[1] + "/none.jsonl"]) == 2
print(*[name for name in ("torch", "transformers", "vllm", "deepspeed", "numpy", "pyarrow", "typer", "rich") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script, str(model_folder)], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""


def test_python_dash_m() -> None:
    done = subprocess.run([sys.executable, "-m", "vime", "train", "--lrr", "1"], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown flag --lrr")


def test_a_closed_pipe_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    words = [sys.executable, "-m", "vime", "config", "show", "--model", "m"]
    done = subprocess.run(words, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
