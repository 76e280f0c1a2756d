"""One HTML file out of one or several run folders. It holds all that it needs: nothing is fetched when it is opened."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from vime.report.runs import describe_run, run_folders
from vime.report.samples import shown_samples
from vime.track.console import Console

MAX_BYTES = 4_800_000
"""The page stays below 5 MB; what is left beside code and curves is filled with samples."""
MAX_SAMPLE_BYTES = 3_500_000
_SCRIPTS = ("uPlot.iife.min.js", "format.js", "charts.js", "overview.js", "samples.js", "main.js")
_STYLES = ("uPlot.min.css", "page.css")
_ASSETS = files("vime.report") / "assets"


def write_report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Write the report of these runs and return its path; by default into the run folder, for several to `report.html` here.

    Raises ConfigError for a path that is no run, and OSError where `out` cannot be written.
    """
    folders = run_folders(paths)
    if out is None:
        out = next(iter(folders.values())) / "report.html" if len(folders) == 1 else Path("report.html")
    page = render_page(report_data(folders))
    aside = out.with_name(f".{out.name}.tmp")
    aside.write_text(page, encoding="utf-8")
    aside.replace(out)
    return out


def report_at_end(folder: Path, console: Console) -> None:
    """Write the report of a run that ends, where it logged anything. Never raises: a page is not worth a run."""
    try:
        if (folder / "metrics.jsonl").stat().st_size:
            console.info(f"report: {write_report([folder])}")
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a page, the run has ended well without it
        console.warn(f"the report was not written: {type(error).__name__}: {error}; vime report {folder} tries again")


def report_data(folders: dict[str, Path]) -> dict[str, Any]:
    """What the page shows, as plain data."""
    runs = [describe_run(name, folder) for name, folder in folders.items()]
    used = sum(len(json.dumps(run)) for run in runs) + sum(len(_asset(name)) for name in (*_SCRIPTS, *_STYLES, "page.html"))
    budget = max(0, min(MAX_BYTES - used, MAX_SAMPLE_BYTES)) // len(runs)
    for run, folder in zip(runs, folders.values(), strict=True):
        run["samples"] = vars(shown_samples(folder, budget, _reward_key(folder)))
    return {"runs": runs, "made": time.time()}


def render_page(data: dict[str, Any]) -> str:
    """The HTML. Scripts may run by their hashes only, and nothing may be loaded: whatever a model wrote stays text."""
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "title": ", ".join(run["name"] for run in data["runs"]).translate(_HTML),
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        "style": "\n".join(_asset(name) for name in _STYLES),
        "data": json_for_script(data),
        "script": script,
    }
    head, *pieces = _asset("page.html").split("{{")
    page = head
    for piece in pieces:
        name, _, rest = piece.partition("}}")
        page += parts[name] + rest
    return page


def json_for_script(data: Any) -> str:
    """JSON in ASCII without any character that HTML reads: `<`, `>` and `&` are written as escapes of JSON."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _reward_key(folder: Path) -> str | None:
    import yaml

    try:
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return None
    return config.get("reward_key") if isinstance(config, dict) else None
