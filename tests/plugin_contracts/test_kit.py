"""The kit as a whole: every check has an id, a sentence and a plugin that breaks it, and the page about it is up to date."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import check_table
import pytest

import zoo
from vime.plugins.hookspecs import HOOKS
from vime.testing import contracts, strategies
from vime.testing.checks import ALL_CHECKS
from zoo.base import Wrong

NUM_GPUS = 0


def animals() -> list[Wrong]:
    """Every entry of every zoo file."""
    found: dict[int, Wrong] = {}
    for module in pkgutil.iter_modules(zoo.__path__, "zoo."):
        for value in vars(importlib.import_module(module.name)).values():
            entries = value if isinstance(value, tuple | list) else (value,)
            found |= {id(entry): entry for entry in entries if isinstance(entry, Wrong)}
    return list(found.values())


def test_each_check_is_shown_to_fail() -> None:
    broken = {entry.check for entry in animals()}
    assert [each.id for each in ALL_CHECKS if each.id not in broken] == []


def test_no_animal_is_for_a_check_that_does_not_exist() -> None:
    ids = {each.id for each in ALL_CHECKS}
    assert [entry.name for entry in animals() if entry.check not in ids or not set(entry.also) <= ids] == []


def test_the_animals_of_a_check_have_names_of_their_own() -> None:
    names = [(entry.check, entry.name) for entry in animals()]
    assert sorted(names) == sorted(set(names))


def test_ids_are_unique_and_in_kebab_case() -> None:
    ids = [each.id for each in ALL_CHECKS]
    assert len(ids) == len(set(ids))
    assert [each for each in ids if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", each)] == []


@pytest.mark.parametrize("each", ALL_CHECKS, ids=lambda each: each.id)
def test_a_check_is_for_a_hook_that_exists_and_says_its_rule_in_a_sentence(each) -> None:
    assert each.hook is None or each.hook in HOOKS
    assert each.doc.endswith(".")
    first = each.doc.split()[0]
    assert first[0].isupper() or set("_.") & set(first), "a sentence, which may begin with a name of code"
    assert len(each.doc) <= 140


def test_every_class_is_for_a_hook_that_exists() -> None:
    classes = [getattr(contracts, name) for name in contracts.__all__]
    hooks = [each.hook for each in classes if each is not contracts.PluginContract]
    assert set(hooks) <= set(HOOKS) and len(set(hooks)) == len(hooks)


def test_the_page_has_the_checks_as_they_are() -> None:
    command = f"python {Path(check_table.__file__).relative_to(check_table.PAGE.parents[2])}"
    assert check_table.PAGE.read_text(encoding="utf-8") == check_table.page(), f"write it anew: {command}"


def test_the_page_has_every_class() -> None:
    text = check_table.PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+Contract)` \| (.*) \|$", text, flags=re.MULTILINE)
    hooks = {name: getattr(contracts, name).hook for name in contracts.__all__}
    assert {name: hook.strip("`") for name, hook in rows if name != "PluginContract"} == {
        name: hook for name, hook in hooks.items() if hook
    }
    assert {name for name, _ in rows} == set(hooks)


def test_the_python_on_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", check_table.PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    monkeypatch.chdir(tmp_path)
    strategies.for_all(strategies.groups(), lambda group: None, max_examples=2)  # the first draw reads all modules of this repository
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "testing.md", "exec"), names)
    for name in ("test_equal_rewards_are_dropped", "test_it_never_raises"):
        names[name]()  # pyright: ignore[reportCallIssue]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
