"""How much longer a rollout takes with the reward `math` than without, on the quickstart's model.

    uv run python benchmarks/reward_overlap.py            prints the table
    uv run python benchmarks/reward_overlap.py --write    and writes it to benchmarks/reward_overlap.md

Rollouts with and without take turns on one engine, on the same prompts with the same seeds, in an order that changes from
pair to pair; "without" is a reward that returns a constant at once. `exact` has the model's own answers, which exact
arithmetic decides in the calling thread. `pool` has in their place answers that math-verify decides in worker processes,
all of them or one in sixteen. On a machine that does other things as well the wall clock varies, so that processor time
stands beside it: of this process with the engine in it, and of the workers.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from machine import machine
from rewards import symbolic, workers_time

TARGET = 1.05
"""What a rollout with exact answers may take, of that without the reward."""


@dataclass(frozen=True)
class Case:
    """What is measured: the quickstart's own rollout, or one whose samples have 4 to `longest` tokens, so that they end one by one.

    One answer in `symbolic` goes to math-verify. Each repetition counts `weight` times: short rollouts vary more.
    """

    name: str
    longest: int | None = None
    symbolic: int = 0
    weight: int = 1
    groups: int = 16
    samples: int = 8

    def __str__(self) -> str:
        return f"{self.name}; {self.groups} x {self.samples} samples of {f'4 to {self.longest}' if self.longest else 'at most 8'} tokens"

    def length(self, index: int) -> int:
        assert self.longest is not None
        return 4 + index * 37 % (self.longest - 3)


CASES = (
    Case("exact, the quickstart as it is", weight=5),
    Case("exact", 96),
    Case("pool, one answer in 16", 96, symbolic=16),
    Case("pool, every answer", 96, symbolic=1),
)


@dataclass
class Times:
    """Seconds of one rollout: by the clock, of this process on the processors, and of the workers there."""

    wall: float
    own: float
    workers: float


class Rollouts:
    """Training rollouts of one kind, on an engine that others use too."""

    def __init__(self, engine: Any, case: Case, *, math: bool) -> None:
        from vime.api import Sample, hookimpl
        from vime.config.load import load_config
        from vime.plugins.manager import PluginManager
        from vime.quickstart import quickstart_defaults
        from vime.rollout.context import RolloutContext
        from vime.rollout.data_source import RolloutDataSourceWithBuffer
        from vime.rollout.generate import default_generate
        from vime.rollout.rewards import RewardScorer
        from vime.rollout.runner import RolloutRunner
        from vime.rollout.vllm_rollout import VllmRollout

        flags = {
            "plugin": ["math"] if math else [],
            "rollout_batch_size": case.groups,
            "n_samples_per_prompt": case.samples,
            "rollout_max_response_len": case.longest or 8,
            "num_rollout": 10_000,
        }
        self.config = load_config(flags, None, {}, quickstart=quickstart_defaults).config
        plugin = ModuleType("plugin")

        async def custom_rm(sample: Sample) -> float:
            return 1.0

        def rollout_sample_hook(sample: Sample) -> None:
            if case.symbolic and (sample.index or 0) % case.symbolic == 0:
                answer, sample.label = symbolic(sample.index or 0)
                sample.response += answer

        async def custom_generate(sample: Sample, sampling_params: Any) -> Sample:
            length = case.length(sample.index or 0)
            sampling_params |= {"min_new_tokens": length, "max_new_tokens": length}
            return await default_generate(context, sample, sampling_params)

        hooks: list[Any] = [rollout_sample_hook] + [custom_generate] * (case.longest is not None) + [custom_rm] * (not math)
        for function in hooks:
            setattr(plugin, function.__name__, hookimpl(function))
        plugins = PluginManager.load(self.config)
        plugins.add(plugin, name="plugin")
        self.scorer = RewardScorer(self.config, plugins)
        source = RolloutDataSourceWithBuffer(self.config, tokenizer=engine.tokenizer)
        context = RolloutContext(self.config, engine, plugins, self.scorer, deterministic=True)
        self.runner = RolloutRunner(context, VllmRollout(context, source, []))
        self.rollout_id = 0

    def make(self, loop: asyncio.AbstractEventLoop) -> Times:
        before = time.perf_counter(), time.process_time(), workers_time()
        loop.run_until_complete(self.runner.train(self.rollout_id))
        after = time.perf_counter(), time.process_time(), workers_time()
        self.rollout_id += 1
        return Times(*(end - start for start, end in zip(before, after, strict=True)))

    def close(self) -> None:
        self.scorer.close()


def measure(engine: Any, loop: asyncio.AbstractEventLoop, case: Case, rounds: int) -> list[str]:
    """The cells of a row of the table."""
    without, with_math = Rollouts(engine, case, math=False), Rollouts(engine, case, math=True)
    try:
        pairs: list[tuple[Times, Times]] = []
        for number in range(rounds * case.weight + 2):  # the first two do not count: imports, worker processes, caches
            order = (without, with_math) if number % 2 else (with_math, without)
            first, second = order[0].make(loop), order[1].make(loop)
            pairs.append((first, second) if number % 2 else (second, first))
        pairs = pairs[2:]
    finally:
        without.close()
        with_math.close()
    wall = [statistics.median(times.wall for times in column) for column in zip(*pairs, strict=True)]
    own = [statistics.median(times.own for times in column) for column in zip(*pairs, strict=True)]
    workers = statistics.median(times.workers for _, times in pairs)
    ratio = statistics.median(second.wall / first.wall for first, second in pairs)
    own_ratio = statistics.median(second.own / first.own for first, second in pairs)
    milliseconds = [f"{1000 * seconds:,.0f}" for seconds in (*wall, *own, workers)]
    return [str(case), *milliseconds[:2], f"{ratio:.3f}", *milliseconds[2:4], f"{own_ratio:.3f}", milliseconds[4]]


def page(rounds: int) -> str:
    from vime.config.load import load_config
    from vime.engine.local import LocalEngine
    from vime.quickstart import quickstart_defaults
    from vime.runtime.build import new_event_loop, seed_everything
    from vime.runtime.third_party import quiet_third_parties

    quiet_third_parties()
    seed_everything(0)
    config = load_config({"num_rollout": 1}, None, {}, quickstart=quickstart_defaults).config
    assert config.hf_checkpoint is not None
    engine = LocalEngine(config, config.hf_checkpoint, dtype="float32", deterministic=True, concurrency=256)
    loop = new_event_loop()
    try:
        rows = [measure(engine, loop, case, rounds) for case in CASES]
    finally:
        engine.close()
        loop.close()
    header = ["rollout", "without, ms", "with, ms", "ratio", "this process without, ms", "with, ms", "ratio", "workers, ms"]
    table = ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] + ["---:"] * 7, *rows)]
    met = "met" if float(rows[0][3]) <= TARGET else "not met"
    lines = [
        "# What the reward `math` adds to a rollout",
        "",
        "Written by `python benchmarks/reward_overlap.py --write`.",
        "",
        f"Medians of {rounds} pairs of rollouts ({rounds * CASES[0].weight} in the first row) on the quickstart's model, "
        f"{time.strftime('%Y-%m-%d')}; {machine()}. Each pair has the same prompts and seeds; ratios are medians over the pairs. By the "
        "clock, then on the processors.",
        "",
        *table,
        "",
        f"The aim for the quickstart, at most {TARGET - 1:.0%} longer by the clock: {met}. An answer for math-verify costs a worker about "
        "12 ms of a processor, and is scored while others are generated. The last row cannot hide that: its 128 answers need more of the "
        "processors than the generation of so small a model, which has use for all of them itself.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    text = page(options.rounds)
    print(text)
    if options.write:
        (Path(__file__).parent / "reward_overlap.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
