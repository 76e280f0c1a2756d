"""What a group costs in a rollout of many: filters, buffer and data source on FakeEngine, at 1,000, 10,000 and 100,000 groups.

    python benchmarks/rollout_scale.py            prints the table
    python benchmarks/rollout_scale.py --write    and writes it to benchmarks/rollout_scale.md

Each figure comes from a process of its own. Time is processor time, memory what the process holds at most beyond what it
held before the rollout. The engine answers at once with four tokens, so nearly all of it is vime's (and FakeEngine's) own
work. Linear means: the same time and memory for a group, whatever their number.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from machine import machine

from vime.api import Sample, Status, hookimpl
from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager
from vime.rollout.context import RolloutContext
from vime.rollout.data_source import RolloutDataSourceWithBuffer
from vime.rollout.rewards import RewardScorer
from vime.rollout.runner import RolloutRunner
from vime.rollout.vllm_rollout import VllmRollout
from vime.testing.fakes import FakeEngine

GROUPS = (1_000, 10_000, 100_000)
SAMPLES = 2
PROMPTS = 1_000
FETCHES = 10
"""Fetches in which a buffer is emptied by a buffer filter, which sees the whole buffer each time."""


async def custom_rm(args: Any, sample: Sample) -> float:
    return float((sample.index or 0) % 2)


def dynamic_sampling_filter(samples: list[Sample]) -> bool:
    """Drops a third of the groups."""
    return (samples[0].group_index or 0) % 3 != 0


def rollout_sample_filter(samples: list[list[Sample]]) -> None:
    for group in samples:
        group[0].remove_sample = (group[0].group_index or 0) % 7 == 0


def buffer_filter(buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
    """Takes the last ones."""
    return buffer[-num_samples:]


class Run:
    """A rollout of `groups` groups over a folder's prompts."""

    def __init__(self, folder: Path, groups: int, *, deterministic: bool = False, filters: bool = True, **options: Any) -> None:
        prompts = folder / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"input": f"prompt {number}"}) + "\n" for number in range(PROMPTS)))
        module = ModuleType("scale")
        for function in (custom_rm, *([dynamic_sampling_filter, rollout_sample_filter, buffer_filter] if filters else [])):
            setattr(module, function.__name__, hookimpl(function))
        plugins = PluginManager()
        plugins.add(module, name="scale")
        defaults = {"rollout_batch_size": groups, "over_sampling_batch_size": groups * 8 // 5, "num_rollout": 1}
        self.config = RunConfig(
            prompt_data=str(prompts), n_samples_per_prompt=SAMPLES, rollout_max_response_len=4, **{**defaults, **options}
        )
        engine = FakeEngine(policy=lambda token_ids, params: [5, 6, 7, 8])
        chosen_by: Any = plugins.claimed("buffer_filter")
        self.source = RolloutDataSourceWithBuffer(self.config, tokenizer=engine.tokenizer, buffer_filter=chosen_by)
        scorer = RewardScorer(self.config, plugins)
        self.context = RolloutContext(self.config, engine, plugins, scorer, deterministic)

    def rollout(self, number: int = 0) -> dict[str, float]:
        runner = RolloutRunner(self.context, VllmRollout(self.context, self.source, []))
        return asyncio.run(runner.train(number, lambda collected: None)).metrics

    def fill_buffer(self, groups: int) -> None:
        """Put finished groups into the buffer, as surplus would be."""
        made = self.source.get_samples(groups)
        for sample in (sample for group in made for sample in group):
            sample.tokens, sample.status, sample.reward = [4, 5], Status.COMPLETED, 1.0
            sample.append_response_tokens(tokens=[5, 6, 7, 8], log_probs=[-1.0] * 4, meta_info={"weight_version": 0}, text="1234")
        self.source.add_samples(made)


# The cases: each builds what it needs and returns what is measured, and by how many groups it is divided.

Measured = tuple[Callable[[], Any], int]


def one_rollout(folder: Path, groups: int) -> Measured:
    """One rollout that keeps as many groups; a third is dropped, a tenth goes back to the buffer; groups as they complete."""
    return Run(folder, groups).rollout, groups * 8 // 5


def one_rollout_in_waves(folder: Path, groups: int) -> Measured:
    """The same in deterministic mode."""
    return Run(folder, groups, deterministic=True).rollout, groups * 8 // 5


def small_rollouts(folder: Path, groups: int) -> Measured:
    """Rollouts of 100 groups, one after the other, out of a buffer with that many groups, under --max-staleness."""
    run = Run(folder, 100, filters=False, over_sampling_batch_size=100, max_staleness=5)
    run.fill_buffer(groups)
    run.source.weight_version = 1
    return lambda: [run.rollout(number) for number in range(groups // 100)], groups


def one_by_one(folder: Path, groups: int) -> Measured:
    """One rollout that fetches its groups one by one out of a full buffer."""
    run = Run(folder, groups, filters=False, over_sampling_batch_size=1, max_staleness=5)
    run.fill_buffer(groups)
    run.source.weight_version = 1
    return lambda: [run.source.get_samples(1) for _ in range(groups)], groups


def filtered_buffer(folder: Path, groups: int) -> Measured:
    """A buffer of that many groups, emptied in ten fetches by a buffer filter, which sees all of it each time."""
    run = Run(folder, groups)
    run.fill_buffer(groups)
    return lambda: [run.source.get_samples(groups // FETCHES) for _ in range(FETCHES)], groups


def state(folder: Path, groups: int) -> Measured:
    """The state of a data source with that many groups in the buffer: to JSON text, and back."""
    run = Run(folder, groups)
    run.fill_buffer(groups)
    return lambda: run.source.load_state_dict(json.loads(json.dumps(run.source.state_dict()))), groups


CASES = (one_rollout, one_rollout_in_waves, small_rollouts, one_by_one, filtered_buffer, state)


def measure(case: str, groups: int) -> tuple[float, float]:
    """Microseconds of processor time and bytes of memory for each group, measured in this process."""
    with tempfile.TemporaryDirectory() as folder:
        made: Measured = globals()[case](Path(folder), groups)
        action, divisor = made
        gc.collect()
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.process_time()
        action()
        seconds = time.process_time() - started
        return 1e6 * seconds / divisor, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) / divisor


def in_own_process(case: str, groups: int) -> tuple[float, float]:
    command = [sys.executable, __file__, "--one", case, str(groups)]
    microseconds, size = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return microseconds, size


def table(sizes: list[int]) -> str:
    head = [f"{size:,} groups" for size in sizes]
    lines = [f"| | {' | '.join(f'{name}: µs' for name in head)} | {' | '.join(f'{name}: bytes' for name in head)} |"]
    lines.append("|---|" + "---|" * (2 * len(sizes)))
    for case in CASES:
        figures = [in_own_process(case.__name__, size) for size in sizes]
        cells = [f"{microseconds:.0f}" for microseconds, _ in figures] + [f"{size:,.0f}" for _, size in figures]
        lines.append(f"| {(case.__doc__ or '').strip()} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/rollout_scale.md")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(GROUPS))
    parser.add_argument("--one", nargs=2, metavar=("CASE", "GROUPS"), help="measure one case in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]))))
        return
    text = f"""# What a group costs in a rollout of many

Written by `python benchmarks/rollout_scale.py --write`.

Microseconds of processor time, and bytes of memory at the highest point, for each group of {SAMPLES} samples;
{datetime.datetime.now(tz=datetime.UTC).date()}; {machine()}.
FakeEngine answers each request at once with four tokens. Linear means that the figures of a row do not grow with the number.

{table(options.sizes)}

What still grows from 1,000 to 10,000 groups in the first two rows is Python's cyclic garbage collector, which walks what is
in flight; without it the figures are level. A list is shortened at its front for each fetch from the buffer: with
fetches of one group that is the growth of the fourth row. A buffer filter sees the whole buffer at each fetch, so the cost of
a fetch is that of the buffer.
"""
    print(text)
    if options.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
