"""Writes the package: every file into a folder aside, which then becomes the package's folder in one step."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from string import Template

from vime.errors import ConfigError
from vime.plugins.discovery import Catalog, vime_version
from vime.scaffold.kinds import Kind
from vime.scaffold.naming import Names, check_name, derive_names, version_bounds

TEMPLATES = Path(__file__).parent / "templates"


def new_package(name: str, kind: Kind, parent: Path, catalog: Catalog) -> Path:
    """Write the package of a plugin to `parent`/`name` and return that folder. `parent` is made where it is missing.

    Raises ConfigError, and leaves nothing behind, for a name that cannot be taken, a folder that holds something, and
    a place that cannot be written to.
    """
    check_name(name, catalog)
    folder = parent / name
    files = package_files(derive_names(name, kind), kind)
    if parent.exists() and not parent.is_dir():
        raise ConfigError(f"{parent} is not a folder", hint="name a folder that can be written to: --dir DIR")
    try:
        if os.path.lexists(folder) and not _is_empty_folder(folder):
            raise ConfigError(
                f"{folder} exists already, and nothing is overwritten", hint="choose another name, or another place with --dir"
            )
        _write_in_one_step(files, folder)
    except OSError as error:
        raise ConfigError(
            f"cannot write to {parent}: {error.strerror or error}", hint="name a folder that can be written to: --dir DIR"
        ) from error
    return folder


def package_files(names: Names, kind: Kind) -> dict[str, str]:
    """The whole package: text by path, relative to its folder."""
    values = {
        "name": names.plugin,
        "distribution": names.distribution,
        "package": names.package,
        "class_name": names.class_name,
        "module": kind.module,
        "hook": kind.hook,
        "contract": kind.contract,
        "description": kind.description.format(name=names.plugin),
        "about": kind.about,
        "install": " ".join([names.distribution, *kind.companions]),
        "train": f"vime train {kind.train.format(name=names.plugin)}",
        "settings": f"prints its settings; set one with `--set {names.plugin}.{kind.setting}`" if kind.setting else "describes it",
        "bounds": version_bounds(vime_version()),
    }
    sources = {
        "pyproject.toml": "package/pyproject.toml.tmpl",
        "README.md": "package/README.md.tmpl",
        "LICENSE": "package/LICENSE",
        ".gitignore": "package/gitignore.tmpl",
        ".github/workflows/ci.yml": "package/ci.yml.tmpl",
        f"src/{names.package}/__init__.py": "package/__init__.py.tmpl",
        f"src/{names.package}/{kind.module}.py": f"{kind.name}/module.py.tmpl",
        "tests/test_contract.py": f"{kind.name if kind.name == 'reward' else 'package'}/test_contract.py.tmpl",
    }
    files = {path: Template((TEMPLATES / source).read_text(encoding="utf-8")).substitute(values) for path, source in sources.items()}
    return {**files, f"src/{names.package}/py.typed": ""}


def _write_in_one_step(files: dict[str, str], folder: Path) -> None:
    """Write text files below `folder`, all or none, and make its parents where they are missing."""
    missing = [parent for parent in reversed(folder.parents) if not parent.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as aside:
            whole = Path(aside) / folder.name
            for path, text in files.items():
                target = whole / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")
            whole.rename(folder)
    except BaseException:
        for parent in missing[:1]:
            shutil.rmtree(parent, ignore_errors=True)
        raise


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())
