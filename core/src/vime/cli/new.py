"""`vime plugin new`: a complete package for a plugin, and the commands that come next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from vime.plugins.discovery import discover


def new_plugin(
    name: Annotated[str, typer.Argument(help="The name that --plugin will take, and the folder that is written. Example: word-count.")],
    kind: Annotated[
        str | None,
        typer.Option(help="reward, filter, buffer-filter, sample-filter, rollout, generate or post-process."),
    ] = None,
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where to put the folder; made where it is missing.")] = Path(),
) -> None:
    """Write the package of a new plugin: code, tests, README and CI file. It passes its checks as it is."""
    from vime.scaffold.kinds import find_kind
    from vime.scaffold.write import new_package

    chosen = find_kind(kind)
    folder = new_package(name, chosen, directory, discover())
    package = next((folder / "src").iterdir())
    lines = next_commands(folder, package / f"{chosen.module}.py", name, chosen.train.format(name=name))
    sys.stdout.write(f"{folder}: a {chosen.name} that works as it is. Next:\n\n" + "".join(f"  {line}\n" for line in lines))


def next_commands(folder: Path, module: Path, name: str, train: str) -> list[str]:
    """What the author does next, as lines for the shell that the command was run in."""
    prefix = "" if _is_first_on_path() else f"{shlex.quote(sys.executable)} -m "
    return [
        f"cd {shlex.quote(str(folder))}",
        _install_command(prefix),
        f"# edit {module.relative_to(folder)} where it says EDIT ME",
        f"{prefix}vime plugin check {name}",
        f"{prefix}pytest",
        f"{prefix}vime train {train}",
    ]


def _is_first_on_path() -> bool:
    """Whether the shell finds this environment's scripts by their names, those too that are not installed yet."""
    found = shutil.which("python")
    return found is not None and Path(found).parent == Path(sys.executable).parent


def _install_command(prefix: str) -> str:
    """The line that installs the package of the current folder, editable, with what its tests need, into this environment."""
    if shutil.which("uv"):
        python = "" if os.environ.get("VIRTUAL_ENV") == sys.prefix else f" --python {shlex.quote(sys.executable)}"
        return f"uv pip install -e . --group dev{python}"
    return f"{prefix}pip install -e . 'vime[testing]'"
