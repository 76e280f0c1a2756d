"""The run folder: never overwritten, found again, and free of secrets."""

from __future__ import annotations

import datetime
import json
import os

import pytest
import yaml

from vime.config.run_config import RunConfig
from vime.errors import ConfigError
from vime.track.run_dir import RunDir

NUM_GPUS = 0

TODAY = f"{datetime.date.today():%Y-%m-%d}"


def _create(tmp_path, **values):
    return RunDir.create(RunConfig(**values), root=tmp_path / "runs")


def test_runs_of_one_name_and_day_get_numbers(tmp_path):
    folders = [_create(tmp_path, name="sums") for _ in range(3)]
    assert [folder.path.name.removeprefix(TODAY) for folder in folders] == ["-sums", "-sums-2", "-sums-3"]
    assert all(folder.path.is_dir() and not folder.continued for folder in folders)
    assert folders[0].checkpoints == folders[0].path / "checkpoints"
    assert _create(tmp_path, name="sums", save=str(tmp_path / "elsewhere")).checkpoints == tmp_path / "elsewhere"


def test_a_name_becomes_a_folder_name(tmp_path):
    assert _create(tmp_path, name="a/b: c").path.name == f"{TODAY}-a-b-c"
    assert _create(tmp_path, hf_checkpoint=str(tmp_path / "SmolLM2")).path.name == f"{TODAY}-SmolLM2"


def test_a_name_that_is_too_long_for_a_folder(tmp_path):
    with pytest.raises(ConfigError, match="cannot be made: File name too long") as refused:
        _create(tmp_path, name="a" * 300)
    assert "--name" in str(refused.value.hint)


@pytest.mark.parametrize("values", [{}, {"run_dir": "run"}])
def test_a_save_folder_that_cannot_be_made_is_refused_at_start(tmp_path, values):
    values = {key: str(tmp_path / value) for key, value in values.items()}
    with pytest.raises(ConfigError, match="the folder of the checkpoints /dev/null/x cannot be made") as refused:
        _create(tmp_path, save="/dev/null/x", **values)
    assert "--save" in str(refused.value.hint)
    assert not list(tmp_path.iterdir())


def test_newest_goes_by_date_then_number_and_keeps_names_apart(tmp_path):
    root = tmp_path / "runs"
    assert RunDir.newest("sums", root=root) is None
    for name in (
        "2026-01-09-sums",
        "2026-01-10-sums-9",
        "2026-01-10-sums-10",
        "2026-01-10-sums",
        "2026-02-01-sums-hard",
        "2026-02-01-other",
    ):
        (root / name).mkdir(parents=True)
    assert RunDir.newest("sums", root=root).path.name == "2026-01-10-sums-10"
    # The first run named "sums-11" and the eleventh named "sums" would have one folder name.
    RunDir(root / "2026-03-01-sums-11", root).path.mkdir()
    RunDir(root / "2026-03-01-sums-11", root).write_config({"name": "sums-11"})
    assert RunDir.newest("sums", root=root).path.name == "2026-01-10-sums-10"
    assert RunDir.newest("sums-11", root=root).path.name == "2026-03-01-sums-11"


def test_load_auto_continues_the_newest_run_that_has_checkpoints(tmp_path):
    first = _create(tmp_path, name="sums", load="auto")
    assert not first.continued
    (first.checkpoints / "step_3").mkdir(parents=True)
    again = _create(tmp_path, name="sums", load="auto")
    assert (again.path, again.continued) == (first.path, True)
    assert _create(tmp_path, name="sums").path != first.path
    assert _create(tmp_path, name="other", load="auto").path != first.path


def test_a_run_without_checkpoints_is_not_written_over(tmp_path):
    first = _create(tmp_path, name="sums", load="auto")
    first.metrics.write_text("precious\n")
    second = _create(tmp_path, name="sums", load="auto")
    assert second.path != first.path
    assert first.metrics.read_text() == "precious\n"


def test_run_dir_that_holds_a_run_is_continued_only_with_load(tmp_path):
    folder = tmp_path / "mine"
    run = _create(tmp_path, run_dir=str(folder))
    assert (run.path, run.continued) == (folder, False)
    run.write_config({})
    with pytest.raises(ConfigError, match="mine already holds a run") as caught:
        _create(tmp_path, run_dir=str(folder))
    assert "--load auto" in str(caught.value)
    assert _create(tmp_path, run_dir=str(folder), load="auto").continued


def test_a_folder_of_checkpoints_is_continued_only_with_load(tmp_path):
    save = tmp_path / "saved"
    assert _create(tmp_path, save=str(save)).checkpoints == save
    (save / "step_3").mkdir()
    with pytest.raises(ConfigError, match="saved already holds checkpoints") as caught:
        _create(tmp_path, save=str(save))
    assert "--load auto" in str(caught.value)
    assert _create(tmp_path, save=str(save), load="auto").checkpoints == save


def test_run_dir_with_other_files_is_fine(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "log.txt").write_text("")
    assert not _create(tmp_path, run_dir=str(tmp_path / "mine")).continued


def test_run_dir_that_is_a_file(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(ConfigError, match="mine is a file, not a folder"):
        _create(tmp_path, run_dir=str(tmp_path / "mine"))
    with pytest.raises(ConfigError, match="cannot be made"):
        _create(tmp_path, run_dir=str(tmp_path / "mine" / "below"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_run_dir_that_is_read_only(tmp_path):
    (tmp_path / "mine").mkdir(mode=0o500)
    with pytest.raises(ConfigError, match="mine is read-only"):
        _create(tmp_path, run_dir=str(tmp_path / "mine"))


def test_config_yaml_has_every_value_and_no_secret(tmp_path):
    run = _create(tmp_path, run_dir=str(tmp_path / "mine"))
    settings = {"api_key": "sk-1", "model": "m", "nested": [{"hf_token": "t", "password": None}]}
    config = RunConfig(input_key="question", rm_url="https://me:pass@host/score", plugin_settings={"judge": settings})
    run.write_config(config)
    text = (run.path / "config.yaml").read_text()
    values = yaml.safe_load(text)
    assert values["input_key"] == "question"
    assert set(RunConfig.model_fields) == set(values)
    assert values["rm_url"] == "https://***@host/score"
    assert values["plugin_settings"] == {"judge": {"api_key": "***", "model": "m", "nested": [{"hf_token": "***", "password": None}]}}
    assert values["max_tokens_per_gpu"] == RunConfig().max_tokens_per_gpu


def test_the_lock_is_json(tmp_path):
    run = _create(tmp_path, run_dir=str(tmp_path / "mine"))
    run.write_lock({"plugins": [{"name": "math", "settings": {"token": "x"}}]})
    assert json.loads((run.path / "plugins.lock.json").read_text()) == {"plugins": [{"name": "math", "settings": {"token": "***"}}]}
    assert sorted(path.name for path in run.path.iterdir()) == ["plugins.lock.json"]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
