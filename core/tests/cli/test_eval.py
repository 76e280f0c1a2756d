"""`vime eval --checkpoints`: what the paths name, what is refused before anything is built, and the table."""

from __future__ import annotations

import contextlib
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vime import loop
from vime.cli.app import main
from vime.cli.evaluate import score_table
from vime.cli.flags import parse_flags
from vime.cli.tables import plain_table
from vime.config.eval import EvalDatasetConfig
from vime.config.load import Resolved
from vime.config.run_config import RunConfig
from vime.errors import CheckpointError, ConfigError
from vime.plugins.manager import PluginManager
from vime.runtime.evaluation import Evaluation
from vime.runtime.models import find_models, in_one_engine
from vime.runtime.run import Run
from vime.track.console import Console
from vime.train.checkpoint import save_checkpoint

NUM_GPUS = 0


def write_model(folder: Path, *, value: int = 0, dtype: str = "F32", hidden: int = 4, template: str = "t") -> None:
    """A model folder that is whole by its headers."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "qwen3", "hidden_size": hidden, "transformers_version": str(value)}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(template)
    header = json.dumps({"w": {"dtype": dtype, "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes([value] * 4))


def write_checkpoint(root: Path, step: int) -> Path:
    return save_checkpoint(root, step, lambda folder: write_model(folder, value=step), {"rollout_id": step})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with the checkpoints of rollouts 2, 4 and 10."""
    for step in (10, 2, 4):
        write_checkpoint(tmp_path / "run" / "checkpoints", step)
    return tmp_path / "run"


@pytest.mark.parametrize("given", ["run", "run/checkpoints", "run/"])
def test_a_folder_means_all_checkpoints_in_it_oldest_first(run: Path, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)
    models = find_models([given])
    assert [(model.name, model.step) for model in models] == [("step_2", 2), ("step_4", 4), ("step_10", 10)]
    assert [len(alike) for alike in in_one_engine(models)] == [3]


def test_checkpoints_models_and_folders_in_the_order_given_each_once(run: Path) -> None:
    write_model(run.parent / "base")
    models = find_models([str(run.parent / "base"), str(run / "checkpoints" / "step_4"), str(run)])
    assert [model.name for model in models] == ["base", *(f"run/checkpoints/step_{step}" for step in (4, 2, 10))]
    assert [model.step for model in models] == [0, 1, 2, 3]  # a model has no rollouts


def test_a_link_and_a_model_of_the_hub_are_called_as_they_were_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(run.parent / "hub"))
    repository = run.parent / "hub" / "models--org--base"
    write_model(repository / "snapshots" / "abc123")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")
    (run / "best").symlink_to(run / "checkpoints" / "step_4")
    assert [model.name for model in find_models(["org/base", str(run / "best")])] == ["org/base", "best"]
    assert [model.name for model in find_models(["org/base"])] == ["org/base"]


def test_what_differs_in_more_than_its_weights_gets_an_engine_of_its_own(tmp_path: Path) -> None:
    kinds: dict[str, Any] = {"a": {}, "b": {"value": 1}, "c": {"hidden": 8}, "d": {}, "e": {"dtype": "I32"}, "f": {"template": "other"}}
    for name, options in kinds.items():
        write_model(tmp_path / name, **options)
    groups = in_one_engine(find_models([str(tmp_path / name) for name in kinds]))
    assert [[model.name for model in alike] for alike in groups] == [["a", "b"], ["c"], ["d"], ["e"], ["f"]]


def test_weights_that_cannot_be_read_without_loading_never_share_an_engine(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_model(tmp_path / name)
        (tmp_path / name / "model.safetensors").rename(tmp_path / name / "pytorch_model.bin")
    assert len(in_one_engine(find_models([str(tmp_path / "a"), str(tmp_path / "b")]))) == 2


def test_every_broken_checkpoint_is_named(run: Path) -> None:
    (run / "checkpoints" / "step_4" / "tokenizer.json").write_text("{ }")
    (run / "checkpoints" / "step_10" / "manifest.json").unlink()
    (run / "empty").mkdir()
    with pytest.raises(CheckpointError) as refused:
        find_models([str(run), str(run / "empty"), str(run / "none")])
    message = refused.value.message
    assert message.startswith("--checkpoints: ") and message.count("; also ") == 3
    assert f"{run}/checkpoints/step_4 is not a whole checkpoint: tokenizer.json has 3 bytes, expected 2" in message
    assert f"{run}/checkpoints/step_10 is not a whole checkpoint: it has no manifest.json" in message
    assert f"{run}/empty: neither a model nor a checkpoint, and no checkpoint is in it" in message
    assert f"{run}/none: no such folder" in message


def test_a_broken_checkpoint_is_refused_before_anything_is_built(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run / "checkpoints" / "step_10" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    assert main(["eval", "--plugin", "math", "--checkpoints", str(run)]) == 2
    output = capsys.readouterr()
    assert "step_10 is not a whole checkpoint: model.safetensors is corrupted" in output.err and output.out == ""
    assert [path.name for path in run.parent.iterdir()] == ["run"]


@pytest.mark.parametrize("flag", ["--hf-checkpoint", "--model", "--load"])
def test_two_ways_to_name_a_model_are_refused(run: Path, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", flag, "m", "--checkpoints", str(run)]) == 2
    assert "both name what to evaluate" in capsys.readouterr().err


def test_several_models_after_hf_checkpoint_hint_at_the_flag_for_them() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_flags(["--hf-checkpoint", "a", "b"], lists=("checkpoints",))
    assert refused.value.hint == "several models: --checkpoints PATH PATH ..."
    assert parse_flags(["--checkpoints", "a", "b", "--checkpoints=c"], lists=("checkpoints",)).lists == {"checkpoints": ["a", "b", "c"]}


@pytest.mark.parametrize(("is_short", "code"), [(False, 0), (True, 1)])
def test_too_few_answers_end_vime_eval_with_exit_code_1(run: Path, is_short: bool, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Evaluates:
        """Stands for the runtime, whose engine is not here."""

        plugins = PluginManager()
        console = Console()
        run_dir = None
        engine = None

        def evaluate(self) -> Evaluation:
            return replace(evaluation(0), is_short=is_short)

        def finish(self) -> None: ...

    monkeypatch.setattr(Run, "start", lambda *_, **__: contextlib.nullcontext(Evaluates()))
    resolved = Resolved(RunConfig(eval_datasets=[EvalDatasetConfig(name="a", path="a.jsonl")]), {})
    seen: list[Evaluation] = []
    assert loop.evaluate(resolved, seen.append) == code
    (model,) = find_models([str(run / "checkpoints" / "step_2")])
    assert loop.evaluate_each(resolved, [model], lambda _, result: seen.append(result)) == code
    assert [result.is_short for result in seen] == [is_short] * 2


def evaluation(step: int, **metrics: float) -> Evaluation:
    full = {f"eval/{name.replace('__', '-').replace('_at_', '@')}": value for name, value in metrics.items()}
    lengths = {"eval/a/response_len/mean": 7.25, "eval/a-truncated_ratio": 0.5}
    return Evaluation(step, ["a", "empty"], {**full, **lengths}, False, "runs/x")


def test_the_table() -> None:
    first, second = evaluation(0, a=0.5, a__pass_at_1=0.5, a__pass_at_16=0.75), evaluation(1, a=-0.25, a__pass_at_1=0.25)
    header, rows = score_table([("step_2", first), ("step_10", second)])
    assert plain_table(header, rows, numbers=header[2:]) == (
        "checkpoint  dataset   reward  pass@1  pass@16  truncated  length\n"
        "step_2      a         0.5000  0.5000   0.7500     0.5000     7.2\n"
        "step_2      empty          -       -        -          -       -\n"
        "step_10     a        -0.2500  0.2500        -     0.5000     7.2\n"
        "step_10     empty          -       -        -          -       -\n"
    )


def test_failed_answers_get_a_column() -> None:
    result = evaluation(0, a=0.5)
    result.metrics["eval/a/failed_samples"] = 3
    header, rows = score_table([("m", result)])
    assert header[-1] == "failed" and [row[-1] for row in rows] == ["3", "0"]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
