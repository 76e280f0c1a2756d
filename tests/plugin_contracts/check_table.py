"""The tables of checks in docs/plugins/testing.md. Run this file to write them there."""

from __future__ import annotations

from pathlib import Path

from vime.testing.checks import ALL_CHECKS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plugins" / "testing.md"
MARK = "<!-- written by tests/plugin_contracts/check_table.py -->\n"


def tables() -> str:
    """A table for the package and for each hook, in the order of ALL_CHECKS."""
    lines: list[str] = []
    for hook in dict.fromkeys(each.hook for each in ALL_CHECKS):
        lines += ["", f"### `{hook}`" if hook else "### The package", "", "| check | rule |", "|---|---|"]
        lines += [f"| `{each.id}` | {each.doc} |" for each in ALL_CHECKS if each.hook == hook]
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page as it has to be."""
    return PAGE.read_text(encoding="utf-8").partition(MARK)[0] + MARK + tables()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
