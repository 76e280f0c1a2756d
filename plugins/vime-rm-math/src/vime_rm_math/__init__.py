"""Rewards for mathematical answers, for vime: `grade(response, label)` and the plugin `math`."""

from __future__ import annotations

from vime_rm_math.extract import extract_answer
from vime_rm_math.grader import Grader, grade

__all__ = ["Grader", "extract_answer", "grade"]
