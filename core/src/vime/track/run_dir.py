"""The folder of a run: where everything that it leaves behind goes."""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.errors import ConfigError
from vime.redact import Redactor


@dataclass(frozen=True)
class RunDir:
    """`runs/<date>-<name>/`, or what --run-dir names."""

    path: Path
    checkpoints: Path
    """`--save`, else `checkpoints/` in the run folder."""
    continued: bool = False
    """The folder already held this run."""

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @classmethod
    def create(cls, config: Any, *, root: Path = Path("runs")) -> RunDir:
        """The folder of this run; nothing that exists is overwritten.

        A folder that holds a run is continued under --load only. Without --run-dir, `--load auto` continues the newest
        folder of the run's name that has checkpoints; otherwise a new one is made. Raises ConfigError.
        """
        cls.check(config)
        save = getattr(config, "save", None)
        if save is not None:
            _make(Path(save), "--save", "the folder of the checkpoints")
        critic_save = getattr(config, "critic_save", None)
        if critic_save is not None:
            _make(Path(critic_save), "--critic-save", "the folder of the critic")
        if config.run_dir is not None:
            path = Path(config.run_dir)
            holds_run = _holds_run(path)
            _make(path)
            return cls(path, Path(save) if save else path / "checkpoints", continued=holds_run)
        name = _folder_name(config.run_name)
        if config.load == "auto":
            newest = cls.newest(name, root=root, save=save)
            if newest is not None and newest.checkpoints.is_dir() and any(newest.checkpoints.iterdir()):
                return newest
        path = _make_new(root, f"{datetime.date.today():%Y-%m-%d}-{name}")
        return cls(path, Path(save) if save else path / "checkpoints")

    @staticmethod
    def check(config: Any) -> None:
        """Raise ConfigError for folders that `create` would refuse because of what is in them. Makes nothing."""
        if config.load is not None:
            return
        save = getattr(config, "save", None)
        if save is not None and any(Path(save).glob("step_*")):
            raise ConfigError(f"{save} already holds checkpoints", hint="continue their run with --load auto, or choose another --save")
        if config.run_dir is not None and _holds_run(Path(config.run_dir)):
            raise ConfigError(
                f"{Path(config.run_dir)} already holds a run", hint="continue it with --load auto, or choose another --run-dir"
            )

    @classmethod
    def newest(cls, name: str, *, root: Path = Path("runs"), save: str | Path | None = None) -> RunDir | None:
        """The run folder of that name that was made last; None where there is none."""
        pattern = re.compile(rf"(\d{{4}}-\d\d-\d\d)-{re.escape(_folder_name(name))}(?:-(\d+))?")
        found = []
        for path in root.iterdir() if root.is_dir() else ():
            match = pattern.fullmatch(path.name)
            if match and path.is_dir() and _is_named(path, name):
                found.append((match[1], int(match[2] or 1), path))
        if not found:
            return None
        path = max(found)[2]
        return cls(path, Path(save) if save else path / "checkpoints", continued=True)

    def write_config(self, resolved: Any) -> None:
        """config.yaml: every value of a RunConfig (or of what holds one as `.config`, or of a dict); secrets are masked."""
        import yaml

        config = getattr(resolved, "config", resolved)
        values = config if isinstance(config, Mapping) else config.model_dump(mode="json")
        plain = Redactor.of(os.environ, values).data(values)
        _write(self.path / "config.yaml", yaml.safe_dump(plain, sort_keys=True, allow_unicode=True, default_flow_style=False))

    def write_lock(self, lock: Mapping[str, Any]) -> None:
        """plugins.lock.json: the plugins of the run, with distributions, versions and settings."""
        plain = Redactor.of(os.environ, lock).data(lock)
        _write(self.path / "plugins.lock.json", json.dumps(plain, indent=2, sort_keys=True) + "\n")

    def write_record(self, resolved: Any, lock: Mapping[str, Any]) -> None:
        """What is run, for whoever repeats it: config.yaml and plugins.lock.json."""
        self.write_config(resolved)
        self.write_lock(lock)


def _holds_run(path: Path) -> bool:
    return any((path / name).exists() for name in ("config.yaml", "metrics.jsonl", "plugins.lock.json", "checkpoints"))


def _make(path: Path, flag: str = "--run-dir", what: str = "the run folder") -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigError(f"{path} is a file, not a folder", hint=f"choose another {flag}") from None
    except OSError as error:
        raise ConfigError(
            f"{what} {path} cannot be made: {error.strerror}", hint=f"choose a folder that you may write to: {flag} DIR"
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"{what} {path} is read-only", hint=f"choose a folder that you may write to: {flag} DIR")


def _make_new(root: Path, stem: str) -> Path:
    _make(root)
    number = 1
    while True:
        path = root / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        except OSError as error:
            raise ConfigError(
                f"the run folder {path} cannot be made: {error.strerror}", hint="choose another name, --name, or a folder, --run-dir"
            ) from None
        else:
            return path


def _folder_name(name: str | None) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name or "run").strip("-.") or "run"


def _is_named(path: Path, name: str) -> bool:
    """Tell the second run `a` (folder a-2) from the first run `a-2`: the configuration knows."""
    import yaml

    try:
        config = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return True
    return not isinstance(config, dict) or _folder_name(config.get("name")) == _folder_name(name)


def _write(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)
