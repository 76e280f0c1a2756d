"""The entry point `math`: 1.0 for a right final answer, 0.0 for any other."""

from __future__ import annotations

from vime.api import Sample, hookimpl
from vime_rm_math.settings import AnswerSettings


class Math:
    """Rewards right final answers."""

    class Settings(AnswerSettings):
        """`--set math.timeout=5`."""

    def __init__(self, settings: Settings) -> None:
        self.grader = settings.grader()

    @hookimpl
    async def custom_rm(self, sample: Sample) -> float:
        """Compare the final answer of the response with the label."""
        return await self.grader.agrade(sample.response, sample.label, name=f"sample {sample.index}")
