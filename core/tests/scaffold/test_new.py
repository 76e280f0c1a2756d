"""`vime plugin new`: what it writes and prints, and that a refusal leaves nothing behind."""

from __future__ import annotations

import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from vime.cli.app import main
from vime.scaffold.kinds import KINDS
from vime.scaffold.write import TEMPLATES

NUM_GPUS = 0


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_it_writes_a_package_and_prints_what_comes_next(here, capsys, monkeypatch) -> None:
    bin_folder = Path(sys.executable).parent
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    monkeypatch.setattr("vime.cli.new.TRAINING", ("torch", "no_such_module"))
    (here / "bin").mkdir()
    for program in ("uv", "nvidia-smi"):
        (here / "bin" / program).write_text("#!/bin/sh\n")
        (here / "bin" / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:{here / 'bin'}")
    assert main(["plugin", "new", "word-count", "--kind", "reward"]) == 0
    assert tree(here / "word-count") == {
        ".github/workflows/ci.yml",
        ".gitignore",
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "src/vime_word_count/__init__.py",
        "src/vime_word_count/py.typed",
        "src/vime_word_count/reward.py",
        "tests/test_contract.py",
    }
    assert capsys.readouterr().out.splitlines() == [
        "word-count: a plugin of the kind reward, which works as it is. Next:",
        "",
        "  cd word-count",
        "  uv pip install -e . --group dev",
        "  # edit src/vime_word_count/reward.py where it says EDIT ME",
        "  vime plugin check word-count",
        "  pytest",
        "  uv pip install 'vime[gpu]'",
        "  vime train --plugin word-count",
    ]


def test_what_can_train_already_is_not_asked_for_more(here, capsys, monkeypatch) -> None:
    monkeypatch.setattr("vime.cli.new.TRAINING", ("json",))
    assert main(["plugin", "new", "word-count", "--kind", "reward"]) == 0
    assert "vime[" not in capsys.readouterr().out.partition("pytest")[2]


def test_the_printed_commands_name_the_environment_that_is_not_active(here, capsys, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(here))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setattr("vime.cli.new.TRAINING", ("no_such_module",))
    assert main(["plugin", "new", "word-count", "--kind", "filter", "--dir", "my plugins"]) == 0
    python = shlex.quote(sys.executable)
    assert capsys.readouterr().out.splitlines()[2:] == [
        "  cd 'my plugins/word-count'",
        f"  {python} -m pip install -e . 'vime[testing]' vime-rm-math",
        "  # edit src/vime_word_count/filter.py where it says EDIT ME",
        f"  {python} -m vime plugin check word-count",
        f"  {python} -m pytest",
        f"  {python} -m pip install uv",
        f"  echo 'torch==2.13.*' | {python} -m uv pip install 'vime[cpu]' --override - --python {python}",
        f"  {python} -m vime train --plugin math --plugin word-count",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_the_metadata_is_complete_and_nothing_is_left_to_fill_in(kind, here) -> None:
    assert main(["plugin", "new", "word-count", "--kind", kind]) == 0
    project = tomllib.loads((here / "word-count" / "pyproject.toml").read_text())["project"]
    assert project["name"] == "vime-word-count"
    (requirement,) = project["dependencies"]
    assert requirement.startswith("vime>=") and ",<" in requirement
    (target,) = project["entry-points"]["vime.plugins"].values()
    module = here / "word-count" / "src" / (target.partition(":")[0].replace(".", "/") + ".py")
    assert f"class {target.partition(':')[2]}:" in module.read_text()
    assert module.read_text().count("EDIT ME") == 1
    readme = (here / "word-count" / "README.md").read_text()
    install = " ".join(["pip install vime-word-count", *KINDS[kind].companions])
    for line in (install, f"vime train {KINDS[kind].train.format(name='word-count')}", "vime plugin check word-count"):
        assert f"\n{line}\n" in readme
    for path in (here / "word-count").rglob("*"):
        if path.is_file():
            assert "$" not in path.read_text().replace("${{ matrix.python }}", ""), path


def test_the_licence_is_that_of_vime() -> None:
    root = Path(__file__).resolve().parents[3]
    assert (TEMPLATES / "package" / "LICENSE").read_text() == (root / "LICENSE").read_text()


def test_an_empty_folder_is_filled_and_missing_ones_are_made(here) -> None:
    (here / "plugins" / "word-count").mkdir(parents=True)
    assert main(["plugin", "new", "word-count", "--kind", "reward", "--dir", "plugins"]) == 0
    assert main(["plugin", "new", "word-count", "--kind", "reward", "--dir", "a/b"]) == 0
    assert tree(here / "plugins" / "word-count") == tree(here / "a" / "b" / "word-count")
    assert [path.name for path in (here / "plugins").iterdir()] == ["word-count"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["word count", "--kind", "reward"], "'word count' is no name for a plugin"),
        (["math", "--kind", "reward"], "there is a plugin 'math' already"),
        (["word-count"], "--kind is missing"),
        (["word-count", "--kind", "rewards"], "there is no kind of plugin 'rewards'"),
        (["word-count", "--kind", "reward", "--dir", "file"], "file is not a folder"),
        (["word-count", "--kind", "reward", "--dir", "file/below"], "cannot write to file/below"),
        (["full", "--kind", "reward"], "full exists already, and nothing is overwritten"),
        (["file", "--kind", "reward"], "file exists already, and nothing is overwritten"),
        (["link", "--kind", "reward"], "link exists already, and nothing is overwritten"),
        ([], "vime plugin new: Missing parameter: name"),
    ],
)
def test_a_refusal_is_a_line_and_a_hint_and_leaves_nothing_behind(words, message, here, capsys) -> None:
    (here / "file").write_text("mine")
    (here / "full").mkdir()
    (here / "full" / "mine.txt").write_text("mine")
    (here / "link").symlink_to("nowhere")
    before = sorted(path.name for path in here.iterdir())
    assert main(["plugin", "new", *words]) == 2
    printed = capsys.readouterr()
    error, hint = printed.err.splitlines()
    assert message in error
    assert hint.startswith("  hint: ")
    assert printed.out == ""
    assert sorted(path.name for path in here.iterdir()) == before
    assert tree(here / "full") == {"mine.txt"}


def test_a_disk_that_fails_half_way_leaves_nothing_behind(here, capsys, monkeypatch) -> None:
    write_text = Path.write_text

    def fail_at_the_tests(path: Path, *args, **kwargs) -> int:
        if path.name == "test_contract.py":
            raise OSError(28, "No space left on device")
        return write_text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", fail_at_the_tests)
    (here / "plugins").mkdir()
    for place in ("plugins", "a/b"):
        assert main(["plugin", "new", "word-count", "--kind", "reward", "--dir", place]) == 2
        assert f"cannot write to {place}: No space left on device" in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["plugins"]
    assert list((here / "plugins").iterdir()) == []


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
