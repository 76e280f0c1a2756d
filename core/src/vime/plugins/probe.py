"""Import one installed plugin in a process of its own and say what it implements: `python -m vime.plugins.probe NAME`."""

from __future__ import annotations

import concurrent.futures
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from vime.plugins.discovery import PluginEntry

TIMEOUT = 120.0
"""Seconds that one plugin may take to be imported."""
_MARK = "vime-probe:"


@dataclass(frozen=True)
class Probe:
    """What importing a plugin showed: its hooks, or the error."""

    hooks: tuple[str, ...]
    error: str | None


def probe_all(entries: Sequence[PluginEntry]) -> dict[PluginEntry, Probe]:
    """Probe these entries, a few at a time. What a plugin prints, raises, or does to its process stays there."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        return dict(zip(entries, pool.map(probe, entries), strict=True))


def probe(entry: PluginEntry) -> Probe:
    """Import and validate one plugin in a new interpreter. Classes are not built, since they may need settings.

    With -P, files of the current directory do not hide modules that a plugin imports.
    """
    command = [sys.executable, "-P", "-m", "vime.plugins.probe", entry.target, entry.label]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return Probe((), f"importing it takes longer than {TIMEOUT:.0f} s")
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            answer = json.loads(line.removeprefix(_MARK))
            return Probe(tuple(answer["hooks"]), answer["error"])
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return Probe((), f"importing it ended the process: {last}")


def main(target: str, label: str) -> None:
    """The child's side: prints one marked line of JSON."""
    from vime.errors import PluginError
    from vime.plugins.loading import load_target, settings_class
    from vime.plugins.validation import check_hooks

    hooks: list[str] = []
    problem: str | None = None
    try:
        loaded = load_target(target, label)
        hooks = [found.hook for found in check_hooks(loaded, label)]
        settings_class(loaded, label)
    except PluginError as error:
        problem = error.message.removeprefix(f"{label}: ")
    sys.stdout.write(f"\n{_MARK}{json.dumps({'hooks': hooks, 'error': problem})}\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
