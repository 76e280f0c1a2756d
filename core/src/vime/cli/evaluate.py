"""`vime eval`."""

from __future__ import annotations

import os

from vime.cli.flags import parse_flags, resolve
from vime.cli.ready import require_ready
from vime.cli.render import warn


def eval_command(words: list[str]) -> int:
    """Check the configuration, then evaluate the model on its datasets. Returns the exit code."""
    resolved = resolve(parse_flags(words), dict(os.environ), purpose="eval")
    for line in resolved.warnings:
        warn(line)
    require_ready(resolved.config)
    from vime.loop import evaluate

    return evaluate(resolved)
