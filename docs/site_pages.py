"""Hooks of mkdocs: the navigation out of index.md, and the pages that lie outside docs/ (examples, plugins, benchmarks).

A page of the site has the address that its file has in the repository; those of docs/ come without that folder. Links between them are
written for the repository and rewritten here. A link to a file that is no page, such as a script, goes to a copy of the file.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()(?!https?://|mailto:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"(^\s*```.*?^\s*```$|`[^`\n]+`)", flags=re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """The sections and pages of index.md, in their order, are the navigation."""
    sections: list[Any] = [{"Overview": "index.md"}]
    for line in (ROOT / "docs" / "index.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            sections.append({line.removeprefix("## "): []})
        elif found := re.match(r"- \[(.+?)\]\((.+?)\)", line):
            (pages,) = sections[-1].values()
            pages.append({found[1]: address(found[2], "docs/index.md")})
    config.nav = sections
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds every file outside docs/ that a page links to, and those that these link to."""
    waiting = [f"docs/{file.src_uri}" for file in files if file.src_uri.endswith(".md")]
    while waiting:
        page = waiting.pop()
        for target in linked((ROOT / page).read_text(encoding="utf-8"), page):
            if target.startswith("docs/") or not (ROOT / target).is_file() or files.get_file_from_path(target):
                continue
            content = (ROOT / target).read_bytes()
            files.append(File.generated(config, target, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
            if target.endswith(".md"):
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Rewrites the links of a page to the addresses of the site."""
    here = page.file.src_uri
    source = here if page.file.generated_by else f"docs/{here}"

    def replaced(link: re.Match[str]) -> str:
        return posixpath.relpath(address(link[1], source), posixpath.dirname(here) or ".") + (link[2] or "")

    return "".join(piece if FENCE.fullmatch(piece) else LINK.sub(replaced, piece) for piece in FENCE.split(markdown))


def linked(markdown: str, source: str) -> list[str]:
    """The files of the repository that a page links to, as paths from its root."""
    text = "".join(piece for piece in FENCE.split(markdown) if not FENCE.fullmatch(piece))
    return [repository_path(link[1], source) for link in LINK.finditer(text)]


def repository_path(link: str, source: str) -> str:
    return os.path.normpath(posixpath.join(posixpath.dirname(source), link))


def address(link: str, source: str) -> str:
    """Where a linked file is in the site."""
    return repository_path(link, source).removeprefix("docs/")
