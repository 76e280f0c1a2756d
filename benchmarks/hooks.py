"""What hooks cost: one call, bare, through pluggy and through vime with its checks; and a whole step with 0 to 20 plugins.

    python benchmarks/hooks.py            prints the tables
    python benchmarks/hooks.py --write    and writes them to benchmarks/hooks.md

The functions do next to nothing, so what is measured is the call and what vime does around it. Each row is the median of
repetitions in which the three ways, or the numbers of plugins, take turns, in one process, of the code that a run goes through.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import inspect
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy
from machine import machine

from vime.api import DynamicFilterOutput, RolloutFnTrainOutput, Sample, Status, hookimpl
from vime.config.run_config import RunConfig
from vime.plugins.hookspecs import HOOKS, VimeSpec
from vime.plugins.manager import PluginManager
from vime.plugins.markers import PROJECT
from vime.rollout.buffer import take_with_filter
from vime.rollout.context import RolloutContext
from vime.rollout.dynamic_sampling import judge
from vime.rollout.generate import generate_sample
from vime.rollout.guards import check_train_output, normalise_eval_output, normalise_train_output
from vime.rollout.rewards import RewardScorer, _Scope
from vime.rollout.runner import RolloutRunner
from vime.rollout.source_guards import check_fetched
from vime.rollout.vllm_rollout import VllmRollout
from vime.sample import VERDICTS
from vime.testing.fakes import FakeEngine
from vime.train.batch import _check_rows, _post_process_rewards, _rows_of_plugin, build_train_batch

GROUPS, GROUP_SIZE, TOKENS = 32, 8, 64
SAMPLES = GROUPS * GROUP_SIZE
PER_SAMPLE_BUDGET, BATCH_BUDGET = 20.0, 5.0
"""Microseconds for a call of a per-sample hook, and for each sample of a hook over a batch."""
PLUGINS = (0, 1, 5, 20)
STEP_TOKENS = 8
"""Of a prompt and of a response in the steps: FakeEngine's own work for each token would hide what the plugins add."""


# The functions that are called: one for each hook.


async def custom_generate(args: Any, sample: Sample, sampling_params: Any) -> Sample:
    return sample


def rollout_sample_hook(args: Any, sample: Sample) -> None:
    return None


def custom_rm(args: Any, sample: Sample) -> float:
    return 1.0


async def uneven_rm(args: Any, sample: Sample) -> float:
    """Awaited in place, so that no worker process takes part in the step."""
    return float((sample.index or 0) % 2)


def shape_reward(args: Any, sample: Sample) -> float:
    return 0.0


def dynamic_sampling_filter(args: Any, samples: list[Sample]) -> DynamicFilterOutput:
    return DynamicFilterOutput(keep=True)


def rollout_sample_filter(args: Any, samples: list[list[Sample]]) -> None:
    return None


def process_all_samples(args: Any, all_samples: list[list[Sample]], data_source: Any) -> None:
    return None


def log_rollout_data(rollout_id: int, args: Any, samples: list[Sample], rollout_extra_metrics: Any, rollout_time: float) -> None:
    return None


def log_eval_rollout_data(rollout_id: int, args: Any, data: Any, extra_metrics: Any) -> None:
    return None


def buffer_filter(args: Any, rollout_id: int, buffer: Any, num_samples: int) -> Any:
    return buffer[:num_samples]


def post_process_rewards(args: Any, samples: list[Sample]) -> Any:
    return [1.0] * len(samples), [0.0] * len(samples)


def convert_samples_to_train_data(args: Any, samples: list[Sample]) -> dict[str, Any]:
    return {
        "tokens": [sample.tokens for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "rewards": [0.0 for _ in samples],
        "raw_reward": [1.0 for _ in samples],
        "truncated": [0 for _ in samples],
        "sample_indices": [sample.index for sample in samples],
        "loss_masks": [[1] * sample.response_length for sample in samples],
    }


def make_groups() -> list[list[Sample]]:
    return [[make_sample(g, g * GROUP_SIZE + i) for i in range(GROUP_SIZE)] for g in range(GROUPS)]


def make_sample(group: int, index: int) -> Sample:
    tokens = list(range(2 * TOKENS))
    return Sample(
        group_index=group,
        index=index,
        prompt="p",
        tokens=tokens,
        response="r",
        response_length=TOKENS,
        rollout_log_probs=[-0.5] * TOKENS,
        reward=1.0,
        status=Status.COMPLETED,
    )


@dataclass(frozen=True)
class Case:
    """One row: what a call does in each of the three ways, and how many samples it is for."""

    hook: str
    samples: int
    bare: Callable[[], Any]
    pluggy: Callable[[], Any]
    vime: Callable[[], Any]
    what: str = ""
    """What else vime does there, where that is not plain from the hook."""

    @property
    def budget(self) -> float:
        return PER_SAMPLE_BUDGET if self.samples == 1 else BATCH_BUDGET


def finish(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits, which those around synchronous hooks do not."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits for something")


class Bench:
    """The objects of a run, with one plugin that has all hooks, and pluggy alone beside it."""

    def __init__(self) -> None:
        module = ModuleType("bench")
        for function in FUNCTIONS:
            setattr(module, function.__name__, hookimpl(function))
        self.config = RunConfig(rollout_batch_size=GROUPS, n_samples_per_prompt=GROUP_SIZE, num_rollout=1, reward_isolation="thread")
        self.plugins = PluginManager()
        self.plugins.add(module, name="bench")
        self.pluggy = pluggy.PluginManager(PROJECT)
        self.pluggy.add_hookspecs(VimeSpec)
        self.pluggy.register(module)
        self.scorer = RewardScorer(self.config, self.plugins)
        context = RolloutContext(self.config, FakeEngine(), self.plugins, self.scorer, deterministic=True)
        self.samples: list[Sample] = []
        self.context, self.runner = context, RolloutRunner(context, VllmRollout(context, None, []))

    def case(self, hook: str, count: int, vime: Callable[[], Any], what: str = "", /, **arguments: Any) -> Case:
        function = next(function for function in FUNCTIONS if function.__name__ == hook)
        every = {name: arguments.get(name) for name in HOOKS[hook].params}
        (implementation,) = self.plugins.implementations(hook)
        positional = [every[name] for name in implementation.params]
        caller = getattr(self.pluggy.hook, hook)
        if inspect.iscoroutinefunction(function):
            return Case(
                hook, count, lambda: finish(function(*positional)), lambda: [finish(result) for result in caller(**every)], vime, what
            )
        return Case(hook, count, lambda: function(*positional), lambda: caller(**every), vime, what)

    def cases(self) -> list[Case]:
        config, context, runner, scorer = self.config, self.context, self.runner, self.scorer
        groups = make_groups()
        flat = [sample for group in groups for sample in group]
        sample, group, scope = flat[0], groups[0], _Scope(config, False, None, context.tracer)
        unscored = make_sample(0, 0)
        unscored.reward = None
        (reward,) = self.plugins.implementations("custom_rm")
        filters = self.plugins.implementations("dynamic_sampling_filter")
        buffered = make_groups()
        self.samples = [*flat, unscored, *itertools.chain.from_iterable(buffered)]
        ids = list(range(SAMPLES))
        (lay_out,) = self.plugins.implementations("convert_samples_to_train_data")
        (choose,) = self.plugins.implementations("buffer_filter")
        metrics = {f"metric_{number}": float(number) for number in range(40)}
        data = {"set": {"rewards": [1.0] * SAMPLES, "truncated": [False] * SAMPLES, "samples": flat}}
        seen = {"rollout_id": 0, "samples": flat, "rollout_extra_metrics": metrics, "rollout_time": 1.0}
        shown = {"rollout_id": 0, "data": data, "extra_metrics": metrics}

        def score() -> None:
            sample.reward = None
            value = reward.call(args=config, sample=sample, samples=None)
            scorer._accept(value, "plugin 'bench': custom_rm", "bench", sample, scope)

        def take() -> None:
            buffer = list(buffered)
            take_with_filter(choose, config, 0, buffer, GROUPS)

        def convert() -> None:
            rows = _rows_of_plugin(lay_out, lay_out.run(args=config, samples=flat), ids)
            _check_rows(rows, lay_out)

        one = {"args": config, "sample": sample}
        case = self.case
        return [
            case("custom_generate", 1, lambda: finish(generate_sample(context, sample, {})), **one, sampling_params={}),
            case("rollout_sample_hook", 1, lambda: finish(scorer._open([unscored], scope, 0)), args=config, sample=unscored),
            case("custom_rm", 1, score, "without the way to a worker process or thread", **one),
            case("shape_reward", 1, lambda: finish(scorer._add_shaping(sample, scope)), **one),
            case("dynamic_sampling_filter", GROUP_SIZE, lambda: finish(judge(filters, config, group)), args=config, samples=group),
            case("rollout_sample_filter", SAMPLES, lambda: finish(runner._filter_samples(groups)), args=config, samples=groups),
            case("process_all_samples", SAMPLES, lambda: finish(runner._process_all_samples(groups, [])), args=config, all_samples=groups),
            case("log_rollout_data", SAMPLES, lambda: finish(runner._log("log_rollout_data", flat, metrics, **seen)), args=config, **seen),
            case(
                "log_eval_rollout_data",
                SAMPLES,
                lambda: finish(runner._log("log_eval_rollout_data", flat, metrics, **shown)),
                args=config,
                **shown,
            ),
            case("buffer_filter", SAMPLES, take, args=config, rollout_id=0, buffer=buffered, num_samples=GROUPS),
            case("post_process_rewards", SAMPLES, lambda: _post_process_rewards(config, self.plugins, flat, ids, ids), samples=flat),
            case("convert_samples_to_train_data", SAMPLES, convert, f"rows of {2 * TOKENS} tokens are copied", samples=flat),
        ]

    def forget_verdicts(self) -> None:
        """The samples of a run get a few verdicts each, those here one for every repetition."""
        for sample in self.samples:
            vars(sample).pop(VERDICTS, None)

    def checks(self) -> list[tuple[str, Callable[[], Any]]]:
        """What is checked of whole results, whoever made them."""
        groups = make_groups()
        flat = [sample for group in groups for sample in group]
        data = {"set": {"rewards": [1.0] * SAMPLES, "truncated": [False] * SAMPLES, "samples": flat}}

        def rollout() -> None:
            output = normalise_train_output("x", RolloutFnTrainOutput(groups))
            check_train_output(self.config, "x", output, fewer_allowed=False)

        return [
            ("generate_rollout, training", rollout),
            ("generate_rollout, evaluation", lambda: normalise_eval_output("x", data)),
            ("make_data_source, get_samples", lambda: check_fetched("x", groups, GROUPS, GROUP_SIZE, {})),
        ]


FUNCTIONS: tuple[Any, ...] = (
    custom_generate,
    rollout_sample_hook,
    custom_rm,
    shape_reward,
    dynamic_sampling_filter,
    rollout_sample_filter,
    process_all_samples,
    log_rollout_data,
    log_eval_rollout_data,
    buffer_filter,
    post_process_rewards,
    convert_samples_to_train_data,
)


IN_EVERY_PLUGIN: tuple[Any, ...] = (
    rollout_sample_hook,
    shape_reward,
    dynamic_sampling_filter,
    rollout_sample_filter,
    process_all_samples,
    log_rollout_data,
)
"""The hooks of a rollout that every plugin may have; the others have one owner."""


class Prompts:
    """A data source without a file."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        return [
            [Sample(group_index=number, index=number * GROUP_SIZE + member, prompt="7" * STEP_TOKENS) for member in range(GROUP_SIZE)]
            for number in itertools.islice(self._numbers, num_samples)
        ]

    def add_samples(self, groups: list[list[Sample]]) -> None:
        pass


class Steps:
    """Steps up to the training batch, with this many plugins beside the one that gives the rewards."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.config = RunConfig(
            rollout_batch_size=GROUPS, n_samples_per_prompt=GROUP_SIZE, num_rollout=1, rollout_max_response_len=STEP_TOKENS
        )
        self.plugins = PluginManager()
        reward = ModuleType("reward")
        setattr(reward, "custom_rm", hookimpl(uneven_rm))  # noqa: B010 - a module has no such attribute to a type checker
        self.plugins.add(reward, name="reward")
        module = ModuleType("bench")
        for function in IN_EVERY_PLUGIN:
            setattr(module, function.__name__, hookimpl(function))
        for number in range(count):
            plugin = ModuleType(f"bench{number}")
            vars(plugin).update({name: value for name, value in vars(module).items() if not name.startswith("__")})
            self.plugins.add(plugin, name=f"bench{number}")
        engine: Any = FakeEngine(policy=lambda token_ids, params: [5] * STEP_TOKENS)
        context = RolloutContext(self.config, engine, self.plugins, RewardScorer(self.config, self.plugins), deterministic=True)
        source: Any = Prompts()
        self.engine, self.runner = engine, RolloutRunner(context, VllmRollout(context, source, []))
        self.loop = asyncio.new_event_loop()

    def step(self) -> None:
        """Rollout and batch."""
        rollout = self.loop.run_until_complete(self.runner.train(0))
        batch = build_train_batch(self.config, self.plugins, rollout.groups)
        assert len(batch) == SAMPLES
        self.engine.requests.clear()

    def calls(self) -> int:
        """Hook calls of one step, the rewards among them."""
        keys: list[str] = []
        self.plugins.times.trace = lambda key, seconds: keys.append(key)
        self.step()
        self.plugins.times.trace = None
        return len(keys)


def step_rows(repetitions: int) -> list[str]:
    """A row for each number of plugins: hook calls, milliseconds of a step, what a plugin and a hook call add."""
    cases = [Steps(count) for count in PLUGINS]
    calls = [case.calls() for case in cases]
    found: list[list[float]] = [[] for _ in cases]
    gc.disable()
    for turn in range(repetitions):
        for number, case in list(enumerate(cases))[:: 1 if turn % 2 else -1]:
            found[number].append(1e3 * seconds(case.step, 1))
            gc.collect()
    gc.enable()
    base = found[0]
    rows = [f"| 0 | {calls[0]:,} | {statistics.median(base):.1f} | | | |"]
    for case, count, spent in zip(cases[1:], calls[1:], found[1:], strict=True):
        added = statistics.median(mine - bare for mine, bare in zip(spent, base, strict=True))
        each = 1e3 * added / (count - calls[0])
        verdict = "" if each <= PER_SAMPLE_BUDGET else ", over"
        numbers = f"{statistics.median(spent):.1f} | {added / case.count:.2f} | {each:.2f}"
        rows.append(f"| {case.count} | {count:,} | {numbers} | {PER_SAMPLE_BUDGET:.0f}{verdict} |")
    return rows


def seconds(call: Callable[[], Any], times: int) -> float:
    """Processor seconds of one call, so that what else the machine does counts less."""
    start = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - start) / times


def side_by_side(calls: list[Callable[[], Any]], repetitions: int, after_turn: Callable[[], None]) -> list[float]:
    """Median microseconds of each call; they take turns, each turn about 10 ms long."""
    times = [max(1, int(0.01 / max(seconds(call, 3), 1e-7))) for call in calls]
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(repetitions):
        for number, call in enumerate(calls):
            found[number].append(1e6 * seconds(call, times[number]))
            after_turn()
    return [statistics.median(values) for values in found]


def report(repetitions: int) -> str:
    bench = Bench()
    rows = []
    for case in bench.cases():
        bare, through_pluggy, vime = side_by_side([case.bare, case.pluggy, case.vime], repetitions, bench.forget_verdicts)
        each = vime / case.samples
        unit = "call" if case.samples == 1 else "sample"
        verdict = "" if each <= case.budget else ", over"
        numbers = f"{bare:.2f} | {through_pluggy:.2f} | {vime:.2f} | {vime / bare:.1f} | {vime / through_pluggy:.1f}"
        rows.append(f"| `{case.hook}` | {case.samples} | {numbers} | {each:.2f} | {case.budget:.0f} a {unit}{verdict} | {case.what} |")
    checks = []
    for name, check in bench.checks():
        (spent,) = side_by_side([check], repetitions, bench.forget_verdicts)
        checks.append(f"| {name} | {spent:.0f} | {spent / SAMPLES:.2f} |")
    return "\n".join(
        [
            "# What a hook call costs",
            "",
            "Written by `python benchmarks/hooks.py --write`.",
            "",
            f"Microseconds of processor time, medians of {repetitions} repetitions in which the three ways take turns, "
            f"{time.strftime('%Y-%m-%d')}; "
            f"{machine()}, pluggy {pluggy.__version__}. "
            f"{GROUPS} groups of {GROUP_SIZE} samples with {TOKENS} prompt and {TOKENS} response tokens, one plugin, "
            "functions that do next to nothing.",
            "",
            "`bare` calls the function; `pluggy` calls it through a pluggy hook; `vime` is what a run does: the call by name, its time on "
            "record, the checks of what comes back. `samples` is the number of samples that one call is for.",
            "",
            "| hook | samples | bare | pluggy | vime | vime / bare | vime / pluggy | vime, a sample | budget | vime also |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            f"Checks of whole results of {SAMPLES} samples, which have no call to compare with:",
            "",
            "| result of | microseconds | a sample |",
            "|---|---|---|",
            *checks,
            "",
            "## A step",
            "",
            f"A rollout of {GROUPS} groups x {GROUP_SIZE} samples on FakeEngine and its training batch, without a training step; processor "
            f"time, medians of {repetitions} rounds in which the numbers of plugins take turns; what is added is the median over the "
            f"rounds too. Garbage is collected between the steps, since a collection falls on whoever comes next. "
            f"Prompts and responses of {STEP_TOKENS} tokens, which keeps FakeEngine's own work small. Each plugin has "
            f"{', '.join(f'`{function.__name__}`' for function in IN_EVERY_PLUGIN[:-1])} and `{IN_EVERY_PLUGIN[-1].__name__}`; "
            "the rewards come from one more, in every row, an `async` function that is awaited in place.",
            "",
            "| plugins | hook calls | a step, ms | each plugin adds, ms | a call adds, microseconds | goal |",
            "|---:|---:|---:|---:|---:|---:|",
            *step_rows(repetitions),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write benchmarks/hooks.md as well")
    parser.add_argument("--repetitions", type=int, default=51)
    arguments = parser.parse_args()
    text = report(arguments.repetitions)
    sys.stdout.write(text)
    if arguments.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
