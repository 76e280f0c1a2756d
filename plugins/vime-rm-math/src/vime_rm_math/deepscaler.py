"""The entry point `deepscaler`: 1.0 for a right final answer after the thinking, 0.0 for any other."""

from __future__ import annotations

from vime.api import Sample, hookimpl
from vime_rm_math.grader import accepted_answers
from vime_rm_math.settings import AnswerSettings

END_OF_THINKING = "</think>"


class DeepScaler:
    """Rewards right final answers that come after a closed thinking section; an answer inside of it counts for nothing."""

    class Settings(AnswerSettings):
        """`--set deepscaler.timeout=5`."""

    def __init__(self, settings: Settings) -> None:
        self.grader = settings.grader()

    @hookimpl
    async def custom_rm(self, sample: Sample) -> float:
        """0.0 without `</think>`, else what the reward `math` gives for what follows the last one."""
        name = f"sample {sample.index}"
        _, closed, solution = sample.response.rpartition(END_OF_THINKING)
        if not closed:
            accepted_answers(sample.label, name=name)  # a label that is none is an error for any response
            return 0.0
        return await self.grader.agrade(solution, sample.label, name=name)
