"""The stream of --pipeline continuous: every sample ends in one place, nothing trained is too old, nothing runs too far ahead.

Time is virtual, so that thousands of schedules take seconds: engines, rewards and trainers of any speed.
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
from vime.errors import ContractError, DataError
from vime.plugins.manager import PluginManager
from vime.rollout.context import RolloutContext
from vime.rollout.data_source import RolloutDataSourceWithBuffer
from vime.rollout.rewards import RewardScorer
from vime.rollout.runner import Rollout, RolloutRunner
from vime.rollout.stream import GroupStream
from vime.rollout.vllm_rollout import VllmRollout
from vime.testing.fakes import FakeEngine

NUM_GPUS = 0

ROLLOUTS = 6


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

    seed: int = 0
    batch: int = 2
    samples: int = 2
    staleness: int = 1
    train_time: float = 1.0
    slow_share: float = 0.0
    """Of the requests, which take twenty times as long."""
    failure_rate: float = 0.0
    drop_rate: float = 0.0
    reward_failure_rate: float = 0.0
    resumes: bool = False
    """Whether every rollout begins in a run of its own, from the state that the one before would have saved."""
    options: dict[str, Any] = field(default_factory=dict)

    def chance(self, *key: object) -> float:
        return random.Random(repr((self.seed, *key))).random()


def hooks_of(world: World) -> ModuleType:
    module = ModuleType("hooks")
    calls: Counter[int | None] = Counter()

    async def custom_rm(args: Any, sample: Sample) -> float:
        await asyncio.sleep(world.chance("reward time", sample.index))
        calls[sample.index] += 1
        if world.chance("reward", sample.index, calls[sample.index]) < world.reward_failure_rate:
            raise RuntimeError("no reward today")
        return float((sample.index or 0) % 2)

    async def dynamic_sampling_filter(samples: list[Sample]) -> DynamicFilterOutput:
        await asyncio.sleep(0.1 * world.chance("filter time", samples[0].group_index))
        dropped = world.chance("filter", samples[0].group_index) < world.drop_rate
        return DynamicFilterOutput(not dropped, "unlucky", keep_when_insufficient=world.chance("keep", samples[0].group_index) < 0.2)

    for function in (custom_rm, dynamic_sampling_filter):
        setattr(module, function.__name__, hookimpl(function))
    return module


class WatchingSource(RolloutDataSourceWithBuffer):
    """Checks at every fetch that no more groups are under way than the rule allows."""

    stream: GroupStream | None = None
    most = 0

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        groups = super().get_samples(num_samples)
        if (stream := self.stream) is not None:
            under_way = len(stream.running) + len(stream.waiting) + len(groups)
            assert stream.batch * stream.target + under_way <= (stream.version + stream.staleness + 1) * stream.target
            self.most = max(self.most, under_way)
        return groups


class Play:
    """The rollouts of one world, one after the other, and where each sample ended."""

    def __init__(self, world: World, prompts: Path) -> None:
        self.world = world
        self.config = RunConfig(
            pipeline="continuous",
            runtime="ray",
            prompt_data=str(prompts),
            rollout_batch_size=world.batch,
            n_samples_per_prompt=world.samples,
            rollout_max_response_len=8,
            max_staleness=world.staleness,
            **{"on_reward_error": "drop", "dynamic_sampling_max_rounds": 100, "num_rollout": ROLLOUTS, **world.options},
        )
        self.plugins = PluginManager()
        self.plugins.add(hooks_of(world), name="hooks")
        self.engine = FakeEngine(seed=world.seed, failure_rate=world.failure_rate, latency=self.latency)
        self.requests = 0
        self.ended: dict[int, str] = {}
        self.rollouts: list[Rollout] = []
        self.begin(0, None, [])

    def latency(self, prompt: Any, params: Any) -> float:
        self.requests += 1
        slow = self.world.chance("slow", self.requests) < self.world.slow_share
        return self.world.chance("latency", self.requests) * (20 if slow else 1)

    def begin(self, rollout_id: int, state: dict[str, Any] | None, in_flight: list[list[dict[str, Any]]]) -> None:
        self.source = WatchingSource(self.config, tokenizer=self.engine.tokenizer)
        if state is not None:
            self.source.load_state_dict(state)
        self.source.buffer[:0] = [[Sample.from_dict(sample) for sample in group] for group in in_flight]
        context = RolloutContext(self.config, self.engine, self.plugins, RewardScorer(self.config, self.plugins), deterministic=False)
        self.built_in = VllmRollout(context, self.source, [])
        self.stream = self.source.stream = self.built_in.stream = GroupStream(context, self.source, first=rollout_id, last=ROLLOUTS)
        self.runner = RolloutRunner(context, self.built_in)

    async def play(self) -> None:
        for rollout_id in range(ROLLOUTS):
            await self.step(rollout_id)
            if self.world.resumes:
                state, in_flight = json.loads(json.dumps([self.source.state_dict(), self.stream.unfinished()]))
                await self.stream.stop()
                self.begin(rollout_id + 1, state, in_flight)
        assert self.stream.unfinished() == [] and not self.engine.running, "no rollout is begun beyond the last"
        await self.stream.stop()
        waiting = [sample.index for group in self.source.buffer for sample in group]
        assert self.ended.keys().isdisjoint(waiting)
        assert set(self.ended) | set(waiting) == set(range(self.source.sample_index)), "every sample that was handed out is somewhere"

    async def step(self, rollout_id: int) -> None:
        rollout = await self.runner.train(rollout_id)
        self.rollouts.append(rollout)
        self.check_counts(rollout.metrics)
        for where, groups in {"trained": rollout.groups, "ended": [group for group, _ in rollout.dropped]}.items():
            for sample in (sample for group in groups for sample in group):
                assert sample.index not in self.ended, f"{sample.index} was {self.ended[sample.index]} and is {where} again"
                self.ended[sample.index] = where
        for sample in (sample for group in rollout.groups for sample in group if sample.status is not Status.FAILED):
            assert 0 <= rollout_id - min(sample.weight_versions) <= self.world.staleness
        await asyncio.sleep(self.world.train_time * self.world.chance("train", rollout_id))
        self.stream.check()
        self.engine.update_weights([], rollout_id + 1, keep_requests=True)
        self.stream.weights_changed()

    def check_counts(self, metrics: dict[str, float]) -> None:
        ends = ("samples_trained", "removed_samples", "samples_filtered", "samples_to_buffer", "samples_aborted", "samples_failed")
        came_in = metrics["samples_generated"] + metrics["samples_from_buffer"]
        assert came_in == sum(metrics[end] for end in ends) + metrics.get("samples_stale", 0), metrics


WORLDS = st.builds(
    World,
    seed=st.integers(0, 2**32),
    batch=st.integers(1, 4),
    samples=st.integers(1, 3),
    staleness=st.sampled_from([0, 1, 3]),
    train_time=st.sampled_from([0.0, 1.0, 10.0]),
    slow_share=st.sampled_from([0.0, 0.1, 0.5]),
    failure_rate=st.sampled_from([0.0, 0.1, 0.4]),
    drop_rate=st.sampled_from([0.0, 0.3, 0.6]),
    reward_failure_rate=st.sampled_from([0.0, 0.1]),
    resumes=st.booleans(),
)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"input": f"p{number}"}) + "\n" for number in range(7)))
    return path


def run(world: World, prompts: Path) -> Play:
    loop = VirtualTimeLoop()

    async def main() -> Play:
        play = Play(world, prompts)
        await asyncio.wait_for(play.play(), 10_000)
        return play

    try:
        play = loop.run_until_complete(main())
        assert not asyncio.all_tasks(loop), "no task is left behind"
    finally:
        loop.close()
    return play


@given(world=WORLDS)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_every_sample_ends_in_one_place_and_none_is_too_old(prompts: Path, world: World) -> None:
    run(world, prompts)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_a_slow_trainer_stops_the_engine_and_a_quick_one_waits(prompts: Path, staleness: int) -> None:
    slow_trainer = run(World(staleness=staleness, train_time=1000.0), prompts)
    assert slow_trainer.source.most == (staleness + 1) * 2
    assert slow_trainer.source.sample_index == ROLLOUTS * 4, "no more prompts are drawn than are trained"
    oldest = [max(5 - min(sample.weight_versions) for group in slow_trainer.rollouts[5].groups for sample in group)]
    assert oldest == [staleness], "an engine that is quick works as far ahead as it may"
    quick_trainer = run(World(staleness=staleness, train_time=0.0), prompts)
    assert quick_trainer.source.most <= (staleness + 1) * 2


def test_what_waits_goes_on_after_a_resume_without_being_made_or_judged_again(prompts: Path) -> None:
    world = World(staleness=3, train_time=100.0, resumes=True)
    play = run(world, prompts)
    assert len(play.engine.requests) == ROLLOUTS * 4, "each sample is generated once"
    assert sum(rollout.metrics["samples_from_buffer"] for rollout in play.rollouts) > 0


def test_what_waits_goes_before_what_is_begun_anew(prompts: Path) -> None:
    """Groups that were refused since the last batch count again after a resume: they must not keep those that wait from their batch."""
    world = World(batch=1, samples=1)
    world.chance = lambda *key: {"filter": float(key[1] not in (1, 2)), "latency": 0.1, "train": 1.0}.get(str(key[0]), 0.5)
    world.drop_rate, world.train_time = 0.5, 100.0
    loop = VirtualTimeLoop()

    async def main() -> list[int]:
        play = Play(world, prompts)
        await play.step(0)
        unfinished = play.stream.unfinished()
        await play.stream.stop()
        return [sample["index"] for group in unfinished for sample in group]

    try:
        assert loop.run_until_complete(main()) == [3, 2]
    finally:
        loop.close()


def test_a_straggler_is_waited_for_only_when_it_would_be_too_old(prompts: Path) -> None:
    """The first request of all takes long. With staleness 2 it is trained in rollout 2."""

    class Straggling(Play):
        def latency(self, prompt: Any, params: Any) -> float:
            self.requests += 1
            return 500.0 if self.requests == 1 else 1.0

    loop = VirtualTimeLoop()

    async def main() -> list[int | None]:
        play = Straggling(World(staleness=2, train_time=1.0, samples=1), prompts)
        for rollout_id in range(3):
            await play.step(rollout_id)
            assert (loop.now >= 500) == (rollout_id == 2)
        await play.stream.stop()
        return [sample.index for group in play.rollouts[2].groups for sample in group]

    try:
        assert 0 in loop.run_until_complete(main())
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ContractError, "gave up after"),
        ({"num_epoch": 1, "num_rollout": None}, DataError, "the data source ran out"),
        ({"on_exhausted": "fallback"}, None, ""),
    ],
)
def test_when_every_group_is_refused_the_bound_holds(prompts: Path, options: dict[str, Any], error: Any, message: str) -> None:
    world = World(drop_rate=1.0, options={"dynamic_sampling_max_rounds": 10, **options})
    world.chance = lambda *key: 0.9 if key[0] == "keep" else 0.5
    if error is None:
        play = run(world, prompts)
        assert all(len(rollout.groups) == 2 for rollout in play.rollouts)
        return
    with pytest.raises(error, match=message):
        run(world, prompts)


def test_groups_that_come_too_old_out_of_the_buffer_are_stale(prompts: Path) -> None:
    loop = VirtualTimeLoop()

    async def main() -> Counter[str]:
        play = Play(World(staleness=1), prompts)
        play.engine.update_weights([], 5)
        play.source.stream = None
        groups = play.source.get_samples(6)
        for version, group in zip((5, 4, 2, 4, 4, 4), groups, strict=True):
            for sample in group:
                # its newest tokens are young enough for the data source, its oldest are not
                sample.append_response_tokens(tokens=[5], log_probs=[-1.0], meta_info={"weight_version": version})
                sample.append_response_tokens(tokens=[5], log_probs=[-1.0], meta_info={"weight_version": 5})
                sample.status, sample.reward = Status.COMPLETED, float(sample.index or 0)
        play.begin(5, play.source.state_dict(), [[sample.to_dict() for sample in group] for group in groups])
        play.stream.last = 7
        totals: Counter[str] = Counter()
        for rollout_id in (5, 6):
            await play.step(rollout_id)
            totals.update({key: int(value) for key, value in play.rollouts[-1].metrics.items() if key.startswith("samples_")})
        await play.stream.stop()
        return totals

    try:
        totals = loop.run_until_complete(main())
    finally:
        loop.close()
    # one group is too old when it is handed out, two of the four that have to be in the first batch do not fit into it
    assert totals["samples_stale"] >= 3 * 2 and totals["samples_trained"] == 8


def test_what_generation_raises_comes_out_of_take_and_check(prompts: Path) -> None:
    loop = VirtualTimeLoop()

    async def main() -> None:
        play = Play(World(reward_failure_rate=1.0, options={"on_reward_error": "raise"}), prompts)
        with pytest.raises(RuntimeError, match="no reward today"):
            await play.step(0)
        with pytest.raises(RuntimeError, match="no reward today"):
            play.stream.check()
        assert not play.engine.running
        await play.stream.stop()

    try:
        loop.run_until_complete(asyncio.wait_for(main(), 100))
        assert not asyncio.all_tasks(loop)
    finally:
        loop.close()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
