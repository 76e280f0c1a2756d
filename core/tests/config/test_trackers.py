"""--track, --tensorboard and --wandb together, and packages that are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vime.cli.flags import parse_flags
from vime.config import extras, trackers
from vime.config.extras import require_trackers
from vime.config.load import dump_config, load_config
from vime.config.run_config import RunConfig
from vime.errors import ConfigError, MissingExtraError

NUM_GPUS = 0


def load(words: str, file: Path | None = None) -> RunConfig:
    return load_config(parse_flags(words.split()).values, file, {}, check_files=False).config


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("", ["tensorboard"]),
        ("--no-tensorboard", []),
        ("--track wandb", ["wandb"]),
        ("--track tensorboard,wandb", ["tensorboard", "wandb"]),
        ("--track=mlflow,trackio,mlflow", ["mlflow", "trackio"]),
        ("--track mlflow trackio --track wandb", ["mlflow", "trackio", "wandb"]),
        ("--wandb", ["tensorboard", "wandb"]),
        ("--use-wandb --no-tensorboard", ["wandb"]),
        ("--track mlflow --wandb --tensorboard", ["mlflow", "tensorboard", "wandb"]),
    ],
)
def test_where_metrics_go(words: str, names: list[str], tmp_path: Path) -> None:
    config = load(words)
    assert config.track == names
    assert (config.tensorboard, config.wandb) == ("tensorboard" in names, "wandb" in names)
    written = tmp_path / "config.yaml"
    written.write_text(dump_config(config))
    assert load("", written).track == names


def test_names_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    for text in ("track: wandb,mlflow", "track: [wandb, mlflow]"):
        file.write_text(text)
        assert load("", file).track == ["wandb", "mlflow"]
    file.write_text("track: []")
    assert load("", file).track == []
    file.write_text("wandb_project: sums\nuse_wandb: true")
    assert (load("", file).track_project, load("", file).wandb) == ("sums", True)


def test_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"--track: expected a list, each one of tensorboard, wandb, mlflow, trackio, got 'comet'"):
        load("--track comet")
    with pytest.raises(ConfigError, match="--track names wandb, and --no-wandb leaves it out"):
        load("--track wandb --no-wandb")
    with pytest.raises(ConfigError, match="--track names tensorboard, and --no-tensorboard leaves it out"):
        load("--no-tensorboard --track tensorboard")


def test_upstreams_flag_for_the_project() -> None:
    assert load("--use-wandb --wandb-project sums").track_project == "sums"


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio", "tensorboard"])
def test_a_missing_package_is_refused_with_its_pip_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    with pytest.raises(MissingExtraError, match=rf"--track {name} needs the package {name}, .*pip install 'vime\[{name}\]'") as caught:
        require_trackers([name])
    assert caught.value.exit_code == 2
    assert f"uv pip install 'vime[{name}]'" in str(caught.value.hint)


def test_a_folder_of_that_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb_run_folder").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(trackers.PACKAGES, "wandb", "wandb_run_folder")
    with pytest.raises(MissingExtraError, match="wandb_run_folder"):
        require_trackers(["wandb"])


def test_it_is_refused_before_a_run_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    from vime.cli import ready

    def missing(names: Any) -> None:
        raise MissingExtraError(",".join(names))

    monkeypatch.setattr(ready, "require_trackers", missing)
    for words, names in (("--track wandb,mlflow", "wandb,mlflow"), ("--wandb --no-tensorboard", "wandb"), ("", "")):
        with pytest.raises(MissingExtraError) as caught:
            ready.require_ready(load(words))
        assert caught.value.message == names


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
