"""The pages of docs/ as a site: every link and anchor leads somewhere, and nothing is asked of a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NUM_GPUS = 0

ROOT = Path(__file__).resolve().parents[1]
WITHOUT_NETWORK = """
import socket, sys

def refused(*_):
    raise AssertionError("the build asks the network")

socket.socket.connect = socket.getaddrinfo = refused
from mkdocs.__main__ import cli

cli(sys.argv[1:])
"""


def build(tree: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        WITHOUT_NETWORK,
        "build",
        "--strict",
        "--config-file",
        str(tree / "mkdocs.yml"),
        "--site-dir",
        str(site),
    ]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_has_every_page_and_the_readmes_that_they_link_to(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    assert [str(page) for page in sorted(pages) if not (site / page).exists()] == []
    assert (site / "examples" / "calculator" / "index.html").exists()
    assert not list(site.rglob("*.py"))
    assert 'href="examples/calculator/index.html"' in (site / "plugins.html").read_text(encoding="utf-8")


def test_reading_the_site_asks_for_nothing_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)="((?:https?:)?//[^"]*)', text)
        assert loaded == [], page
        assert 'class="mermaid"' not in text, f"{page}: mermaid is loaded from elsewhere"


def test_the_navigation_is_the_index(site: Path) -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    page = (site / "index.html").read_text(encoding="utf-8")
    (navigation,) = re.findall(r'<nav class="md-nav md-nav--primary.*?</nav>\s*</div>', page, flags=re.DOTALL)
    shown = re.findall(r'<a href="([^"#.]+)\.html" class="md-nav__link"', navigation)
    assert shown == [link.removesuffix(".md") for link in re.findall(r"^- \[.*?\]\((.*?)\)", index, flags=re.MULTILINE)]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("[gone](gone.md)\n", "gone.md"),
        ("[gone](data.md#no-such-heading)\n", "no-such-heading"),
        ("[gone](../examples/gone/README.md)\n", "examples/gone/README.md"),
    ],
)
def test_a_link_to_nowhere_stops_the_build(tmp_path: Path, line: str, complaint: str) -> None:
    for path in ROOT.iterdir():
        if path.name not in {"docs", "mkdocs.yml", ".git"}:
            (tmp_path / path.name).symlink_to(path)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    with (tmp_path / "docs" / "install.md").open("a", encoding="utf-8") as page:
        page.write(line)
    done = build(tmp_path, tmp_path / "site-of-this-test")
    assert done.returncode == 1
    assert complaint in done.stderr


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
