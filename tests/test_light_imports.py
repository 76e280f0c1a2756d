"""What must start without the heavy libraries does not load them, even where they are installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

NUM_GPUS = 0

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "core" / "src"
HEAVY = ("torch", "transformers", "vllm", "deepspeed", "ray", "pyarrow", "numpy", "datasets")

PROBE = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(*[name for name in sys.argv[2].split(",") if name in sys.modules])
"""


def modules_below(package: str) -> list[str]:
    """The package and all its modules, found without importing them."""
    folder = CORE / Path(*package.split("."))
    paths = [path.relative_to(CORE).with_suffix("").parts for path in sorted(folder.rglob("*.py"))]
    return [".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in paths]


def our_plugin_modules() -> list[str]:
    ours = {path.parent.name.replace("-", "_") for path in (ROOT / "plugins").glob("*/pyproject.toml")}
    return sorted({point.module for point in entry_points(group="vime.plugins") if point.module.split(".")[0] in ours})


LIGHT = [
    "vime",
    "vime.cli.app",
    "vime.api",
    *modules_below("vime.plugins"),
    *modules_below("vime.testing"),
    *modules_below("vime.doctor"),
    *our_plugin_modules(),
]


def loaded_by(module: str, *, path: Path | None = None) -> set[str]:
    """Which heavy libraries a new interpreter has loaded once it has imported `module`."""
    command = [sys.executable, "-W", "error", "-c", PROBE, module, ",".join(HEAVY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=path, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_every_distribution_here_has_an_entry_module() -> None:
    assert {module.split(".")[0] for module in our_plugin_modules()} == {
        "vime_filters_basic",
        "vime_rm_math",
        "vime_rm_qa",
        "vime_rm_remote",
        "vime_rollout_sft",
    }


@pytest.mark.parametrize("module", LIGHT)
def test_import_is_light(module: str) -> None:
    assert loaded_by(module) == set()


def test_a_heavy_import_is_seen(tmp_path: Path) -> None:
    (tmp_path / "heavy_plugin.py").write_text("def unused():\n    pass\n\n\ntry:\n    import numpy\nexcept ImportError:\n    pass\n")
    assert loaded_by("heavy_plugin", path=tmp_path) == {"numpy"}


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
