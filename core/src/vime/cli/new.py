"""`vime plugin new`: a complete package for a plugin, and the commands that come next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vime.config.extras import TRAINING, fitting_extra, install_command
from vime.plugins.discovery import discover

if TYPE_CHECKING:
    from vime.scaffold.kinds import Kind


def new_plugin(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What --plugin will take, and the folder that is written. Example: word-count.")
    ],
    kind: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="reward, filter, buffer-filter, sample-filter, rollout, generate or post-process."),
    ] = None,
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where to put the folder; made where it is missing.")] = Path(),
) -> None:
    """Write the package of a new plugin: code, tests, README and CI file. It passes its checks as it is."""
    from vime.scaffold.kinds import find_kind
    from vime.scaffold.write import new_package

    chosen = find_kind(kind)
    folder = new_package(name, chosen, directory, discover())
    lines = next_commands(folder, name, chosen)
    sys.stdout.write(
        f"{folder}: a plugin of the kind {chosen.name}, which works as it is. Next:\n\n" + "".join(f"  {line}\n" for line in lines)
    )


def next_commands(folder: Path, name: str, kind: Kind) -> list[str]:
    """What the author does next, as lines for the shell that the command was run in. Each works as it stands."""
    prefix = "" if _is_first_on_path() else f"{shlex.quote(sys.executable)} -m "
    (package,) = (folder / "src").iterdir()
    return [
        f"cd {shlex.quote(str(folder))}",
        _install_command(prefix, kind.companions),
        f"# edit src/{package.name}/{kind.module}.py where it says EDIT ME",
        f"{prefix}vime plugin check {name}",
        f"{prefix}pytest",
        *_commands_before_training(prefix),
        f"{prefix}vime train {kind.train.format(name=name)}",
    ]


def _commands_before_training(prefix: str) -> list[str]:
    """The lines that install what trains, where it is missing. uv alone can do that on the CPU, so it comes first."""
    if all(find_spec(module) is not None for module in TRAINING):
        return []
    command = install_command(fitting_extra())
    if shutil.which("uv") is not None:
        return [command]
    return [f"{prefix}pip install uv", command.replace("uv pip", f"{prefix}uv pip")]


def _is_first_on_path() -> bool:
    """Whether the shell finds this environment's scripts by their names, those too that are not installed yet."""
    found = shutil.which("python")
    return found is not None and Path(found).parent == Path(sys.executable).parent


def _install_command(prefix: str, companions: Sequence[str]) -> str:
    """The line that installs the package of the current folder, editable, with what its tests and its training need."""
    if shutil.which("uv") is None:
        return " ".join([f"{prefix}pip install -e .", "'vime[testing]'", *companions])
    python = [] if os.environ.get("VIRTUAL_ENV") == sys.prefix else ["--python", shlex.quote(sys.executable)]
    return " ".join(["uv pip install -e . --group dev", *companions, *python])
