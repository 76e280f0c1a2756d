"""What scripts write into docs/ is as they would write it now, and the pages about the code name what is there."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vime.config.names import flag_of
from vime.config.upstream import replacement
from vime.plugins.hookspecs import HOOKS

NUM_GPUS = 0

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "core" / "src" / "vime"


def codes(text: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", text)


def script(path: str) -> ModuleType:
    """A Python file of the repository as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


# The reference of hooks


def test_the_reference_of_hooks_is_what_the_specs_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    generator = script("docs/generate_hooks.py")
    assert generator.PAGE.read_text(encoding="utf-8") == generator.page(), "uv run python docs/generate_hooks.py"
    stale = tmp_path / "hooks.md"
    stale.write_text(generator.page() + "more\n", encoding="utf-8")
    monkeypatch.setattr(generator, "PAGE", stale)
    monkeypatch.setattr("sys.argv", ["generate_hooks.py", "--check"])
    assert generator.main() == 1 and "stale" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["generate_hooks.py"])
    assert generator.main() == 0 and stale.read_text(encoding="utf-8") == generator.page()
    monkeypatch.setattr("sys.argv", ["generate_hooks.py", "--check"])
    assert generator.main() == 0


def test_the_reference_has_each_hook_with_its_flag_and_an_example_with_a_result() -> None:
    page = ROOT / "docs" / "hooks.md"
    rows = re.findall(r"^\| \[`(\w+)`\]", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert rows == list(HOOKS)
    sections = dict(zip(HOOKS, re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:], strict=True))
    for name, info in HOOKS.items():
        assert sections[name].startswith(f"{name}\n")
        assert f"**Path flag:** {f'`{info.flag}`' if info.flag else 'none'}" in sections[name]
        (example,) = re.findall(r"```python\n(.*?)```", sections[name], flags=re.DOTALL)
        assert "@hookimpl" in example and example.rstrip().splitlines()[-1].startswith("# ")


@pytest.mark.parametrize("name", ["generate_cookbook", "generate_from_slime"])
def test_what_a_script_writes_is_as_it_would_write_it_now(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    generator = script(f"docs/{name}.py")
    monkeypatch.setattr("sys.argv", [f"{name}.py", "--check"])
    assert generator.main() == 0, f"uv run python docs/{name}.py"
    capsys.readouterr()
    whole = generator.PAGE.read_text(encoding="utf-8")
    stale = tmp_path / generator.PAGE.name
    stale.write_text(
        whole.replace("| flag | instead |\n", "| flag | instead |\n| x | y |\n").replace("import asyncio\n", ""), encoding="utf-8"
    )
    monkeypatch.setattr(generator, "PAGE", stale)
    assert generator.main() == 1 and "stale" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [f"{name}.py"])
    assert generator.main() == 0 and stale.read_text(encoding="utf-8") == whole


# Coming from slime


def test_every_flag_of_slime_is_on_the_page_once_and_is_taken_or_refused_with_a_way_out() -> None:
    generator = script("docs/generate_from_slime.py")
    flags = generator.upstream_flags()
    assert len(flags) == len(set(flags)) > 200
    assert [name for name in flags if not generator.is_kept(name) and replacement(name) is None] == []
    shown = Counter(codes((ROOT / "docs" / "from-slime.md").read_text(encoding="utf-8").partition("## Flags of the same name")[2]))
    assert [name for name in flags if not shown[flag_of(name)]] == []


def test_every_path_flag_of_a_hook_is_one_of_slimes_or_called_new() -> None:
    generator = script("docs/generate_from_slime.py")
    taken = {info.path_flag for info in HOOKS.values()} - {None}
    new = {HOOKS[hook].path_flag for hook, note in generator.HOOK_DIFFERENCES.items() if note.startswith("new")} - {None}
    assert taken - new <= set(generator.upstream_flags())
    assert not new & set(generator.upstream_flags())


# Architecture


OF_A_CHECKPOINT = {"deepspeed/", "trainer/"}


def test_the_map_has_every_part_and_names_only_what_is_there() -> None:
    page = ROOT / "docs" / "architecture.md"
    text = page.read_text(encoding="utf-8")
    parts = {path.name + ("/" if path.is_dir() else "") for path in CORE.iterdir() if not path.name.startswith("__")}
    named = set(codes(text))
    assert parts - {"py.typed"} - named == set()
    files = [name for name in named if re.fullmatch(r"[\w/]+(?:\.py|/)", name) and name not in OF_A_CHECKPOINT]
    assert len(files) > 60
    places = [CORE, ROOT, *(folder for folder in CORE.rglob("*") if folder.is_dir()), ROOT / "core" / "tests" / "train"]
    assert [name for name in files if not any((place / name).exists() for place in places)] == []


def test_the_functions_and_classes_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    source = "\n".join(path.read_text(encoding="utf-8") for path in CORE.rglob("*.py"))
    words = {part for name in codes(text) for part in name.split(".") if re.fullmatch(r"[A-Z]\w+|[a-z]+_\w+", part) and "/" not in name}
    words -= {"py", "state_dict"}
    defined = set(re.findall(r"(?:class|def) (\w+)|^(\w+)(?:: .*)? =|^    (\w+):", source, flags=re.MULTILINE))
    known = {word for group in defined for word in group if word} | set(HOOKS) | {path.stem for path in CORE.rglob("*")}
    tests = {path.stem for path in ROOT.rglob("test_*.py")}
    assert sorted(words - known - tests - {"your_field", "training_loop"}) == []


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
