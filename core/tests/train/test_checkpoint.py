"""Checkpoints are whole or absent, whatever happens while they are written."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from vime.errors import CheckpointError
from vime.train.checkpoint import MANIFEST, Found, export_critic, find_checkpoint, read_manifest, save_checkpoint, set_aside_later

NUM_GPUS = 0


def write_files(directory, text="weights"):
    (directory / "model.safetensors").write_text(text)
    (directory / "deepspeed").mkdir()
    (directory / "deepspeed" / "state.pt").write_text(text * 3)


@pytest.fixture
def save(tmp_path):
    def save_step(step, **options):
        return save_checkpoint(tmp_path, step, write_files, {"rollout_id": step}, **options)

    return save_step


def test_a_checkpoint_gives_back_its_manifest(save, tmp_path):
    path = save(3)
    assert path == tmp_path / "step_3" == find_checkpoint(tmp_path).path
    assert read_manifest(path) == {"rollout_id": 3}
    assert sorted(json.loads((path / MANIFEST).read_text())["files"]) == ["deepspeed/state.pt", "model.safetensors"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["step_3"]


def test_the_newest_is_by_number_not_by_name(save, tmp_path):
    for step in (9, 10, 2):
        save(step)
    assert find_checkpoint(tmp_path).path == tmp_path / "step_10"


def test_no_checkpoint_is_none(tmp_path):
    assert find_checkpoint(tmp_path).path is None and find_checkpoint(tmp_path / "absent").path is None


KILLED = """
import os, signal, sys
from pathlib import Path
from vime.train import checkpoint

root, when = Path(sys.argv[1]), sys.argv[2]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def write(directory):
    (directory / "model.safetensors").write_text("new weights")
    if when == "between files":
        die()
    (directory / "state.pt").write_text("new state")
    if when == "before the manifest":
        die()

if when == "before the flush":
    checkpoint._sync_tree = lambda directory: die()
if when == "before the rename":
    checkpoint._sync_tree = lambda directory: None
    Path.rename = lambda self, target: die()
if when == "between the renames":
    rename, done = Path.rename, []
    Path.rename = lambda self, target: die() if done else (done.append(1), rename(self, target))[1]
checkpoint.save_checkpoint(root, int(sys.argv[3]), write, {"rollout_id": 99})
"""


@pytest.mark.parametrize("when", ["between files", "before the manifest", "before the flush", "before the rename"])
def test_case_h6_a_kill_while_writing_leaves_the_one_before(save, tmp_path, when):
    save(1)
    result = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), when, "2"], check=False)
    assert result.returncode == -9
    assert find_checkpoint(tmp_path) == Found(tmp_path / "step_1", {"rollout_id": 1})
    save(2)
    assert find_checkpoint(tmp_path).path == tmp_path / "step_2"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step_1", "step_2"]


@pytest.mark.parametrize("when", ["between files", "before the rename", "between the renames"])
def test_a_kill_while_replacing_leaves_the_old_one(save, tmp_path, when):
    save(1)
    result = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), when, "1"], check=False)
    assert result.returncode == -9
    found = find_checkpoint(tmp_path).path
    assert found is not None and read_manifest(found) == {"rollout_id": 1}
    assert set_aside_later(tmp_path, 1) == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["step_1"]
    save(2)
    assert read_manifest(tmp_path / "step_1") == {"rollout_id": 1}


def test_a_failing_writer_leaves_no_checkpoint(tmp_path):
    def write(directory):
        write_files(directory)
        raise RuntimeError("the trainer failed")

    with pytest.raises(RuntimeError):
        save_checkpoint(tmp_path, 1, write, {})
    assert find_checkpoint(tmp_path).path is None


def flip_a_byte(path):
    data = bytearray((path / "model.safetensors").read_bytes())
    data[0] ^= 1
    (path / "model.safetensors").write_bytes(data)


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip_a_byte, r"model\.safetensors is corrupted"),
        (lambda path: (path / "model.safetensors").write_text("w"), "has 1 bytes, expected 7"),
        (lambda path: (path / "deepspeed" / "state.pt").unlink(), r"deepspeed/state\.pt is missing"),
        (lambda path: (path / MANIFEST).unlink(), "has no manifest"),
        (lambda path: (path / MANIFEST).write_text("{"), "cannot be read"),
        (lambda path: (path / MANIFEST).write_text('{"format": "other", "files": {}}'), "its format is 'other'"),
        (lambda path: (path / MANIFEST).write_text('{"format": "vime-checkpoint-1", "files": {}}'), "is incomplete"),
        (lambda path: edit(path / MANIFEST, '"rollout_id": 2', '"rollout_id": 3'), "manifest.json is corrupted"),
        (lambda path: (path / "pytorch_model.bin").write_text("x"), r"pytorch_model\.bin does not belong to it"),
    ],
)
def test_damage_is_named_and_passed_over(save, tmp_path, damage, message):
    save(1)
    path = save(2)
    damage(path)
    with pytest.raises(CheckpointError, match=message):
        read_manifest(path)
    assert find_checkpoint(tmp_path).path == tmp_path / "step_1"
    assert list(find_checkpoint(tmp_path).passed_over) == [path]


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        read_manifest(tmp_path / "step_7")


def test_only_the_newest_are_kept(save, tmp_path):
    for step in range(5):
        save(step, keep=2)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step_3", "step_4"]


def test_the_critic_of_a_checkpoint_is_exported_whole(tmp_path):
    def write(directory):
        write_files(directory)
        (directory / "critic").mkdir()
        write_files(directory / "critic", "values")

    config = SimpleNamespace(critic_save=str(tmp_path / "critic"), keep_checkpoints=2)
    for step in range(4):
        checkpoint = save_checkpoint(tmp_path / "run", step, write, {})
        export_critic(config, checkpoint)
    export_critic(SimpleNamespace(critic_save=None, keep_checkpoints=None), checkpoint)
    assert sorted(entry.name for entry in (tmp_path / "critic").iterdir()) == ["step_2", "step_3"]
    exported = tmp_path / "critic" / "step_3"
    assert read_manifest(exported) == {"from": str(checkpoint)}
    assert (exported / "model.safetensors").read_text() == "values" and not (exported / "deepspeed").exists()


def test_later_checkpoints_are_set_aside_and_neither_found_nor_counted(save, tmp_path):
    for step in (1, 2, 3):
        save(step)
    flip_a_byte(tmp_path / "step_3")
    assert set_aside_later(tmp_path, 1) == [tmp_path / "superseded-step_3", tmp_path / "superseded-step_2"]
    assert find_checkpoint(tmp_path) == Found(tmp_path / "step_1", {"rollout_id": 1})
    save(2, keep=1)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step_2", "superseded-step_2", "superseded-step_3"]
    assert set_aside_later(tmp_path, 0) == [tmp_path / "superseded-step_2-2"]
    assert set_aside_later(tmp_path / "absent", 0) == []


FULL = """
import resource, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from vime.errors import CheckpointError
from vime.train.checkpoint import save_checkpoint

WRITERS = {
    "python": lambda directory: (directory / "x").write_bytes(b"x" * 2**18),
    "safetensors": lambda directory: save_file({"x": torch.zeros(2**16)}, directory / "x.safetensors"),
    "torch": lambda directory: torch.save(torch.zeros(2**16), directory / "x.pt"),
}
resource.setrlimit(resource.RLIMIT_FSIZE, (2**14, 2**14))
for name, write in WRITERS.items():
    try:
        save_checkpoint(Path(sys.argv[1]), 2, write, {})
    except CheckpointError as error:
        print(f"{name}: {error}")
"""


def test_a_full_disk_is_an_error_that_says_so_and_the_one_before_stays(save, tmp_path):
    """Of files that may not grow over 16 kB, which fails as a full disk does, in each library that writes them."""
    pytest.importorskip("torch")
    save(1)
    result = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], check=False, capture_output=True, text=True)
    for name in ("python", "safetensors", "torch"):
        assert f"{name}: the checkpoint of step 2 could not be written to {tmp_path}" in result.stdout, result.stderr
    assert result.stdout.count("hint: check space and permissions") == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["step_1"]
    assert find_checkpoint(tmp_path).path == tmp_path / "step_1"


def test_a_root_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "taken").write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="step 1 could not be written to"):
        save_checkpoint(tmp_path / "taken", 1, write_files, {})


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
