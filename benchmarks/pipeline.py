"""The step time of the three pipelines, with engines and trainers whose cost is set by sleeping.

    python benchmarks/pipeline.py            prints the table
    python benchmarks/pipeline.py --write    and writes it to benchmarks/pipeline.md

Whole runs of `vime.loop.train` on `FakePlacement`: everything is real but the engine, which has so many slots that a
rollout of even answers costs what the table says, and the trainer, which sleeps. The pipelines take turns; each figure is
the median over the steps of all rounds, without the first two of a run and the last, which has no rollout beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import random
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from machine import machine

from vime.api import Sample, hookimpl
from vime.config.load import Resolved
from vime.config.run_config import RunConfig
from vime.loop import train
from vime.plugins.manager import PluginManager
from vime.testing.fakes import FakeEngine
from vime.testing.placement import QUICKSTART, FakePlacement, FakeTrainer

PIPELINES = ("sync", "async", "continuous")
BATCH, SAMPLES, SYNC = 8, 4, 0.02


async def custom_rm(args: Any, sample: Sample) -> float:
    return float((sample.index or 0) % 2)


class SlotEngine(FakeEngine):
    """Serves so many requests at a time; the others wait."""

    def __init__(self, slots: int, latency: Callable[[], float]) -> None:
        super().__init__(latency=lambda token_ids, params: latency())
        self._slots, self._free = slots, None

    async def generate(self, *arguments: Any, **options: Any) -> Any:
        self._free = self._free or asyncio.Semaphore(self._slots)
        async with self._free:
            return await super().generate(*arguments, **options)


@dataclass(frozen=True)
class Setting:
    """What a rollout and a step of training cost, in seconds. With `uneven` every tenth answer is ten times as long."""

    name: str
    rollout: float
    train: float
    uneven: bool = False
    max_staleness: int = 1

    def engine(self) -> SlotEngine:
        if not self.uneven:
            return SlotEngine(BATCH * SAMPLES, lambda: self.rollout)
        rng = random.Random(0)
        slots = BATCH * SAMPLES // 2
        mean = self.rollout * slots / (BATCH * SAMPLES)  # keeps all slots busy for as long as a rollout takes
        return SlotEngine(slots, lambda: mean / 1.9 * (10 if rng.random() < 0.1 else 1))


SETTINGS = (
    Setting("rollout 0.2 s, training 0.2 s", 0.2, 0.2),
    Setting("rollout 0.3 s, training 0.1 s", 0.3, 0.1),
    Setting("rollout 0.1 s, training 0.3 s", 0.1, 0.3),
    Setting("uneven answers, 0.2 s of all slots, training 0.2 s", 0.2, 0.2, uneven=True),
    Setting("the same, --max-staleness 3", 0.2, 0.2, uneven=True, max_staleness=3),
)


def steps(setting: Setting, pipeline: str, rollouts: int) -> list[dict[str, float]]:
    """The perf metrics of the steps of one run."""
    module = ModuleType("reward")
    module.custom_rm = hookimpl(custom_rm)  # type: ignore[attr-defined]
    plugins = PluginManager()
    plugins.add(module, name="reward")
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"input": f"p{number}"}) + "\n" for number in range(100)))
        config = RunConfig(
            pipeline=pipeline,  # type: ignore[arg-type]
            runtime="local" if pipeline == "sync" else "ray",
            max_staleness=setting.max_staleness if pipeline == "continuous" else None,
            deterministic=False,
            hf_checkpoint=str(QUICKSTART),
            prompt_data=str(prompts),
            num_rollout=rollouts,
            rollout_batch_size=BATCH,
            n_samples_per_prompt=SAMPLES,
            rollout_max_response_len=4,
            run_dir=str(Path(folder) / "run"),
            quiet=True,
            tensorboard=False,
            sample_every=0,
        )
        engine = setting.engine()
        placement = FakePlacement(engine, FakeTrainer(engine, setting.train), sync_seconds=SYNC)
        with patch.object(PluginManager, "load", lambda config: plugins):
            assert train(Resolved(config, {}), placement) == 0
        lines = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "perf/step_time" in line]


def row(setting: Setting, rounds: int, rollouts: int) -> str:
    found: dict[str, list[dict[str, float]]] = {pipeline: [] for pipeline in PIPELINES}
    for _ in range(rounds):
        for pipeline in PIPELINES:
            found[pipeline] += steps(setting, pipeline, rollouts)[2:-1]

    def median(pipeline: str, key: str) -> float:
        return statistics.median(line[f"perf/{key}"] for line in found[pipeline])

    rollout, training, sync = (median("sync", f"{key}_time") for key in ("rollout", "train", "sync"))
    times = " | ".join(f"{median(pipeline, 'step_time'):.3f}" for pipeline in PIPELINES)
    return f"| {setting.name} | {rollout:.3f} | {rollout + training + sync:.3f} | {max(rollout, training) + sync:.3f} | {times} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=10)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = "\n".join(row(setting, options.rounds, options.rollouts) for setting in SETTINGS)
    text = f"""# Step time of the pipelines

Written by `python benchmarks/pipeline.py --write`.

Seconds, medians of {options.rounds} runs of {options.rollouts} steps for each figure, the pipelines taking turns; a weight sync
sleeps {SYNC} s.
{datetime.datetime.now(tz=datetime.UTC).date()}; {machine()}.
Engines and trainers are asleep while they work, so that nothing but vime's own work is added. Rollout, sum and maximum
(the larger of rollout and training) are those of sync, with the sync.

| cost | rollout | sum | maximum | sync | async | continuous |
|---|---|---|---|---|---|---|
{rows}

With uneven answers a rollout of sync and async waits for its longest one while most slots are idle; continuous fills them with
the next groups, and its step approaches the time that all slots need, which is less than the rollout's. How near it comes is a
matter of `--max-staleness`: a long answer is waited for when it would become too old.
"""
    print(text)
    if options.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
