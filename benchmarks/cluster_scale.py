"""What the driver of a large run has to do: 1,000 simulated engines, 64 simulated ranks, and the real code between them.

    python benchmarks/cluster_scale.py            prints the tables
    python benchmarks/cluster_scale.py --write    and writes them to benchmarks/cluster_scale.md

The rollout, the reward scorer, the pool and its router are those of a run. An engine is a timer: it answers each request
after its tokens at `TOKENS_PER_SECOND` each, `SLOTS` requests at once, with a payload that has to be unpickled as one from
Ray has. The processor time that a message costs the driver in Ray itself is measured first, with real actors, and spent
once more in every message to a simulated engine. `--speed` makes engines faster than real ones, to find where the driver
becomes the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import gc
import heapq
import itertools
import json
import pickle
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any

from machine import machine

from vime.api import Sample, hookimpl
from vime.config.run_config import RunConfig
from vime.engine.host import Poll, Request
from vime.engine.pool import EnginePool
from vime.engine.routing import Router
from vime.outputs import Generation
from vime.plugins.manager import PluginManager
from vime.rollout.context import RolloutContext
from vime.rollout.data_source import RolloutDataSourceWithBuffer
from vime.rollout.rewards import RewardScorer
from vime.rollout.runner import RolloutRunner
from vime.rollout.vllm_rollout import VllmRollout
from vime.testing.fakes import FakeTokenizer

ENGINES = (1, 10, 100, 1_000)
SPEEDS = (1, 4, 16)
RANKS = 64
SAMPLES = 8
SLOTS = 64
"""Requests that an engine works on at once."""
TOKENS_PER_SECOND = 40.0
"""Of one request, on a GPU with `SLOTS` of them: the order of a 7B model on one H100-class GPU."""
MEAN_TOKENS = 256
PROMPT_TOKENS = 128


async def custom_rm(args: Any, sample: Sample) -> float:
    return float((sample.index or 0) % 2)


class Pool(EnginePool):
    """Notes how long each answer was under way: its text is the moment when it was due."""

    lags: list[float]

    async def generate(self, *args: Any, **options: Any) -> Generation:
        generation = await super().generate(*args, **options)
        self.lags.append(time.perf_counter() - float(generation.text))
        return generation


class Tokenizer(FakeTokenizer):
    """Encodes at once: what a tokenizer costs is its own affair."""

    def __init__(self) -> None:
        super().__init__(150_000)

    def encode(self, text: str, *args: Any, **options: Any) -> list[int]:
        first = hash(text) % 100_000
        return list(range(first, first + PROMPT_TOKENS))


class Clock(threading.Thread):
    """Calls engines at their times, from a thread of its own, as Ray does."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.changed = threading.Condition()
        self.due: list[tuple[float, int, SimulatedEngine]] = []
        self.numbers = itertools.count()

    def at(self, when: float, engine: SimulatedEngine) -> None:
        with self.changed:
            heapq.heappush(self.due, (when, next(self.numbers), engine))
            self.changed.notify()

    def run(self) -> None:
        while True:
            with self.changed:
                while not self.due or self.due[0][0] > time.perf_counter():
                    self.changed.wait(self.due[0][0] - time.perf_counter() if self.due else None)
                _, _, engine = heapq.heappop(self.due)
            engine.answer()


class SimulatedEngine:
    """An `EngineHandle` to a timer."""

    def __init__(self, index: int, speed: float, message_seconds: float, payload: bytes, clock: Clock) -> None:
        self.label = f"engine {index}"
        self.rate, self.message_seconds, self.payload, self.clock = TOKENS_PER_SECOND * speed, message_seconds, payload, clock
        self.random = random.Random(index)
        self.running: list[tuple[float, int, int]] = []
        self.queued: deque[int] = deque()
        self.waiting: Future[Poll] | None = None
        self.lock = threading.Lock()
        self.steps = 0
        self.heartbeat = 0.0

    def call(self, method: str, *args: Any) -> Future[Any]:
        _spend(self.message_seconds)
        answer: Future[Any] = Future()
        if method == "submit":
            requests: list[Request] = pickle.loads(pickle.dumps(args[0]))
            with self.lock:
                for request in requests:
                    self._start(request.request_id)
                self.clock.at(self.running[0][0], self)
            answer.set_result(None)
        elif method == "poll":
            with self.lock:
                self.waiting = answer
                self.heartbeat = time.perf_counter() + 1.0
                self.clock.at(min(self.heartbeat, self.running[0][0] if self.running else self.heartbeat), self)
        else:
            answer.set_result(None)
        return answer

    def _start(self, request_id: int) -> None:
        if len(self.running) >= SLOTS:
            self.queued.append(request_id)
            return
        tokens = max(1, int(self.random.lognormvariate(0.0, 0.5) * MEAN_TOKENS * 0.88))
        heapq.heappush(self.running, (time.perf_counter() + tokens / self.rate, request_id, tokens))

    def answer(self) -> None:
        with self.lock:
            if self.waiting is None:
                return
            now, results = time.perf_counter(), []
            while self.running and self.running[0][0] <= now:
                due, request_id, tokens = heapq.heappop(self.running)
                token_ids, log_probs = pickle.loads(self.payload)
                results.append((request_id, Generation(token_ids[:tokens], log_probs[:tokens], str(due), "stop", 0)))
                if self.queued:
                    self._start(self.queued.popleft())
            if not results and now < self.heartbeat:
                self.clock.at(min(self.heartbeat, self.running[0][0] if self.running else self.heartbeat), self)
                return
            self.steps += 1
            waiting, self.waiting = self.waiting, None
        waiting.set_result(Poll(results, self.steps))

    def kill(self) -> None:
        pass


def _spend(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def rollout(engines: int, speed: float, message_seconds: float) -> dict[str, float]:
    """One rollout that gives every engine `SLOTS` requests, and what it cost the driver."""
    groups = engines * SLOTS // SAMPLES
    generator = random.Random(0)
    payload = pickle.dumps(([generator.randrange(150_000) for _ in range(MEAN_TOKENS)], [-generator.random() for _ in range(MEAN_TOKENS)]))
    module = ModuleType("scale")
    setattr(module, "custom_rm", hookimpl(custom_rm))  # noqa: B010
    plugins = PluginManager()
    plugins.add(module, name="scale")
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        words = [" ".join(f"w{generator.randrange(10**6)}" for _ in range(16)) for _ in range(1_000)]
        prompts.write_text("".join(json.dumps({"input": text}) + "\n" for text in words))
        config = RunConfig(
            prompt_data=str(prompts), rollout_batch_size=groups, n_samples_per_prompt=SAMPLES, rollout_max_response_len=4 * MEAN_TOKENS
        )
        tokenizer: Any = Tokenizer()
        clock = Clock()
        clock.start()
        handles = [SimulatedEngine(index, speed, message_seconds, payload, clock) for index in range(engines)]
        pool = Pool(
            handles,
            start=lambda index: handles[index],
            put=list,
            tokenizer=tokenizer,
            max_model_len=2**20,
            router=Router(slack=SAMPLES * 4 * MEAN_TOKENS),
            max_restarts=0,
            engine_timeout=600.0,
            sync_timeout=600.0,
            say=print,
        )
        pool.lags = []
        source = RolloutDataSourceWithBuffer(config, tokenizer=tokenizer, buffer_filter=None)
        context = RolloutContext(config, pool, plugins, RewardScorer(config, plugins), deterministic=False)
        runner = RolloutRunner(context, VllmRollout(context, source, []))
        gc.collect()
        gc.freeze()
        before, cpu, wall = _memory(), time.process_time(), time.perf_counter()
        asyncio.run(runner.train(0, lambda collected: None))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    lags = sorted(pool.lags)
    return {
        "groups": groups,
        "wall": wall,
        "cpu_ms": 1000 * cpu / groups,
        "busy": cpu / wall,
        "lag_p50": 1000 * lags[len(lags) // 2],
        "lag_p99": 1000 * lags[int(len(lags) * 0.99)],
        "kib": (_memory() - before) / groups / SAMPLES / 1024,
    }


def _memory() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def message_cost(messages: int = 2_000) -> float:
    """Seconds of the driver's processor time for a message to an actor and its answer, all threads of the process together."""
    from vime.runtime.ray.calls import as_future
    from vime.runtime.ray.cluster import Cluster

    cluster = Cluster(None)
    cluster.open(lambda what: None)
    import ray

    class Answers:
        async def call(self, method: str, *args: Any) -> Any:
            return args

    actor = ray.remote(num_cpus=0)(Answers).remote()
    request = [Request(1, list(range(PROMPT_TOKENS)), {"temperature": 1.0, "max_new_tokens": 4 * MEAN_TOKENS, "seed": 1})]

    async def ask() -> None:
        for _ in range(messages):
            await asyncio.wrap_future(as_future(actor.call.remote("submit", request), RuntimeError))  # type: ignore[arg-type]

    asyncio.run(ask())
    started = time.process_time()
    asyncio.run(ask())
    spent = time.process_time() - started
    cluster.close()
    return spent / messages


def rank_cost(ranks: int, rounds: int = 50) -> dict[str, float]:
    """A round of calls to so many real actors that do nothing: seconds of processor time of the driver, and seconds by the clock."""
    from vime.runtime.ray.cluster import Cluster

    cluster = Cluster(None)
    cluster.open(lambda what: None)
    import ray

    class Rank:
        def begin(self, batch: Any) -> float:
            return 0.0

    actors = [ray.remote(num_cpus=0)(Rank).remote() for _ in range(ranks)]
    batch = ray.put({})
    ray.get([actor.begin.remote(batch) for actor in actors])
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(rounds):
        ray.get([actor.begin.remote(batch) for actor in actors])
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    cluster.close()
    return {"cpu": cpu / rounds, "wall": wall / rounds}


def in_a_process(*words: str) -> Any:
    finished = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=True)
    return json.loads(finished.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--case", nargs=3, type=float, metavar=("ENGINES", "SPEED", "MESSAGE_SECONDS"))
    parser.add_argument("--message-cost", action="store_true")
    parser.add_argument("--ranks", type=int)
    arguments = parser.parse_args()
    if arguments.message_cost:
        print(json.dumps(message_cost()))
        return
    if arguments.ranks:
        print(json.dumps(rank_cost(arguments.ranks)))
        return
    if arguments.case:
        engines, speed, seconds = arguments.case
        print(json.dumps(rollout(int(engines), speed, seconds)))
        return
    message = statistics.median(in_a_process("--message-cost") for _ in range(3))
    rows: list[str] = []
    cases = [(engines, 1) for engines in ENGINES] + [(ENGINES[-1], speed) for speed in SPEEDS[1:]]
    for engines, speed in cases:
        found = in_a_process("--case", str(engines), str(speed), str(message))
        needed = engines * SLOTS * TOKENS_PER_SECOND * speed / MEAN_TOKENS / SAMPLES
        rows.append(
            f"| {engines:,} | {speed} | {found['groups']:,.0f} | {needed:,.0f} | {1000 / found['cpu_ms']:,.0f} | {found['cpu_ms']:.2f} | "
            f"{found['busy']:.2f} | {found['wall']:.1f} | {found['lag_p50']:.0f} | {found['lag_p99']:.0f} | {found['kib']:.0f} |"
        )
        print(rows[-1], flush=True)
    ranks = in_a_process("--ranks", str(RANKS))
    text = f"""# The driver of a large run

Written by `python benchmarks/cluster_scale.py --write`.

{datetime.date.today()}; {machine()}.
Engines are simulated: {SLOTS} requests at once, {TOKENS_PER_SECOND:g} tokens a second each, answers of {MEAN_TOKENS} tokens in the
mean (lognormal); groups of {SAMPLES}. The driver's code is the real one. A message to an actor and its answer cost the driver
{1e6 * message:.0f} µs in Ray (measured with a real actor), which every message to a simulated engine costs too.

"Asked" is what the engines would finish in a second, "possible" what one driver has the processor time for; where asked is
above possible, the driver is the limit, and answers wait (lag: from the end of a generation until the driver has it).

Calls to {RANKS} real actors in the place of trainer ranks, which do nothing, cost {1000 * ranks["cpu"]:.0f} ms of the driver's processor
time a round and {1000 * ranks["wall"]:.0f} ms by the clock; a step makes three (begin, go on, publish).

| engines | speed | groups | asked/s | possible/s | driver ms/group | busy | seconds | lag p50 ms | lag p99 ms | KiB/sample |
|---|---|---|---|---|---|---|---|---|---|---|
""" + "\n".join(rows)
    if arguments.write:
        Path(__file__).with_suffix(".md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
