"""What the rewards of this package have in common: the limits of an answer."""

from __future__ import annotations

from pydantic import Field

import vime.api
from vime_rm_math.grader import Grader


class AnswerSettings(vime.api.Settings):
    """Limits of answers that need more than exact arithmetic."""

    timeout: float = Field(default=2.0, gt=0)
    """Limit in seconds of processor time for an answer that needs more than exact arithmetic; past it, a counted timeout."""
    workers: int = Field(default=2, ge=1)
    """Processes that decide such answers. They start with the first one."""

    def grader(self) -> Grader:
        """A grader with these limits."""
        return Grader(timeout=self.timeout, workers=self.workers)
