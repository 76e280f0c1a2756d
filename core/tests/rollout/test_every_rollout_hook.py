"""Every hook of a rollout is called by the real runner: with the arguments of its spec, as often as its docstring says, to an effect.

A case for each hook: a plugin that implements it and nothing else that matters. A hook without a case fails, and so does
one that was not called as its case says. core/tests/train/test_every_train_hook.py has the other half.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from vime.api import RolloutFnTrainOutput, Sample, Status, hookimpl
from vime.config.eval import EvalDatasetConfig
from vime.config.run_config import RunConfig
from vime.data.dataset import load_dataset
from vime.plugins.hookspecs import HOOKS, VimeSpec
from vime.plugins.manager import PluginManager
from vime.plugins.specs_batch import BatchSpec
from vime.plugins.specs_rollout import RolloutSpec
from vime.plugins.specs_train import TrainSpec
from vime.rollout.context import RolloutContext
from vime.rollout.data_source import RolloutDataSourceWithBuffer
from vime.rollout.evaluate import EvalDataset
from vime.rollout.rewards import RewardScorer
from vime.rollout.runner import RolloutRunner
from vime.rollout.vllm_rollout import VllmRollout
from vime.runtime.build import build_data_source
from vime.testing.fakes import FakeEngine, FakeTokenizer

NUM_GPUS = 0

GROUPS, SIZE, EVAL_PROMPTS = 2, 2, 3
ROLLOUT_HOOKS = [hook for hook in HOOKS if hook in vars(RolloutSpec) or hook in vars(BatchSpec)]


class Recorder:
    """A plugin that remembers its calls: (what the run was doing, the arguments by name)."""

    def __init__(self) -> None:
        self.phase = "start"
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def saw(self, arguments: dict[str, Any]) -> None:
        self.calls.append((self.phase, {name: value for name, value in arguments.items() if name != "self"}))


@dataclass
class Outcome:
    """What came of a run of one training rollout and one evaluation."""

    plugin: Recorder
    source: Any = None
    rollout: Any = None
    eval_output: Any = None
    eval_metrics: dict[str, float] = field(default_factory=dict)

    @property
    def samples(self) -> list[Sample]:
        return [sample for group in self.rollout.groups for sample in group]


async def index_parity(args: Any, sample: Sample) -> float:
    return float((sample.index or 0) % 2)


class Reward:
    """The reward of the runs whose plugin has none."""

    @hookimpl
    async def custom_rm(self, sample: Sample) -> float:
        return await index_parity(None, sample)


def rollout_and_evaluation(plugin: type[Recorder], tmp_path: Path, **options: Any) -> Outcome:
    """One training rollout and one evaluation on a fake engine, with the plugin enabled."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"input": f"{i}+1=", "label": str(i + 1)}) + "\n" for i in range(8)))
    dataset = EvalDatasetConfig(name="held-out", path=f"{path}@[0:{EVAL_PROMPTS}]", n_samples_per_eval_prompt=1)
    shape = {"rollout_batch_size": GROUPS, "n_samples_per_prompt": SIZE, "rollout_max_response_len": 4, "label_key": "label"}
    config = RunConfig(prompt_data=str(path), num_rollout=1, eval_datasets=[dataset], **(shape | options))
    plugins = PluginManager()
    recorder = plugins.add(plugin, name="recorder").obj
    if not plugins.implementations("custom_rm"):
        plugins.add(Reward, name="reward")
    engine, tokenizer = FakeEngine(), FakeTokenizer()
    source = build_data_source(config, plugins, tokenizer)
    if isinstance(source, RolloutDataSourceWithBuffer):
        source.add_samples(source.get_samples(1))
    rows = load_dataset(dataset.path, tokenizer=tokenizer, input_key="input", label_key="label")
    scorer = RewardScorer(config, plugins)
    context = RolloutContext(config, engine, plugins, scorer, deterministic=True)
    runner = RolloutRunner(context, VllmRollout(context, source, [EvalDataset(config.eval_datasets[0], rows)]))
    outcome = Outcome(recorder, source)

    async def run() -> None:
        recorder.phase = "train"
        outcome.rollout = await runner.train(0)
        recorder.phase = "evaluation"
        outcome.eval_output, outcome.eval_metrics, _ = await runner.evaluate(1)

    try:
        asyncio.run(asyncio.wait_for(run(), 30))
    finally:
        scorer.close()
    return outcome


# The plugins, in the order of HOOKS


class MakesDataSource(Recorder):
    @hookimpl
    def make_data_source(self, args):
        self.saw(locals())
        return Sums(args)


class Sums:
    def __init__(self, args: RunConfig) -> None:
        self.size, self.handed_out = args.n_samples_per_prompt, 0

    def get_samples(self, n: int) -> list[list[Sample]]:
        groups = range(self.handed_out, self.handed_out + n)
        self.handed_out += n
        return [[Sample(group_index=g, index=g * self.size + i, prompt=f"{g}+9=", label="x") for i in range(self.size)] for g in groups]

    def add_samples(self, groups: Any) -> None: ...

    def save(self, rollout_id: int) -> None: ...

    def load(self, rollout_id: int) -> None: ...

    def __len__(self) -> int:
        return 100


class GeneratesRollout(Recorder):
    @hookimpl
    async def generate_rollout(self, args, rollout_id, data_source, evaluation, engine):
        self.saw(locals())
        groups = data_source.get_samples(args.rollout_batch_size)
        for sample in (sample for group in groups for sample in group):
            sample.tokens = engine.tokenizer.encode(sample.prompt)
            sample.append_response_tokens(tokens=[7], log_probs=[-0.5], text="mine")
            sample.reward, sample.status = 0.75, Status.COMPLETED
        if evaluation:
            return {"own": {"rewards": [0.75], "truncated": [False], "samples": groups[0][:1]}}
        return RolloutFnTrainOutput(groups, metrics={"mine": 1.0})


class FiltersBuffer(Recorder):
    @hookimpl
    def buffer_filter(self, args, rollout_id, buffer, num_samples):
        self.saw(locals())
        buffer[0][0].metadata["chosen"] = True
        return buffer[:num_samples]


class Generates(Recorder):
    @hookimpl
    async def custom_generate(self, args, sample, sampling_params, evaluation, engine):
        self.saw(locals())
        sample.tokens = engine.tokenizer.encode(sample.prompt)
        sample.append_response_tokens(tokens=[7], log_probs=[-0.5], text="mine")
        sample.status = Status.COMPLETED
        return sample


class HooksSample(Recorder):
    @hookimpl
    def rollout_sample_hook(self, args, sample, rollout_id, evaluation):
        self.saw(locals())
        assert sample.reward is None and sample.response_length > 0
        sample.metadata["seen"] = True


class Rewards(Recorder):
    @hookimpl
    async def custom_rm(self, args, sample, samples):
        self.saw(locals())
        return 0.5 if samples is None else [float(i) for i in range(len(samples))]


class Shapes(Recorder):
    @hookimpl
    def shape_reward(self, args, sample):
        self.saw(locals())
        return 10.0


class FiltersGroups(Recorder):
    @hookimpl
    def dynamic_sampling_filter(self, args, samples):
        self.saw(locals())
        return len(self.calls) != 1


class FiltersSamples(Recorder):
    @hookimpl
    def rollout_sample_filter(self, args, samples):
        self.saw(locals())
        samples[0][0].remove_sample = True


class ProcessesAll(Recorder):
    @hookimpl
    def dynamic_sampling_filter(self, samples):
        return samples[0].group_index != 0

    @hookimpl
    def process_all_samples(self, args, all_samples, data_source):
        self.saw(locals())
        assert [group[0].group_index for group in all_samples][-1] == 0, "the dropped group comes last"
        data_source.metadata["groups seen"] = len(all_samples)


class LogsRollout(Recorder):
    @hookimpl
    def log_rollout_data(self, rollout_id, args, samples, rollout_extra_metrics, rollout_time):
        self.saw(locals())
        rollout_extra_metrics["mine"] = rollout_extra_metrics["raw_reward"] + 1
        return True


class LogsEvaluation(Recorder):
    @hookimpl
    def log_eval_rollout_data(self, rollout_id, args, data, extra_metrics):
        self.saw(locals())
        extra_metrics["held-out/best"] = max(data["held-out"]["rewards"])
        return True


# What is expected of each


@dataclass(frozen=True)
class Case:
    plugin: type[Recorder]
    calls: dict[str, int]
    """How often the hook is called, by what the run is doing."""
    check: Callable[[Outcome, dict[str, Any]], bool]
    """Whether the call had its effect, and what the types of the arguments do not say; given the first call's arguments."""
    options: dict[str, Any] = field(default_factory=dict)
    types: dict[str, type | tuple[type, ...]] = field(default_factory=dict)
    """Types of arguments that are others in this hook than in most."""


TYPES: dict[str, type | tuple[type, ...]] = {
    "args": RunConfig,
    "rollout_id": int,
    "evaluation": bool,
    "engine": FakeEngine,
    "data_source": RolloutDataSourceWithBuffer,
    "sample": Sample,
    "samples": list,
    "all_samples": list,
    "buffer": list,
    "num_samples": int,
    "sampling_params": dict,
    "rollout_extra_metrics": dict,
    "rollout_time": float,
    "data": dict,
    "extra_metrics": dict,
}
NESTED = {"buffer", "all_samples"}
"""Lists of groups; `samples` is one in rollout_sample_filter, and a flat list elsewhere."""

EACH_SAMPLE = {"train": GROUPS * SIZE, "evaluation": EVAL_PROMPTS}
ROWS = GROUPS * SIZE


CASES: dict[str, Case] = {
    "make_data_source": Case(
        MakesDataSource,
        {"start": 1},
        lambda out, args: isinstance(out.source, Sums) and {sample.label for sample in out.samples} == {"x"},
    ),
    "generate_rollout": Case(
        GeneratesRollout,
        {"train": 1, "evaluation": 1},
        lambda out, args: (
            [call["evaluation"] for _, call in out.plugin.calls] == [False, True]
            and [call["rollout_id"] for _, call in out.plugin.calls] == [0, 1]
            and {sample.response for sample in out.samples} == {"mine"}
            and out.rollout.metrics["mine"] == 1.0
            and out.eval_metrics["own"] == 0.75
        ),
    ),
    "buffer_filter": Case(
        FiltersBuffer,
        {"train": 1},
        lambda out, args: (
            args["num_samples"] == GROUPS
            and len(args["buffer"]) == 0
            and [sample.index for sample in out.samples if sample.metadata.get("chosen")] == [0]
        ),
        types={"rollout_id": (int, type(None))},
    ),
    "custom_generate": Case(
        Generates,
        EACH_SAMPLE,
        lambda out, args: (
            {sample.response for sample in out.samples} == {"mine"}
            and [call["evaluation"] for _, call in out.plugin.calls] == [False] * ROWS + [True] * EVAL_PROMPTS
            and {"temperature", "top_p", "top_k", "max_new_tokens", "min_new_tokens", "stop", "stop_token_ids", "seed"}
            <= set(args["sampling_params"])
        ),
    ),
    "rollout_sample_hook": Case(
        HooksSample,
        EACH_SAMPLE,
        lambda out, args: (
            all(sample.metadata["seen"] for sample in out.samples + out.eval_output.data["held-out"]["samples"])
            and [call["evaluation"] for _, call in out.plugin.calls] == [False] * ROWS + [True] * EVAL_PROMPTS
        ),
    ),
    "custom_rm": Case(
        Rewards,
        EACH_SAMPLE,
        lambda out, args: [sample.reward for sample in out.samples] == [0.5] * ROWS and out.eval_metrics["held-out"] == 0.5,
        types={"samples": type(None)},
    ),
    "shape_reward": Case(
        Shapes,
        EACH_SAMPLE,
        lambda out, args: [sample.reward for sample in out.samples] == [10.0, 11.0] * GROUPS,
    ),
    "dynamic_sampling_filter": Case(
        FiltersGroups,
        {"train": GROUPS + 1},
        lambda out, args: len(args["samples"]) == SIZE and out.rollout.metrics["dynamic_filter/drop_recorder"] == 1,
    ),
    "rollout_sample_filter": Case(
        FiltersSamples,
        {"train": 1},
        lambda out, args: (
            [len(group) for group in args["samples"]] == [SIZE] * GROUPS
            and [sample.remove_sample for sample in out.samples] == [True, False, False, False]
            and out.rollout.metrics["removed_samples"] == 1
        ),
    ),
    "process_all_samples": Case(
        ProcessesAll,
        {"train": 1},
        lambda out, args: out.source.metadata["groups seen"] == GROUPS + 1 and args["data_source"] is out.source,
    ),
    "log_rollout_data": Case(
        LogsRollout,
        {"train": 1},
        lambda out, args: out.rollout.metrics["mine"] == 1.5 and out.rollout.logged_by_plugin and args["samples"] == out.samples,
    ),
    "log_eval_rollout_data": Case(
        LogsEvaluation,
        {"evaluation": 1},
        lambda out, args: out.eval_metrics["held-out/best"] == 1.0 and set(args["data"]["held-out"]) == {"rewards", "truncated", "samples"},
    ),
}


def test_every_hook_of_a_rollout_has_a_case() -> None:
    assert VimeSpec.__bases__ == (RolloutSpec, BatchSpec, TrainSpec)
    assert list(CASES) == ROLLOUT_HOOKS
    assert all(hook in vars(case.plugin) for hook, case in CASES.items())


@pytest.mark.parametrize("hook", ROLLOUT_HOOKS)
def test_the_hook_is_called_as_its_spec_says_and_has_its_effect(hook: str, tmp_path: Path) -> None:
    case = CASES[hook]
    outcome = rollout_and_evaluation(case.plugin, tmp_path, **case.options)
    calls = outcome.plugin.calls
    phases = [phase for phase, _ in calls]
    assert {phase: phases.count(phase) for phase in phases} == case.calls
    types = TYPES | case.types
    for _, arguments in calls:
        assert sorted(arguments) == sorted(HOOKS[hook].params)
        wrong = {name: type(value).__name__ for name, value in arguments.items() if not isinstance(value, types[name])}
        assert wrong == {}
        for name in NESTED & set(arguments):
            assert all(isinstance(sample, Sample) for group in arguments[name] for sample in group)
        if isinstance(arguments.get("samples"), list) and hook != "rollout_sample_filter":
            assert all(isinstance(sample, Sample) for sample in arguments["samples"])
    assert case.check(outcome, calls[0][1])


def test_a_group_reward_is_called_once_for_each_complete_group(tmp_path: Path) -> None:
    outcome = rollout_and_evaluation(Rewards, tmp_path, group_rm=True)
    groups = [(phase, len(call["samples"]), call["sample"]) for phase, call in outcome.plugin.calls]
    assert groups == [("train", SIZE, None)] * GROUPS + [("evaluation", 1, None)] * EVAL_PROMPTS
    assert [sample.reward for sample in outcome.samples] == [0.0, 1.0] * GROUPS


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
