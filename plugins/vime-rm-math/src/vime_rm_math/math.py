"""The entry point `math`: 1.0 for a right final answer, 0.0 for any other."""

from __future__ import annotations

from pydantic import Field

from vime.api import Sample, hookimpl
from vime.api import Settings as BaseSettings
from vime_rm_math.grader import Grader


class Math:
    """Rewards right final answers."""

    class Settings(BaseSettings):
        timeout: float = Field(default=2.0, gt=0)
        """Limit in seconds of processor time for an answer that needs more than exact arithmetic; past it, a counted timeout."""
        workers: int = Field(default=2, ge=1)
        """Processes that decide such answers. They start with the first one."""

    def __init__(self, settings: Settings) -> None:
        self.grader = Grader(timeout=settings.timeout, workers=settings.workers)

    @hookimpl
    async def custom_rm(self, sample: Sample) -> float:
        """Compare the final answer of the response with the label."""
        return await self.grader.agrade(sample.response, sample.label, name=f"sample {sample.index}")
