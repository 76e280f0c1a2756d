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
    vime = _program("vime")
    return [
        f"cd {shlex.quote(str(folder))}",
        _install_command(),
        f"# edit {module.relative_to(folder)} where it says EDIT ME",
        f"{vime} plugin check {name}",
        _program("pytest"),
        f"{vime} train {train}",
    ]


def _install_command() -> str:
    """The line that installs the package of the current folder, editable, with what its tests need, into this environment."""
    if shutil.which("uv"):
        python = "" if os.environ.get("VIRTUAL_ENV") == sys.prefix else f" --python {shlex.quote(sys.executable)}"
        return f"uv pip install -e . --group dev{python}"
    return f"{_python()} -m pip install -e . 'vime[testing]'"


def _program(name: str) -> str:
    """How a script of this environment is called from the user's shell: by name where that finds it, else through Python."""
    found = shutil.which(name)
    is_ours = found is not None and Path(found).parent == Path(sys.executable).parent
    return name if is_ours else f"{_python()} -m {name}"


def _python() -> str:
    found = shutil.which("python")
    return "python" if found == sys.executable else shlex.quote(sys.executable)
