"""Select the plugins that a change touches, for the job `plugin-changed`.

Reads `git diff --name-status` from stdin and prints the matrix as JSON: `[{"plugin": FOLDER, "names": "dapo or math"}, ...]`, the
names of its entry points as an expression for `pytest -k`. A change below plugins/FOLDER is one of that plugin; a change of what every
plugin stands on (the hooks, the contract kit) is one of all of them.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
GROUND = ("core/src/vime/api.py", "core/src/vime/sample.py", "core/src/vime/outputs.py", "core/src/vime/plugins/", "core/src/vime/testing/")
"""What a change of reaches every plugin: files, and folders with their slash."""


def plugins(root: Path) -> dict[str, list[str]]:
    """The folders below plugins/ that are distributions, with the names of their entry points."""
    found: dict[str, list[str]] = {}
    for path in sorted(root.glob("plugins/*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        found[path.parent.name] = sorted(project["entry-points"]["vime.plugins"])
    return found


def select(name_status: str, root: Path) -> list[dict[str, str]]:
    """The rows of the matrix for a diff. A file that moved from one plugin to another touches both; a deleted plugin has nothing to run."""
    there = plugins(root)
    touched: set[str] = set()
    for line in name_status.splitlines():
        for path in line.split("\t")[1:]:
            parts = PurePosixPath(path).parts
            if len(parts) > 2 and parts[0] == "plugins":
                touched.add(parts[1])
            elif path.startswith(GROUND):
                touched.update(there)
    return [{"plugin": folder, "names": " or ".join(there[folder])} for folder in sorted(touched & set(there))]


if __name__ == "__main__":
    print(json.dumps(select(sys.stdin.read(), ROOT)))
