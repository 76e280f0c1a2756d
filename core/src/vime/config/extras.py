"""Whether what trains and generates is installed, and the command that installs it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec

from vime.config.trackers import PACKAGES
from vime.errors import MissingExtraError

TRAINING = ("torch", "transformers", "vllm", "deepspeed")
"""What `vime train` and `vime eval` import from the extras `cpu` and `gpu`."""


def require_training_extra(modules: Sequence[str] = TRAINING) -> None:
    """Raise MissingExtraError with the install command, where one of the modules cannot be found. Imports none of them."""
    missing = [name for name in modules if find_spec(name) is None]
    if not missing:
        return
    extra = fitting_extra()
    raise MissingExtraError(
        f"this needs {', '.join(missing)}, which the extra vime[{extra}] brings",
        hint=f"run: {install_command(extra)}",
    )


def require_ray() -> None:
    """Raise MissingExtraError with the install command, where Ray cannot be found."""
    if find_spec("ray") is None:
        raise MissingExtraError("--runtime ray needs Ray, which is not installed", hint="pip install 'vime[ray]'")


def require_trackers(names: Sequence[str]) -> None:
    """Raise MissingExtraError with the install command for the first tracker of --track whose package cannot be found."""
    for name in names:
        spec = find_spec(PACKAGES[name])
        if spec is None or spec.origin is None:  # a folder of that name, as wandb leaves behind, is no package
            raise MissingExtraError(
                f"--track {name} needs the package {PACKAGES[name]}, which is not installed (pip install 'vime[{name}]')",
                hint=f"run: {install_command(name)}",
            )


def fitting_extra() -> str:
    """The extra that suits this machine: gpu or cpu."""
    return "gpu" if shutil.which("nvidia-smi") else "cpu"


def install_command(extra: str) -> str:
    """The line that adds an extra to this environment, and works as it is printed.

    vLLM's CPU build asks for a local version of torch that the main index does not have, which only uv can override.
    """
    in_activated_environment = os.environ.get("VIRTUAL_ENV") == sys.prefix
    target = "" if in_activated_environment else f" --python {shlex.quote(sys.executable)}"
    if extra != "cpu":
        return f"uv pip install 'vime[{extra}]'{target}"
    return f"echo '{_pinned_torch()}' | uv pip install 'vime[cpu]' --override -{target}"


def _pinned_torch() -> str:
    """What vime itself asks for, as `torch==2.13.*`."""
    try:
        wanted = requires("vime") or []
    except PackageNotFoundError:
        wanted = []
    return next((line.partition(";")[0].strip() for line in wanted if line.startswith("torch")), "torch")
