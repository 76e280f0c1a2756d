"""Select the tests that a change touches, for the job `run-ci-changed`.

Reads `git diff --name-status` from stdin and prints the matrix as JSON: `[{"test_file": PATH, "num_gpus": N}, ...]`.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path, PurePosixPath

GPUS_OF_AN_UNDECLARED_FILE = 8
TEST_PATTERNS = ("tests/**/test_*.py", "core/tests/**/test_*.py", "plugins/*/tests/**/test_*.py")
ROOT = Path(__file__).resolve().parents[2]


def test_files(root: Path) -> list[str]:
    """All test files of the repository, as posix paths below `root`, sorted."""
    return sorted({path.relative_to(root).as_posix() for pattern in TEST_PATTERNS for path in root.glob(pattern)})


def is_test_file(path: str) -> bool:
    name = PurePosixPath(path)
    parts = name.parts
    below = parts[0] == "tests" or parts[:2] == ("core", "tests") or (len(parts) > 3 and parts[0] == "plugins" and parts[2] == "tests")
    return below and name.name.startswith("test_") and name.suffix == ".py"


def declared_gpus(source: str) -> int | None:
    """The value of the top-level `NUM_GPUS = <int>` of a test file, None where there is none."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if any(isinstance(target, ast.Name) and target.id == "NUM_GPUS" for target in targets):
            value = node.value
            if isinstance(value, ast.Constant) and type(value.value) is int:
                return value.value
    return None


def select(name_status: str, root: Path) -> list[dict[str, str | int]]:
    """The rows of the matrix for a diff: added, modified, copied and renamed test files under their new names.

    Deleted files have nothing to run. A file that does not declare NUM_GPUS counts as 8.
    """
    rows: dict[str, int] = {}
    for line in name_status.splitlines():
        status, *paths = line.split("\t")
        if not paths or status[0] not in "AMRC" or not is_test_file(paths[-1]):
            continue
        gpus = declared_gpus((root / paths[-1]).read_text(encoding="utf-8"))
        rows[paths[-1]] = GPUS_OF_AN_UNDECLARED_FILE if gpus is None else gpus
    return [{"test_file": path, "num_gpus": gpus} for path, gpus in sorted(rows.items())]


if __name__ == "__main__":
    print(json.dumps(select(sys.stdin.read(), ROOT)))
