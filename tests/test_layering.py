"""Who may import whom: the layers of the core, and the one door that plugins come through."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

NUM_GPUS = 0

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "core" / "src"

# From the ground up. A module may import from the layers below its own and from its own package, not from its neighbours.
LAYERS: list[set[str]] = [
    {"vime.errors", "vime.redact", "vime.heavy"},
    {"vime.sample", "vime.isolation"},
    {"vime.outputs"},
    {"vime.config"},
    {"vime.plugins"},
    {"vime.engine.base", "vime.rollout.built_in", "vime.data", "vime.track", "vime.quickstart"},
    {"vime.report"},  # made of what vime.track wrote
    {"vime.api"},
    {"vime.rollout.reward_guard"},
    {"vime.rollout.hook_guards", "vime.rollout.unchanged"},  # what a hook call is checked by, in rollouts and in training
    {"vime.rollout", "vime.train", "vime.engine"},
    {"vime.runtime"},
    {"vime.loop"},
    {"vime.testing", "vime.scaffold", "vime.doctor"},
    {"vime.cli"},
    {"vime.__main__"},
]

# Places that only re-export under the names upstream code expects: they may import from anywhere, and nothing in the core imports them.
ALIASES = {
    "vime.utils",
    "vime.rollout.base_types",
    "vime.rollout.filter_hub",
    "vime.rollout.sft_rollout",
}


def owner(module: str, names: set[str]) -> str | None:
    """The longest of `names` that is `module` or a package around it."""
    found = [name for name in names if module == name or module.startswith(name + ".")]
    return max(found, key=len, default=None)


def layer_of(module: str) -> int | None:
    units = {name: level for level, layer in enumerate(LAYERS) for name in layer}
    unit = owner(module, set(units))
    return None if unit is None else units[unit]


def unit_of(module: str) -> str | None:
    return owner(module, set().union(*LAYERS))


def module_name(path: Path, source_root: Path) -> str:
    parts = path.relative_to(source_root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING")


def imports(node: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, imported module or object) of every import that runs, in function bodies too; annotations' imports do not run."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((child.lineno, alias.name) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.module is not None, f"line {child.lineno}: relative import"
            yield from ((child.lineno, f"{child.module}.{alias.name}") for alias in child.names)
        elif isinstance(child, ast.If) and is_type_checking(child.test):
            for statement in child.orelse:
                yield from imports(statement)
        else:
            yield from imports(child)


def violations(module: str, source: str) -> list[str]:
    """What is wrong with the imports of one core module."""
    wrong: list[str] = []
    for line, target in imports(ast.parse(source)):
        if not (target == "vime" or target.startswith("vime.")):
            if target.split(".")[0].startswith("vime_") and owner(module, ALIASES) is None:
                wrong.append(f"{module}:{line} imports {target}: the core knows no plugin")
            continue
        if owner(module, ALIASES) is not None:
            continue
        if owner(target, ALIASES) is not None:
            wrong.append(f"{module}:{line} imports {target}, which is there for upstream's import paths only")
            continue
        ours, theirs = layer_of(module), layer_of(target)
        if ours is None or theirs is None or unit_of(module) == unit_of(target):
            continue
        if theirs >= ours:
            wrong.append(f"{module}:{line} imports {target}: layer {theirs} from layer {ours}")
    return wrong


def core_modules() -> dict[str, str]:
    return {module_name(path, CORE): path.read_text() for path in sorted(CORE.rglob("*.py"))}


def test_every_core_module_has_a_layer() -> None:
    placed = set().union(*LAYERS) | ALIASES
    parents = {name.rsplit(".", depth)[0] for name in placed for depth in range(1, name.count(".") + 1)}
    lost = [module for module in core_modules() if owner(module, placed) is None and module not in parents]
    assert lost == [], "give these a place in LAYERS"


def test_the_core_imports_downwards_only() -> None:
    assert [line for module, source in core_modules().items() for line in violations(module, source)] == []


def test_plugins_import_the_api_only() -> None:
    wrong: list[str] = []
    for path in sorted((ROOT / "plugins").glob("*/src/**/*.py")):
        for line, target in imports(ast.parse(path.read_text())):
            if (target == "vime" or target.startswith("vime.")) and owner(target, {"vime.api"}) is None:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {target}")
    assert wrong == [], "plugins import vime.api"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("vime.config.load", "from vime.plugins import manager"),
        ("vime.sample", "import vime.config"),
        ("vime.rollout.rewards", "def f():\n    from vime.train.batch import build_train_batch"),
        ("vime.loop", "if x:\n    pass\nelse:\n    import vime.cli.app"),
        ("vime.train.batch", "from vime.utils.types import Sample"),
        ("vime.plugins.manager", "import vime_rm_math"),
        ("vime.runtime.run", "from vime import loop"),
    ],
)
def test_an_upward_import_is_found(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("vime.config.load", "from vime.errors import ConfigError"),
        ("vime.config.load", "from vime.config import sections"),
        ("vime.plugins.hookspecs", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vime.rollout import data_source"),
        ("vime.engine.local", "from vime.engine.base import Engine"),
        ("vime.utils.types", "from vime.sample import Sample"),
        ("vime.cli.app", "from vime.loop import train"),
    ],
)
def test_a_downward_import_is_not(module: str, source: str) -> None:
    assert violations(module, source) == []


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
