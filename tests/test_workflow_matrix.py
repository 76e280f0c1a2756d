"""Every test file says how many GPUs it needs, and continuous integration runs it on such a machine."""

from __future__ import annotations

import json
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


@pytest.fixture
def changed_plugins(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(WORKFLOWS)
    import changed_plugins  # pyright: ignore[reportMissingImports]

    return changed_plugins


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


def test_it_is_the_new_name_that_counts(changed_tests: Any, tmp_path: Path) -> None:
    make_tree(tmp_path, {"tests/test_copy.py": "NUM_GPUS = 0\n"})
    for before in ("tests/test_a.py", "tests/helper.py"):
        selected = changed_tests.select(f"C100\t{before}\ttests/test_copy.py\n", tmp_path)
        assert selected == [{"test_file": "tests/test_copy.py", "num_gpus": 0}]
    assert changed_tests.select("R100\ttests/test_a.py\ttests/helper.py\n", tmp_path) == []


# A real diff, as git writes it


def test_the_selection_on_a_diff_of_git(tmp_path: Path) -> None:
    """Added, modified, renamed and deleted files of a real repository, through the script as the job calls it."""

    def git(*words: str) -> str:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
        return subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    body = "".join(f"def test_{number}() -> None:\n    assert {number} == {number}\n" for number in range(20))
    tree = {"tests/test_kept.py": "NUM_GPUS = 1\n", "tests/test_old.py": f"NUM_GPUS = 2\n{body}", "tests/test_gone.py": "NUM_GPUS = 0\n"}
    make_tree(tmp_path, tree)
    shutil.copytree(WORKFLOWS, tmp_path / ".github" / "workflows", ignore=shutil.ignore_patterns("__pycache__"))
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "before")
    git("mv", "tests/test_old.py", "tests/test_renamed.py")
    git("rm", "-q", "tests/test_gone.py")
    make_tree(tmp_path, {"tests/test_kept.py": "NUM_GPUS = 4\n", "tests/test_new.py": "x = 1\n", "plugins/p/src/p.py": ""})
    git("add", "-A")
    git("commit", "-qm", "after")
    diff = git("diff", "--name-status", "HEAD~1...HEAD")
    script = tmp_path / ".github" / "workflows" / "changed_tests.py"
    done = subprocess.run([sys.executable, str(script)], input=diff, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [
        {"test_file": "tests/test_kept.py", "num_gpus": 4},
        {"test_file": "tests/test_new.py", "num_gpus": 8},
        {"test_file": "tests/test_renamed.py", "num_gpus": 2},
    ]


def test_run_ci_changed_uses_that_selection() -> None:
    jobs = workflow()["jobs"]
    scripts = [step.get("run", "") for step in jobs["run-ci-changed"]["steps"]]
    assert any("git diff --name-status" in script and ".github/workflows/changed_tests.py" in script for script in scripts)
    assert "run-ci-changed" in jobs["run-ci-changed-test"]["needs"]


# Plugins


def plugin_tree(root: Path) -> Path:
    entry = '[project]\nname = "{0}"\n[project.entry-points."vime.plugins"]\n{1}\n'
    return make_tree(
        root,
        {
            "plugins/vime-rm-a/pyproject.toml": entry.format("vime-rm-a", 'b = "m"\na = "m"'),
            "plugins/vime-filter-c/pyproject.toml": entry.format("vime-filter-c", 'c = "m"'),
        },
    )


A, C = {"plugin": "vime-rm-a", "names": "a or b"}, {"plugin": "vime-filter-c", "names": "c"}


@pytest.mark.parametrize(
    ("diff", "expected"),
    [
        ("M\tplugins/vime-rm-a/src/a.py", [A]),
        ("A\tplugins/vime-filter-c/tests/test_c.py", [C]),
        ("D\tplugins/vime-rm-a/README.md", [A]),
        ("R090\tplugins/vime-rm-a/src/a.py\tplugins/vime-filter-c/src/a.py", [C, A]),
        ("D\tplugins/vime-rm-gone/pyproject.toml", []),
        ("M\tplugins/README.md\nM\tdocs/plugins/testing.md\nM\tcore/src/vime/loop.py\nM\ttests/test_x.py", []),
        ("M\tcore/src/vime/plugins/hookspecs.py", [C, A]),
        ("M\tcore/src/vime/testing/checks/base.py", [C, A]),
        ("M\tcore/src/vime/sample.py", [C, A]),
        ("", []),
    ],
)
def test_a_change_of_a_plugin_runs_that_plugin(changed_plugins: Any, tmp_path: Path, diff: str, expected: list[dict[str, str]]) -> None:
    assert changed_plugins.select(diff, plugin_tree(tmp_path)) == expected


def test_every_plugin_of_the_tree_can_be_selected(changed_plugins: Any) -> None:
    folders = sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))
    assert [row["plugin"] for row in changed_plugins.select("M\tcore/src/vime/api.py", ROOT)] == folders
    assert all((ROOT / path).exists() for path in changed_plugins.GROUND)


def test_plugin_changed_runs_the_tests_of_the_plugin_and_the_contract_kit() -> None:
    jobs = workflow()["jobs"]
    selects = [step.get("run", "") for step in jobs["plugin-changed"]["steps"]]
    assert any("git diff --name-status" in script and ".github/workflows/changed_plugins.py" in script for script in selects)
    assert jobs["plugin-changed-test"]["needs"] == "plugin-changed"
    runs = "\n".join(step.get("run", "") for step in jobs["plugin-changed-test"]["steps"])
    assert 'pytest "plugins/$PLUGIN" tests/plugin_contracts/test_own_plugins.py' in runs
    (kit,) = [line for line in runs.splitlines() if "passes_its_checks_alone" in line]
    assert "def test_every_plugin_passes_its_checks_alone_from_its_wheel" in (ROOT / "tests" / "test_wheels.py").read_text()
    assert kit.startswith("uv run pytest tests/test_wheels.py -k ")


# What else runs on every change


def test_the_site_is_built_and_the_wheels_are_tried_on_every_change() -> None:
    jobs = workflow()["jobs"]
    runs = [step.get("run", "") for step in jobs["docs"]["steps"]]
    assert "uv run mkdocs build --strict" in runs
    generators = sorted(path.name for path in (ROOT / "docs").glob("generate_*.py"))
    assert [f"uv run python docs/{name} --check" in runs for name in generators] == [True] * len(generators)
    assert "tests/test_wheels.py" in rows("cpu-unittest"), "it installs the wheels alone, together, and with the lowest and newest versions"


def test_no_job_runs_for_ever_and_none_may_write() -> None:
    content = workflow()
    assert content["permissions"] == {"contents": "read"}
    assert [name for name, job in content["jobs"].items() if "timeout-minutes" not in job] == []


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
