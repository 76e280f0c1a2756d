"""Every test file says how many GPUs it needs, and continuous integration runs it on such a machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

NUM_GPUS = 0

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = ROOT / ".github" / "workflows"


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(WORKFLOWS)
    import generate_github_workflows  # pyright: ignore[reportMissingImports]

    return generate_github_workflows


@pytest.fixture
def changed_tests(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(WORKFLOWS)
    import changed_tests  # pyright: ignore[reportMissingImports]

    return changed_tests


def workflow() -> dict[str, Any]:
    return yaml.safe_load((WORKFLOWS / "pr-test.yml").read_text())


def rows(job: str) -> dict[str, int]:
    jobs = workflow()["jobs"]
    matrix = jobs[job]["strategy"]["matrix"]["info"] if job in jobs else []
    return {row["test_file"]: row["num_gpus"] for row in matrix}


def test_every_test_file_declares_its_gpus(changed_tests: Any) -> None:
    files = changed_tests.test_files(ROOT)
    assert "tests/test_workflow_matrix.py" in files
    assert [path for path in files if changed_tests.declared_gpus((ROOT / path).read_text()) is None] == [], "add `NUM_GPUS = 0` at the top"


def test_every_test_file_runs_as_a_script_too(changed_tests: Any) -> None:
    last_line = "raise SystemExit(pytest.main([__file__]))"
    files = changed_tests.test_files(ROOT)
    assert [path for path in files if (ROOT / path).read_text().rstrip().splitlines()[-1].strip() != last_line] == []


def test_the_matrix_is_what_the_tree_holds(changed_tests: Any) -> None:
    declared = {path: changed_tests.declared_gpus((ROOT / path).read_text()) for path in changed_tests.test_files(ROOT)}
    fix = "run `uv run python .github/workflows/generate_github_workflows.py --register`"
    assert rows("cpu-unittest") == {path: gpus for path, gpus in declared.items() if gpus == 0}, fix
    assert rows("gpu-test") == {path: gpus for path, gpus in declared.items() if gpus != 0}, fix


def test_the_generated_workflow_is_not_stale(generator: Any) -> None:
    template = (WORKFLOWS / "pr-test.yml.j2").read_text()
    assert (WORKFLOWS / "pr-test.yml").read_text() == generator.render(template), "run .github/workflows/generate_github_workflows.py"


def test_check_fails_on_a_stale_workflow(tmp_path: Path) -> None:
    folder = tmp_path / ".github" / "workflows"
    shutil.copytree(WORKFLOWS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, str(folder / "generate_github_workflows.py"), "--check"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    (folder / "pr-test.yml").write_text("jobs: {}\n")
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "pr-test.yml is stale: run generate_github_workflows.py\n")


def make_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_register_lists_every_file_under_its_job(generator: Any, tmp_path: Path) -> None:
    tree = {
        "tests/test_b.py": "NUM_GPUS = 0\n",
        "core/tests/config/test_a.py": "NUM_GPUS: int = 0\n",
        "plugins/p/tests/test_c.py": "NUM_GPUS = 2\n",
        "tests/e2e/test_d.py": "x = 1\n",
        "tests/conftest.py": "",
    }
    text = generator.register((WORKFLOWS / "pr-test.yml.j2").read_text(), make_tree(tmp_path, tree))
    jobs = yaml.safe_load(generator.render(text))["jobs"]
    assert jobs["cpu-unittest"]["strategy"]["matrix"]["info"] == [
        {"test_file": "core/tests/config/test_a.py", "num_gpus": 0},
        {"test_file": "tests/test_b.py", "num_gpus": 0},
    ]
    assert jobs["gpu-test"]["strategy"]["matrix"]["info"] == [
        {"test_file": "plugins/p/tests/test_c.py", "num_gpus": 2},
        {"test_file": "tests/e2e/test_d.py", "num_gpus": 8},
    ]
    assert generator.register(text, tmp_path) == text


def test_changed_tests_are_selected_with_their_gpus(changed_tests: Any, tmp_path: Path) -> None:
    tree = {
        "tests/test_added.py": "NUM_GPUS = 0\n",
        "core/tests/test_modified.py": "NUM_GPUS = 4\n",
        "plugins/p/tests/deep/test_renamed.py": "NUM_GPUS = 1\n",
        "tests/test_undeclared.py": "def test() -> None:\n    NUM_GPUS = 0\n",
        "tests/helper.py": "",
        "core/src/vime/test_not_a_test.py": "",
    }
    diff = [
        "A\ttests/test_added.py",
        "M\tcore/tests/test_modified.py",
        "R087\tplugins/p/tests/test_old.py\tplugins/p/tests/deep/test_renamed.py",
        "D\ttests/test_deleted.py",
        "M\ttests/test_undeclared.py",
        "M\ttests/helper.py",
        "A\tcore/src/vime/test_not_a_test.py",
    ]
    assert changed_tests.select("\n".join(diff) + "\n", make_tree(tmp_path, tree)) == [
        {"test_file": "core/tests/test_modified.py", "num_gpus": 4},
        {"test_file": "plugins/p/tests/deep/test_renamed.py", "num_gpus": 1},
        {"test_file": "tests/test_added.py", "num_gpus": 0},
        {"test_file": "tests/test_undeclared.py", "num_gpus": 8},
    ]
    assert changed_tests.select("", tmp_path) == []


def test_run_ci_changed_uses_that_selection() -> None:
    jobs = workflow()["jobs"]
    scripts = [step.get("run", "") for step in jobs["run-ci-changed"]["steps"]]
    assert any("git diff --name-status" in script and ".github/workflows/changed_tests.py" in script for script in scripts)
    assert "run-ci-changed" in jobs["run-ci-changed-test"]["needs"]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
