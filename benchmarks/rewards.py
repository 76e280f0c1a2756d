"""What a reward costs: rewards per second, and the time that it adds to a sample, by where it runs, and of `math`.

    python benchmarks/rewards.py            prints the tables
    python benchmarks/rewards.py --write    and writes them to benchmarks/rewards.md

Samples go through vime's scorer as in a run: resolver, error policy and checks included. A custom_rm that returns a constant
runs on the event loop (async), in worker processes (what a synchronous one gets) and in threads: what these cost is vime's
own part. Of `math`, exact answers are decided in the calling thread, the others by math-verify in worker processes. On a
machine that does other things as well the wall clock says little about them, so that processor time stands beside it: of
this process, and of the workers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.api import Sample, Status
from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager
from vime.rollout.rewards import RewardScorer

WORKERS = 2
WAYS = ((64, False), (64, True), (256, True))
"""How many samples are measured, one after the other or together."""
SOLUTION = "Let us see. The first number is 12, and the second is 30; their sum is 42, half of which is 21. " * 8
"""A worked solution of about 760 characters in front of each answer."""


def exact(index: int) -> tuple[str, str]:
    """An answer for exact arithmetic: integers, decimals, fractions and percentages in turn."""
    kinds = [
        (rf"\boxed{{{index}}}", str(index)),
        (f"The answer is {index}.5.", f"{2 * index + 1}/2"),
        (rf"\boxed{{\frac{{{index}}}{{7}}}}", f"{2 * index}/14"),
        (f"#### {index:,}", str(index)),
        (rf"\boxed{{{index}\%}}", f"{index}/100"),
    ]
    return kinds[index % len(kinds)]


def symbolic(index: int) -> tuple[str, str]:
    """An answer for math-verify: roots, polynomials, angles and intervals in turn."""
    number = index + 2
    kinds = [
        (rf"\boxed{{{number}\sqrt{{8}}}}", rf"{2 * number}\sqrt{{2}}"),
        (rf"\boxed{{(x+{number})^2}}", f"x^2+{2 * number}x+{number**2}"),
        (rf"\boxed{{\frac{{{number}\pi}}{{4}}}}", rf"{number}\pi/4"),
        (rf"\boxed{{x > {number}}}", f"({number}, \\infty)"),
    ]
    return kinds[index % len(kinds)]


def sample(index: int, pair: tuple[str, str]) -> Sample:
    answer, label = pair
    return Sample(
        group_index=index // 8,
        index=index,
        prompt="p",
        tokens=[1, 2],
        response=SOLUTION + answer,
        response_length=1,
        label=label,
        status=Status.COMPLETED,
    )


@dataclass
class Row:
    """One measurement of `count` samples, together or one after the other."""

    what: str
    count: int
    together: bool
    wall: float
    own: float
    workers: float

    def cells(self) -> list[str]:
        micro = 1e6 / self.count
        parts = [f"{self.count / self.wall:,.0f}", f"{self.wall * micro:,.0f}", f"{self.own * micro:,.0f}", f"{self.workers * micro:,.0f}"]
        return [self.what, str(self.count) if self.together else "1", *parts]


class Bench:
    """One scorer and its event loop, with these settings."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.config = RunConfig(reward_workers=WORKERS, **settings)
        plugins = PluginManager.load(self.config)
        self.scorer = RewardScorer(self.config, plugins)
        self.runner = asyncio.Runner()

    def close(self) -> None:
        self.scorer.close()
        self.runner.close()

    async def score(self, samples: list[Sample], together: bool) -> None:
        for part in [samples] if together else [[one] for one in samples]:
            await self.scorer.score(part)

    def measure(self, what: str, make: Callable[[int], tuple[str, str]], count: int, together: bool, repetitions: int) -> Row:
        """The median of some repetitions after one that does not count. All rewards have to be 1.0."""
        found: list[tuple[float, float, float]] = []
        for repetition in range(repetitions + 1):
            samples = [sample(index, make(index + repetition * count)) for index in range(count)]
            before = time.perf_counter(), time.process_time(), workers_time()
            self.runner.run(self.score(samples, together))
            after = time.perf_counter(), time.process_time(), workers_time()
            assert all(one.reward == 1.0 for one in samples), [one.response[-60:] for one in samples if one.reward != 1.0][:3]
            if repetition:
                wall, own, workers = (end - start for start, end in zip(before, after, strict=True))
                found.append((wall, own, workers))
        wall, own, workers = (statistics.median(row[place] for row in found) for place in range(3))
        return Row(what, count, together, wall, own, workers)


async def constant(args: object, sample: Sample) -> float:
    """A reward that does nothing."""
    return 1.0


def blocking(args: object, sample: Sample) -> float:
    """The same, synchronous."""
    return 1.0


CASES: tuple[tuple[dict[str, Any], list[tuple[str, Callable[[int], tuple[str, str]]]]], ...] = (
    ({"custom_rm_path": f"{__file__}:constant"}, [("async custom_rm", exact)]),
    ({"custom_rm_path": f"{__file__}:blocking"}, [("custom_rm in a worker", exact)]),
    ({"custom_rm_path": f"{__file__}:blocking", "reward_isolation": "thread"}, [("custom_rm in a thread", exact)]),
    ({"plugin": ["math"]}, [("math, exact answers", exact), ("math, answers for math-verify", symbolic)]),
)
"""Settings, and what is scored under them. The first is what the others are compared with."""


def workers_time() -> float:
    """Processor seconds of the processes below this one, read from /proc."""
    ticks, below = 0, {os.getpid()}
    stats: list[list[str]] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue
            stats.append([entry.name, *text.rpartition(")")[2].split()])
    for _ in range(4):
        below |= {int(row[0]) for row in stats if int(row[2]) in below}
    ticks = sum(int(row[12]) + int(row[13]) for row in stats if int(row[0]) in below - {os.getpid()})
    return ticks / os.sysconf("SC_CLK_TCK")


def table(rows: list[Row]) -> list[str]:
    head = ["what", "samples at once", "rewards/s", "wall, us a sample", "this process, us a sample", "workers, us a sample"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row.cells()) + " |" for row in rows]


def page(repetitions: int) -> str:
    from machine import machine  # not above: workers load this file as the reward, by its path

    rows: list[Row] = []
    for settings, cases in CASES:
        bench = Bench(settings)
        try:
            for what, make in cases:
                rows += [bench.measure(what, make, count, together, repetitions) for count, together in WAYS]
        finally:
            bench.close()
    nothing, *others = (row for row in rows if row.count == 256)
    added = (f"{1e6 * (row.own - nothing.own) / 256:,.0f} us by {row.what}" for row in others)
    lines = [
        "# What a reward costs",
        "",
        "Written by `python benchmarks/rewards.py --write`.",
        "",
        f"Medians of {repetitions} repetitions, {time.strftime('%Y-%m-%d')}; {machine()}. Solutions of about {len(SOLUTION)} characters; "
        f"{WORKERS} workers. `samples at once` are scored together, as those of a rollout that end at the same time; 1 is the latency of a "
        "sample that comes alone.",
        "",
        *table(rows),
        "",
        f"Added to a sample, in processor time of this process, over the async custom_rm: {', '.join(added)}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables to benchmarks/rewards.md")
    parser.add_argument("--repetitions", type=int, default=15)
    arguments = parser.parse_args()
    text = page(arguments.repetitions)
    print(text, end="")
    if arguments.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
