"""The arithmetic problems of the quickstart: sums and differences of three small numbers, asked in a few ways.

Everything here follows from its seed, so that the files beside this module can be made again. A problem that is held
out has operands, in whatever order and operation, that no problem of the warm start or of the training has.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

LARGEST_OPERAND = 9
HELD_OUT_FRACTION = 0.2
SEED = 20
NAMES = ("Ann", "Ben", "Mia", "Tom")
THINGS = ("pens", "cups", "keys", "nuts")
PHRASES = {
    "sum": (
        "What is {a} + {b} + {c}?",
        "Add {a}, {b} and {c}.",
        "{name} has {a} red, {b} blue and {c} green {things}. How many in all?",
    ),
    "difference": (
        "What is {a} + {b} - {c}?",
        "Add {a} and {b}, then take away {c}.",
        "{name} has {a} red and {b} blue {things} and loses {c}. How many are left?",
    ),
}
"""Ways to ask for a + b + c and for a + b - c."""

Operands = tuple[int, int, int]


@dataclass(frozen=True)
class Problem:
    """For example Problem("sum", (4, 9, 2), "Add 4, 9 and 2.", 15)."""

    operation: str
    operands: Operands
    text: str
    answer: int

    @property
    def label(self) -> str:
        return str(self.answer)


def boxed(answer: int) -> str:
    """The response that solves a problem."""
    return f"\\boxed{{{answer}}}"


@cache
def split_operands(seed: int = SEED) -> tuple[tuple[Operands, ...], tuple[Operands, ...]]:
    """All operand tuples in ascending order: those for warm start and training, and those that are held out."""
    everything = list(itertools.combinations_with_replacement(range(1, LARGEST_OPERAND + 1), 3))
    random.Random(seed).shuffle(everything)
    held_out = round(HELD_OUT_FRACTION * len(everything))
    return tuple(everything[held_out:]), tuple(everything[:held_out])


def draw(rng: random.Random, operands: tuple[Operands, ...]) -> Problem:
    """A random problem over one of the operand tuples, in random order; its answer is never negative."""
    a, b, c = rng.sample(rng.choice(operands), 3)
    operation = rng.choice(tuple(PHRASES))
    if operation == "difference" and a + b < c:
        a, c = c, a
    text = rng.choice(PHRASES[operation]).format(a=a, b=b, c=c, name=rng.choice(NAMES), things=rng.choice(THINGS))
    return Problem(operation, (a, b, c), text, a + b + c if operation == "sum" else a + b - c)


def training_problems(count: int, seed: int = SEED) -> list[Problem]:
    """Different problems to train on."""
    return _different(count, random.Random(seed + 1), split_operands(seed)[0])


def held_out_problems(count: int, seed: int = SEED) -> list[Problem]:
    """Different problems that share no operand tuple with the warm start or the training."""
    return _different(count, random.Random(seed + 2), split_operands(seed)[1])


def demonstrations(count: int, *, wrong_from: int, wrong_fraction: float, seed: int = SEED) -> Iterator[tuple[str, str]]:
    """Questions and answers for the warm start; from number `wrong_from` on, this fraction of the answers is wrong.

    A model that has seen both knows how to calculate and is unsure of it: what reinforcement learning starts from.
    A wrong answer is any other number that a problem can have as its answer.
    """
    rng = random.Random(seed + 3)
    for number in range(count):
        problem = draw(rng, split_operands(seed)[0])
        answer = problem.answer
        if number >= wrong_from and rng.random() < wrong_fraction:
            answer = rng.choice([other for other in range(3 * LARGEST_OPERAND + 1) if other != answer])
        yield problem.text, boxed(answer)


def _different(count: int, rng: random.Random, operands: tuple[Operands, ...]) -> list[Problem]:
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        problem = draw(rng, operands)
        problems.setdefault(problem.text, problem)
    return list(problems.values())
