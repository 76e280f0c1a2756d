"""Nothing is lost and nothing is used twice, whatever the order of events: random latencies, failures, filters and aborts.

Time is virtual: the event loop jumps to the next timer, so that thousands of schedules take seconds.
"""

from __future__ import annotations

import asyncio
import json
import random
import selectors
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.api import DynamicFilterOutput, Sample, Status, hookimpl
from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager
from vime.rollout.context import RolloutContext
from vime.rollout.data_source import RolloutDataSourceWithBuffer
from vime.rollout.rewards import RewardScorer
from vime.rollout.runner import RolloutRunner
from vime.rollout.vllm_rollout import VllmRollout
from vime.testing.fakes import FakeEngine

NUM_GPUS = 0

ROLLOUTS = 4


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop without waiting: where nothing is ready, its clock jumps to the next timer."""

    def __init__(self) -> None:
        self.now = 0.0
        loop = self

        class Jumping(selectors.SelectSelector):
            def select(self, timeout: float | None = None) -> Any:
                ready = super().select(0)
                if not ready and timeout:
                    loop.now += timeout
                return ready

        super().__init__(Jumping())

    def time(self) -> float:
        return self.now


@dataclass
class World:
    """One random setting. All that happens in it follows from `seed`."""

    seed: int
    batch: int
    samples: int
    wave: int
    deterministic: bool
    partial: bool
    failure_rate: float
    drop_rate: float
    reward_failure_rate: float
    remove_rate: float
    fan_out: bool
    max_staleness: int | None
    save_and_load: bool
    ends: Counter[str] = field(default_factory=Counter)
    trained: list[int] = field(default_factory=list)

    def chance(self, *key: object) -> float:
        return random.Random(repr((self.seed, *key))).random()


WORLDS = st.builds(
    World,
    seed=st.integers(0, 2**32),
    batch=st.integers(1, 3),
    samples=st.integers(1, 3),
    wave=st.integers(1, 5),
    deterministic=st.booleans(),
    partial=st.booleans(),
    failure_rate=st.sampled_from([0.0, 0.1, 0.4]),
    drop_rate=st.sampled_from([0.0, 0.3, 0.5]),
    reward_failure_rate=st.sampled_from([0.0, 0.1]),
    remove_rate=st.sampled_from([0.0, 0.3]),
    fan_out=st.booleans(),
    max_staleness=st.sampled_from([None, 0, 1]),
    save_and_load=st.booleans(),
)


def hooks_of(world: World) -> ModuleType:
    """A plugin that drops, removes, fails and fans out as `world` says."""
    module = ModuleType("hooks")
    calls: Counter[int | None] = Counter()

    async def custom_rm(args: Any, sample: Sample) -> float:
        await asyncio.sleep(world.chance("reward time", sample.index))
        calls[sample.index] += 1
        if world.chance("reward", sample.index, calls[sample.index]) < world.reward_failure_rate:
            raise RuntimeError("no reward today")
        return float(sample.rollout_id is not None or (sample.index or 0) % 2)

    def dynamic_sampling_filter(samples: list[Sample]) -> DynamicFilterOutput:
        dropped = world.chance("filter", samples[0].group_index) < world.drop_rate
        return DynamicFilterOutput(not dropped, "unlucky", keep_when_insufficient=world.chance("keep", samples[0].group_index) < 0.2)

    def rollout_sample_filter(samples: list[list[Sample]]) -> None:
        for group in samples:
            for sample in group:
                sample.remove_sample = world.chance("remove", sample.index) < world.remove_rate

    async def custom_generate(sample: Sample, sampling_params: Any, engine: Any) -> Sample | list[Sample]:
        sample.tokens = sample.tokens or engine.tokenizer.encode(sample.prompt)
        made = []
        for number in range(1 + (world.chance("fan-out", sample.index) < 0.4)):
            sibling = Sample.from_dict(sample.to_dict())
            sibling.rollout_id = 1000 + (sample.index or 0)
            generation = await engine.generate(sample.tokens, {**sampling_params, "seed": number})
            sibling.append_response_tokens(tokens=generation.token_ids, log_probs=generation.log_probs)
            ends = {"abort": Status.ABORTED, "length": Status.TRUNCATED}
            sibling.status = ends.get(generation.finish_reason, Status.COMPLETED)
            made.append(sibling)
        return made

    for function in (custom_rm, dynamic_sampling_filter, rollout_sample_filter, *([custom_generate] if world.fan_out else [])):
        setattr(module, function.__name__, hookimpl(function))
    return module


class Run:
    """The rollouts of one world, one after the other, and where each rollout index ended."""

    def __init__(self, world: World, prompts: Path) -> None:
        self.world = world
        self.config = RunConfig(
            prompt_data=str(prompts),
            num_rollout=ROLLOUTS,
            rollout_batch_size=world.batch,
            n_samples_per_prompt=world.samples,
            over_sampling_batch_size=world.wave,
            rollout_max_response_len=8,
            partial_rollout=world.partial,
            on_reward_error="drop",
            max_staleness=world.max_staleness,
            dynamic_sampling_max_rounds=100,
            on_exhausted="underfill",
        )
        plugins = PluginManager()
        plugins.add(hooks_of(world), name="hooks")
        self.engine = FakeEngine(
            seed=world.seed,
            failure_rate=world.failure_rate,
            latency=lambda prompt, params: world.chance("latency", tuple(prompt), params["seed"]),
        )
        self.source = RolloutDataSourceWithBuffer(self.config, tokenizer=self.engine.tokenizer)
        self.context = RolloutContext(self.config, self.engine, plugins, RewardScorer(self.config, plugins), world.deterministic)
        self.ended: dict[int, str] = {}

    async def play(self) -> None:
        for rollout_id in range(ROLLOUTS):
            self.source.weight_version = self.engine.weight_version
            before = self.waiting()
            built_in = VllmRollout(self.context, self.source, [])
            rollout = await RolloutRunner(self.context, built_in).train(rollout_id)
            assert not self.engine._running, "nothing is left in the engine"
            self.check_counts(rollout.metrics)
            assert built_in.last is not None
            self.end("trained", rollout.groups)
            self.end("filtered", [group for group, reason in rollout.dropped if reason != "failed"])
            self.end("failed", built_in.last.failed)
            self.check_stale(before, rollout.metrics)
            self.engine.update_weights([], rollout_id + 1)
            if self.world.save_and_load:
                state = json.loads(json.dumps(self.source.state_dict()))
                self.source = RolloutDataSourceWithBuffer(self.config, tokenizer=self.engine.tokenizer)
                self.source.load_state_dict(state)
        waiting = self.waiting()
        assert len(waiting) == len(set(waiting)), "a rollout waits in the buffer once"
        assert self.ended.keys().isdisjoint(waiting), "what has ended is not in the buffer"
        assert set(self.ended) | set(waiting) == set(range(self.source.sample_index)), "every rollout that began is somewhere"

    def waiting(self) -> list[int]:
        """The rollouts in the buffer, by the index of their sample."""
        return [index for group in self.source.buffer for index in indices(group)]

    def end(self, where: str, groups: list[list[Sample]]) -> None:
        for group in groups:
            for index in indices(group):
                assert index not in self.ended, f"{index} was {self.ended[index]} and is {where} again"
                self.ended[index] = where

    def check_counts(self, metrics: dict[str, float]) -> None:
        ends = ("samples_trained", "removed_samples", "samples_filtered", "samples_to_buffer", "samples_aborted", "samples_failed")
        came_in = metrics["samples_generated"] + metrics["samples_from_buffer"]
        assert came_in == sum(metrics[end] for end in ends) + metrics.get("samples_stale", 0), metrics

    def check_stale(self, before: list[int], metrics: dict[str, float]) -> None:
        """What was in the buffer and is nowhere now was dropped as stale, and counted."""
        gone = [index for index in before if index not in self.ended and index not in self.waiting()]
        assert bool(gone) == bool(metrics.get("samples_stale", 0))
        self.ended |= dict.fromkeys(gone, "stale")


def indices(group: list[Sample]) -> list[int]:
    return list(dict.fromkeys(sample.index for sample in group if sample.index is not None))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"input": f"p{number}"}) + "\n" for number in range(7)))
    return path


@given(world=WORLDS)
@settings(max_examples=600, deadline=None, derandomize=True)
def test_every_sample_ends_in_one_place(prompts: Path, world: World) -> None:
    loop = VirtualTimeLoop()
    try:
        loop.run_until_complete(asyncio.wait_for(Run(world, prompts).play(), 10_000))
        assert not asyncio.all_tasks(loop), "no task is left behind"
    finally:
        loop.close()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
