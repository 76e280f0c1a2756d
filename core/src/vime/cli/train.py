"""`vime train`."""

from __future__ import annotations

import os

from vime.cli.flags import parse_flags, resolve
from vime.cli.ready import require_ready
from vime.cli.render import warn
from vime.redact import Redactor


def train_command(words: list[str]) -> int:
    """Check the configuration, then train. Returns the exit code."""
    resolved = resolve(parse_flags(words), dict(os.environ))
    with Redactor.of(os.environ, resolved.config).errors():
        for line in resolved.warnings:
            warn(line)
        require_ready(resolved.config)
        from vime.loop import train

        return train(resolved)
