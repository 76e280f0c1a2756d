"""Random states: of a process, and of each of the processes of a run whose loop and trainer ranks are several.

The latter are `trainer/<name>.json` beside `trainer/<name>.safetensors` in a checkpoint, with the states of the process's
plugins. A run in one process has neither: all of that is in `trainer/state.json`, `trainer/rng.safetensors` and the manifest.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy
import torch

FOLDER = "trainer"
DRIVER = "driver"
"""Name of the process that has the loop."""


def rng_states() -> dict[str, Any]:
    """Python's and NumPy's random states, as plain data."""
    state: Any = numpy.random.get_state(legacy=False)
    words = {"key": state["state"]["key"].tolist(), "pos": int(state["state"]["pos"])}
    return {"python": random.getstate(), "numpy": state | {"state": words}}


def torch_rng_states() -> dict[str, torch.Tensor]:
    """The generator states of the CPU and, where there is one, the current GPU."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_rng(state: dict[str, Any], torch_states: dict[str, torch.Tensor]) -> None:
    """Set Python's, NumPy's and torch's random states."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    words = state["numpy"]["state"]
    numpy.random.set_state(state["numpy"] | {"state": {"key": numpy.array(words["key"], dtype=numpy.uint32), "pos": words["pos"]}})
    torch.set_rng_state(torch_states["cpu"])
    if "cuda" in torch_states and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch_states["cuda"])


def rank_name(rank: int) -> str:
    return f"rank_{rank}"


def save_process(directory: Path, name: str, plugins: dict[str, Any] | None = None) -> None:
    """Write the random states of this process, and the states of its plugins."""
    from safetensors.torch import save_file

    state = {"rng": rng_states(), "plugins": plugins or {}}
    (directory / FOLDER).mkdir(parents=True, exist_ok=True)
    (directory / FOLDER / f"{name}.json").write_text(json.dumps(state) + "\n", encoding="utf-8")
    save_file(torch_rng_states(), directory / FOLDER / f"{name}.safetensors")


def load_process(directory: Path, name: str) -> dict[str, Any] | None:
    """Restore the random states and return those of the plugins; None where the checkpoint has nothing of this name."""
    from safetensors.torch import load_file

    path = directory / FOLDER / f"{name}.json"
    if not path.exists():
        return None
    state = json.loads(path.read_text(encoding="utf-8"))
    restore_rng(state["rng"], load_file(path.with_suffix(".safetensors")))
    return state["plugins"]
