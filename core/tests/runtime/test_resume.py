"""Which checkpoint a run goes on from, and what is refused before anything heavy is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vime.config.run_config import RunConfig
from vime.errors import CheckpointError
from vime.runtime.resume import find_resume_point
from vime.train.checkpoint import save_checkpoint

NUM_GPUS = 0

MODEL = {"model_type": "qwen3", "vocab_size": 80, "hidden_size": 64, "num_hidden_layers": 2, "transformers_version": "5.0"}


def write_model(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODEL | changes))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with checkpoints of the steps 1 to 3."""
    for step in (1, 2, 3):
        save_checkpoint(tmp_path / "run" / "checkpoints", step, write_model, {"rollout_id": step})
    return tmp_path / "run"


def config_of(run: Path | None = None, **fields: Any) -> RunConfig:
    return RunConfig(run_dir=None if run is None else str(run), **fields)


def damage(checkpoint: Path) -> Path:
    (checkpoint / "config.json").write_text("{}")
    return checkpoint


def test_without_load_a_run_starts_anew(run: Path) -> None:
    assert find_resume_point(config_of(run)) == (None, {})


def test_auto_takes_the_newest_and_passes_over_what_is_damaged(run: Path) -> None:
    point, passed_over = find_resume_point(config_of(run, load="auto"))
    assert point is not None and point.path.name == "step_3" and point.manifest == {"rollout_id": 3} and passed_over == {}
    broken = damage(run / "checkpoints" / "step_3")
    point, passed_over = find_resume_point(config_of(run, load="auto"))
    assert point is not None and point.manifest == {"rollout_id": 2}
    assert passed_over == {broken: f"config.json has 2 bytes, expected {len(json.dumps(MODEL))}"}


def test_auto_names_the_damaged_ones_where_no_whole_one_is_left(run: Path) -> None:
    for step in (1, 2, 3):
        damage(run / "checkpoints" / f"step_{step}")
    point, passed_over = find_resume_point(config_of(run, load="auto"))
    assert point is None and len(passed_over) == 3


def test_auto_without_a_checkpoint_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_resume_point(config_of(tmp_path / "none", load="auto")) == (None, {})
    assert find_resume_point(config_of(load="auto", name="none")) == (None, {})


def test_auto_looks_where_checkpoints_are_saved(run: Path) -> None:
    point, _ = find_resume_point(config_of(load="auto", save=str(run / "checkpoints")))
    assert point is not None and point.manifest == {"rollout_id": 3}


@pytest.mark.parametrize("below", ["", "checkpoints", "checkpoints/step_2"])
def test_a_folder_may_be_a_run_its_checkpoints_or_one_of_them(run: Path, below: str) -> None:
    point, _ = find_resume_point(config_of(load=str(run / below)))
    assert point is not None and point.path.name == ("step_2" if "step" in below else "step_3")


def test_a_damaged_newer_one_in_a_named_folder_is_passed_over_too(run: Path) -> None:
    broken = damage(run / "checkpoints" / "step_3")
    point, passed_over = find_resume_point(config_of(load=str(run)))
    assert point is not None and point.path.name == "step_2" and list(passed_over) == [broken]


def test_a_named_checkpoint_must_be_whole(run: Path) -> None:
    with pytest.raises(CheckpointError, match=r"step_3 is not a whole checkpoint: config\.json has 2 bytes"):
        find_resume_point(config_of(load=str(damage(run / "checkpoints" / "step_3"))))


def test_a_folder_without_a_whole_one_says_what_is_wrong_with_each(run: Path, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        damage(run / "checkpoints" / f"step_{step}")
    with pytest.raises(CheckpointError, match=r"no whole checkpoint there; step_3: config\.json has 2 bytes"):
        find_resume_point(config_of(load=str(run)))
    with pytest.raises(CheckpointError, match="no whole checkpoint there") as caught:
        find_resume_point(config_of(load=str(write_model(tmp_path / "plain"))))
    assert "--hf-checkpoint" in str(caught.value)


@pytest.mark.parametrize(("key", "value"), [("vocab_size", 128), ("model_type", "llama"), ("hidden_size", 32)])
def test_a_checkpoint_of_another_model_is_refused(run: Path, tmp_path: Path, key: str, value: Any) -> None:
    other = write_model(tmp_path / "other", **{key: value})
    point, _ = find_resume_point(config_of(run, load="auto"))
    assert point is not None
    with pytest.raises(CheckpointError, match=f"step_3 is of another model: its {key} is {MODEL[key]}, that of --hf-checkpoint {value}"):
        point.check_model(config_of(hf_checkpoint=str(other)))


def test_the_same_shape_under_another_version_is_fine(run: Path, tmp_path: Path) -> None:
    point, _ = find_resume_point(config_of(run, load="auto"))
    assert point is not None
    point.check_model(config_of(hf_checkpoint=str(write_model(tmp_path / "same", transformers_version="9", dtype="bfloat16"))))
    point.check_model(config_of(hf_checkpoint="org/on-the-hub"))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
