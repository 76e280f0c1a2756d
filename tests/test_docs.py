"""What the README and the pages of docs/ show works as shown."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vime.api import Sample
from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager

NUM_GPUS = 0

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "core" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def plugin_module(page: str, tmp_path: Path) -> ModuleType:
    """The one plugin that a page shows, as a module."""
    (source,) = [block for block in blocks(ROOT / page, "python") if "@hookimpl" in block]
    path = tmp_path / "shown_plugin.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("shown_plugin", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(text: str, label: Any = None, reward: float | None = None) -> Sample:
    return Sample(group_index=0, index=0, prompt="1+1=", response=text, label=label, reward=reward)


@pytest.mark.parametrize("page", ["README.md", "core/README.md"])
def test_the_plugin_of_the_readme_rewards_the_right_answer(page: str, tmp_path: Path) -> None:
    plugin = PluginManager().add(plugin_module(page, tmp_path), name="exact-match")
    assert plugin.hooks["custom_rm"].call(args=RunConfig(), sample=answer(" 2\n", label=2)) == 1.0
    assert plugin.hooks["custom_rm"].call(args=RunConfig(), sample=answer("3", label=2)) == 0.0


def test_the_plugin_of_the_plugin_page_drops_groups_out_of_range(tmp_path: Path) -> None:
    target = plugin_module("docs/plugins.md", tmp_path).RewardRange
    keep = PluginManager().add(target, name="reward-range", settings={"high": 0.8}).hooks["dynamic_sampling_filter"]
    assert keep.call(args=RunConfig(), samples=[answer("a", reward=1.0), answer("b", reward=0.0)]).keep
    dropped = keep.call(args=RunConfig(), samples=[answer("a", reward=1.0), answer("b", reward=0.9)])
    assert (dropped.keep, dropped.reason) == (False, "mean_out_of_range")


def test_links_between_the_pages_resolve() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text(encoding="utf-8"))]
    assert len(links) > 5
    broken = [f"{page.relative_to(ROOT)}: {link}" for page, link in links if not (page.parent / link).exists()]
    assert broken == []


def test_every_flag_on_the_pages_exists() -> None:
    fields = {name.replace("_", "-") for name in RunConfig.model_fields}
    elsewhere = {"set", "config", "help", "json"}
    elsewhere |= {"hook", "set", "arg", "cases", "nondeterministic", "only", "timeout"}  # of vime plugin check
    unknown: set[str] = set()
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            if "uv pip" in line or "uv build" in line or ".py --" in line:
                continue
            unknown |= {flag.removeprefix("no-") for flag in re.findall(r"(?<![\w-])--([a-z][a-z-]+)", line)} - fields - elsewhere
    assert unknown == set()


def test_the_readme_has_the_two_commands() -> None:
    commands = [line for block in blocks(ROOT / "README.md", "bash") for line in block.splitlines()]
    assert "pip install uv && uv run vime train --plugin math" in commands
    assert "uv run pytest" in commands
    assert "uv run pytest" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
