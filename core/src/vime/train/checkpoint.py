"""Checkpoints that are whole or absent: written aside, checksummed, flushed, and renamed into place.

Layout: `<root>/step_<N>/` with the files that the writer wrote and `manifest.json`, which lists every file with its
size and sha256 beside what the caller put in, and has a checksum of its own. A directory without a matching manifest is
not a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vime.errors import CheckpointError

MANIFEST = "manifest.json"
FORMAT = "vime-checkpoint-1"
STEP_NAME = re.compile(r"step_(\d+)")
ASIDE = ".writing-"


def save_checkpoint(root: Path, step: int, write: Callable[[Path], None], manifest: dict[str, Any], *, keep: int | None = None) -> Path:
    """Let `write` fill a directory and make it `root/step_<step>`, all or nothing.

    `manifest` (plain JSON) is kept under "contents" of manifest.json. An older checkpoint of the same step is
    replaced. With `keep`, only the newest `keep` checkpoints stay. Returns the checkpoint's path.
    """
    aside, target = root / f"{ASIDE}step_{step}", root / f"step_{step}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        remove_leftovers(root)
        aside.mkdir()
        write(aside)
        if (aside / MANIFEST).exists():
            raise CheckpointError(f"the checkpoint writer wrote a {MANIFEST} of its own", hint="pass its contents as `manifest`")
        files = {_relative(path, aside): _describe(path) for path in _files(aside)}
        entries = {"format": FORMAT, "step": step, "files": files, "contents": manifest}
        text = json.dumps({**entries, "sha256": _sha256_of(entries)}, indent=1, allow_nan=False)
        (aside / MANIFEST).write_text(text + "\n", encoding="utf-8")
        _sync_tree(aside)
        if target.exists():
            retired = root / f"{ASIDE}retired-step_{step}"
            target.rename(retired)
            aside.rename(target)
            shutil.rmtree(retired)
        else:
            aside.rename(target)
        _fsync(root)
    except Exception as error:
        if not _is_write_failure(error):
            raise
        shutil.rmtree(aside, ignore_errors=True)  # half a checkpoint holds the space that its successor needs
        raise CheckpointError(
            f"the checkpoint of step {step} could not be written to {root}: {str(error).splitlines()[0]}",
            hint="check space and permissions",
        ) from error
    if keep is not None:
        prune(root, keep)
    return target


def export_critic(config: Any, checkpoint: Path) -> None:
    """Under `--critic-save`, copy the critic's model of a checkpoint there, as whole or absent as the checkpoint itself."""
    if config.critic_save is None or not (checkpoint / "critic").is_dir():
        return

    def copy(aside: Path) -> None:
        without_optimizer = shutil.ignore_patterns("deepspeed")
        shutil.copytree(checkpoint / "critic", aside, ignore=without_optimizer, dirs_exist_ok=True)

    step = int(checkpoint.name.rpartition("_")[2])
    save_checkpoint(Path(config.critic_save), step, copy, {"from": str(checkpoint)}, keep=config.keep_checkpoints)


def _is_write_failure(error: Exception) -> bool:
    """Whether a file could not be written, on a full disk for example: safetensors and torch have errors of their own for it."""
    torch_says = ("inline_container", "iostream error", "PytorchStreamWriter")
    return isinstance(error, OSError) or type(error).__name__ == "SafetensorError" or any(words in str(error) for words in torch_says)


@dataclass(frozen=True)
class Found:
    """The newest whole checkpoint below a folder."""

    path: Path | None
    """None where there is none."""
    contents: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the writer put into its manifest."""
    passed_over: dict[Path, str] = field(default_factory=dict[Path, str])
    """Newer checkpoints that are not whole, with what is wrong with each."""


def find_checkpoint(root: Path) -> Found:
    """The newest whole checkpoint under `root`. Every byte of it is read once, and so are those of damaged newer ones."""
    passed_over: dict[Path, str] = {}
    for path in _steps(root):
        complaint = problems(path)
        if complaint is None:
            return Found(path, contents(path), passed_over)
        passed_over[path] = complaint
    return Found(None, passed_over=passed_over)


def read_manifest(path: Path) -> dict[str, Any]:
    """Verify every file of a checkpoint and return what the writer put into its manifest. Raises CheckpointError."""
    complaint = problems(path)
    if complaint:
        raise CheckpointError(
            f"{path} is not a whole checkpoint: {complaint}", hint="use an earlier one, or --load auto, which takes the last whole one"
        )
    return contents(path)


def problems(path: Path) -> str | None:
    """What is wrong with a checkpoint, in a line, or None. Reads every byte of it."""
    if not path.is_dir():
        return "the folder does not exist"
    if not (path / MANIFEST).is_file():
        return f"it has no {MANIFEST} (another program's checkpoint, or one that was not finished)"
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files = dict(manifest["files"])
        if manifest["format"] != FORMAT:
            return f"its format is {manifest['format']!r}, this version of vime reads {FORMAT!r}"
        if not {"step", "contents", "sha256"} <= manifest.keys():
            return f"{MANIFEST} is incomplete"
        if manifest.pop("sha256") != _sha256_of(manifest):
            return f"{MANIFEST} is corrupted: its entries do not have the sha256 that it states"
    except (ValueError, KeyError, TypeError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    for name, expected in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != expected["size"]:
            return f"{name} has {file.stat().st_size} bytes, expected {expected['size']}"
        if _sha256(file) != expected["sha256"]:
            return f"{name} is corrupted: its sha256 is not the one in {MANIFEST}"
    extra = sorted({_relative(file, path) for file in _files(path)} - files.keys() - {MANIFEST})
    return f"{extra[0]} does not belong to it" if extra else None


def set_aside_later(root: Path, step: int) -> list[Path]:
    """Rename the checkpoints of later steps to `superseded-step_<N>`, where no run looks for them. Returns the new paths.

    A run that goes on from `step` makes its own ones of these: what is left of another course, or damaged, must not be
    taken for newer than those, by `find_checkpoint` or by `prune`. Leftovers of an interrupted save go too.
    """
    remove_leftovers(root)
    moved: list[Path] = []
    for path in _steps(root):
        match = STEP_NAME.search(path.name)
        assert match is not None, "_steps gives such names only"
        if int(match[1]) > step:
            stem, number = f"superseded-{match[0]}", 1
            while (target := root / (stem if number == 1 else f"{stem}-{number}")).exists():
                number += 1
            moved.append(path.rename(target))
    return moved


def prune(root: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints."""
    for path in _steps(root)[max(1, keep) :]:
        doomed = root / f"{ASIDE}old-{path.name}"
        path.rename(doomed)
        shutil.rmtree(doomed)


def remove_leftovers(root: Path) -> None:
    """Delete what an interrupted save left behind. A retired checkpoint whose successor never came goes back to its place."""
    for path in root.glob(f"{ASIDE}*"):
        name = path.name.removeprefix(f"{ASIDE}retired-")
        if name != path.name and not (root / name).exists():
            path.rename(root / name)
        else:
            shutil.rmtree(path)


def _steps(root: Path) -> list[Path]:
    """Checkpoint folders, newest first. One that was moved aside and whose successor never came counts."""
    if not root.is_dir():
        return []
    found: dict[int, Path] = {}
    for path in root.iterdir():
        match = STEP_NAME.fullmatch(path.name.removeprefix(f"{ASIDE}retired-"))
        if match and path.is_dir() and (path.name == match[0] or int(match[1]) not in found):
            found[int(match[1])] = path
    return [found[step] for step in sorted(found, reverse=True)]


def contents(path: Path) -> dict[str, Any]:
    """What the writer of a checkpoint put into its manifest, without a look at the files."""
    return json.loads((path / MANIFEST).read_text(encoding="utf-8"))["contents"]


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _relative(path: Path, directory: Path) -> str:
    return path.relative_to(directory).as_posix()


def _describe(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": _sha256(path)}


def _sha256_of(entries: dict[str, Any]) -> str:
    """Of plain JSON data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_tree(directory: Path) -> None:
    for path in directory.rglob("*"):
        _fsync(path)
    _fsync(directory)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
