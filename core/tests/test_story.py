"""The lines at the end of a run."""

from pathlib import Path

import pytest

from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager
from vime.runtime.story import device, header_rows, summary_rows

NUM_GPUS = 0


def scores(first, last):
    return summary_rows(first_scores=first, last_scores=last, checkpoint=None, run_folder=Path("run"), seconds=1.0)["held"]


def test_scores_before_and_after():
    assert scores({"held": 0.25}, {"held": 0.5}) == "0.250 -> 0.500  (+0.250)"


def test_a_single_evaluation_is_not_compared_with_itself():
    assert scores({"held": 0.347}, {"held": 0.347}) == "0.347"


def test_the_header_says_what_runs_where():
    rows = header_rows(RunConfig(hf_checkpoint="m", prompt_data="p.jsonl"), PluginManager(), Path("run"), None, train=True)
    assert {"model", "data", "plugins", "device", "runtime", "batch", "training", "run folder"} <= rows.keys()
    assert rows["runtime"] == "local, sync"
    assert rows["device"] == device()


def test_devices_by_name(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert device(tmp_path).startswith("CPU, ")
    for number in range(3):
        folder = tmp_path / "proc/driver/nvidia/gpus" / f"0000:0{number}"
        folder.mkdir(parents=True)
        (folder / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 1\n")
    assert device(tmp_path) == "3 x NVIDIA H200"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    assert device(tmp_path) == "2 x NVIDIA H200"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device(tmp_path).startswith("CPU, ")


@pytest.mark.parametrize(
    ("changes", "train", "told"),
    [
        ({"trainer_ranks": 2, "engines": 2}, True, "Ray: 2 trainer ranks and 2 engines, in a Ray of its own on this machine"),
        ({"engine_tp": 4, "ray_address": "auto"}, True, "Ray: 1 trainer rank and 1 engine x 4 devices, in the cluster at auto"),
        ({"engines": 3}, False, "Ray: 3 engines, in a Ray of its own on this machine"),
    ],
)
def test_a_run_on_ray_says_what_it_is_made_of(changes, train, told):
    config = RunConfig(runtime="ray", **changes)
    assert header_rows(config, PluginManager(), Path("run"), None, train=train)["runtime"] == f"{told}; sync"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
