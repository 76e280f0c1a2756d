"""Every hook is called by the real code: with the arguments of its spec, as often as its docstring says, and to an effect.

A case for each hook: a plugin that implements it and nothing else that matters, driven through the real runner, batch or
trainer. A hook without a case fails, and so does a case whose hook was not called as it says.
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
from vime.plugins.hookspecs import HOOKS
from vime.plugins.manager import PluginManager
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
    config: RunConfig
    source: Any = None
    rollout: Any = None
    eval_output: Any = None
    eval_metrics: dict[str, float] = field(default_factory=dict)
    batch: Any = None
    train_metrics: dict[str, float] = field(default_factory=dict)

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
    outcome = Outcome(recorder, config, source)

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


def made_groups() -> list[list[Sample]]:
    """A rollout's worth of samples with 3 prompt and 4 response tokens, of which the first is masked, and rewards 0 and 1."""
    groups = [[Sample(group_index=g, index=SIZE * g + i, tokens=[5, 6, 7]) for i in range(SIZE)] for g in range(GROUPS)]
    for sample in (sample for group in groups for sample in group):
        sample.append_response_tokens(tokens=[8], trainable=False)
        sample.append_response_tokens(tokens=[9, 10, 11], log_probs=[-3.0] * 3, meta_info={"weight_version": 0})
        sample.reward, sample.status = float((sample.index or 0) % 2), Status.COMPLETED
    return groups


def batch(plugin: type[Recorder], tmp_path: Path, **options: Any) -> Outcome:
    """A finished rollout made into a training batch."""
    from vime.train.batch import build_train_batch

    config = RunConfig(rollout_batch_size=GROUPS, n_samples_per_prompt=SIZE, **options)
    plugins = PluginManager()
    outcome = Outcome(plugins.add(plugin, name="recorder").obj, config)
    outcome.batch = build_train_batch(config, plugins, made_groups(), rollout_id=3)
    return outcome


def training(plugin: type[Recorder], tmp_path: Path, **options: Any) -> Outcome:
    """A batch of two micro-batches trained on by DeepSpeed."""
    pytest.importorskip("deepspeed")
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from vime.train.batch import build_train_batch
    from vime.train.deepspeed_trainer import DeepSpeedTrainer
    from vime.train.quiet import quiet_transformers

    torch.manual_seed(0)
    shape = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    with quiet_transformers():
        Qwen3ForCausalLM(Qwen3Config(**shape, num_key_value_heads=1, head_dim=16, bos_token_id=1, eos_token_id=2)).save_pretrained(tmp_path)
    fixed = {"train_dtype": "float32", "use_dynamic_batch_size": False, "micro_batch_size": 2, "lr": 1e-3}
    config = RunConfig(rollout_batch_size=GROUPS, n_samples_per_prompt=SIZE, **(fixed | options))
    plugins = PluginManager()
    outcome = Outcome(plugins.add(plugin, name="recorder").obj, config)
    trainer = DeepSpeedTrainer(config, str(tmp_path), plugins=plugins)
    try:
        outcome.train_metrics = trainer.train(build_train_batch(config, plugins, made_groups(), rollout_id=3))
    finally:
        trainer.close()
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


class PostProcesses(Recorder):
    @hookimpl
    def post_process_rewards(self, args, samples):
        self.saw(locals())
        return [1.0] * len(samples), [float(sample.index) for sample in samples]


class Converts(Recorder):
    @hookimpl
    def convert_samples_to_train_data(self, args, samples):
        self.saw(locals())
        row = samples[0]
        return {
            "tokens": [row.tokens],
            "response_lengths": [row.response_length],
            "rewards": [0.5],
            "raw_reward": [1.0],
            "truncated": [0],
            "sample_indices": [row.index],
            "loss_masks": [row.loss_mask],
            "colour": ["red"],
        }


class PostProcessesData(Recorder):
    @hookimpl
    def rollout_data_postprocess(self, args, rollout_id, rollout_data):
        self.saw({**locals(), "rollout_data": dict(rollout_data)})
        for mask in rollout_data["loss_masks"]:
            mask[1] = 0


class ComputesAdvantages(Recorder):
    @hookimpl
    def compute_advantages(self, args, rollout_data):
        self.saw({**locals(), "rollout_data": dict(rollout_data)})
        rollout_data["advantages"] = rollout_data["returns"] = [[0.0] * length for length in rollout_data["response_lengths"]]


class Loses(Recorder):
    @hookimpl
    def policy_loss(self, args, inputs):
        self.saw(locals())
        return inputs.reduce(-inputs.advantages * inputs.log_probs), {"mine": inputs.log_probs.detach().mean() * 0 + 4}


class Weighs(Recorder):
    @hookimpl
    def importance_weights(self, args, pg_loss, train_log_probs, rollout_log_probs, loss_masks):
        self.saw(locals())
        return pg_loss * 0, loss_masks, {"mine": pg_loss * 0 + 3}


class Reduces(Recorder):
    @hookimpl
    def pg_loss_reducer(self, total_lengths, response_lengths, loss_masks, calculate_per_token_loss):
        self.saw(locals())
        return lambda per_token: per_token.sum() * 0 + 5.0


# What is expected of each


@dataclass(frozen=True)
class Case:
    plugin: type[Recorder]
    drive: Callable[..., Outcome]
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
    "rollout_data": dict,
    "total_lengths": list,
    "response_lengths": list,
    "loss_masks": list,
    "train_log_probs": list,
    "rollout_log_probs": list,
    "calculate_per_token_loss": bool,
}
NESTED = {"buffer", "all_samples"}
"""Lists of groups; `samples` is one in rollout_sample_filter, and a flat list elsewhere."""

EACH_SAMPLE = {"train": GROUPS * SIZE, "evaluation": EVAL_PROMPTS}
ROWS = GROUPS * SIZE
MICRO_BATCHES = {"start": 2}


def _is_filled(out: Outcome, args: dict[str, Any]) -> bool:
    data = args["rollout_data"]
    lists = {"tokens", "total_lengths", "response_lengths", "loss_masks", "rewards", "raw_reward", "truncated", "sample_indices"}
    tensors = {"log_probs", "rollout_log_probs"} | ({"advantages", "returns"} if "rollout_id" in args else set())
    shapes = [tuple(row.shape) for key in tensors for row in data[key]]
    return (
        set(data) == lists | tensors | {"rollout_ids"}
        and all(len(values) == ROWS for values in data.values())
        and set(shapes) == {(4,)}
        and all(float(row[0]) == 0.0 for key in tensors for row in data[key])
    )


CASES: dict[str, Case] = {
    "make_data_source": Case(
        MakesDataSource,
        rollout_and_evaluation,
        {"start": 1},
        lambda out, args: isinstance(out.source, Sums) and {sample.label for sample in out.samples} == {"x"},
    ),
    "generate_rollout": Case(
        GeneratesRollout,
        rollout_and_evaluation,
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
        rollout_and_evaluation,
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
        rollout_and_evaluation,
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
        rollout_and_evaluation,
        EACH_SAMPLE,
        lambda out, args: (
            all(sample.metadata["seen"] for sample in out.samples + out.eval_output.data["held-out"]["samples"])
            and [call["evaluation"] for _, call in out.plugin.calls] == [False] * ROWS + [True] * EVAL_PROMPTS
        ),
    ),
    "custom_rm": Case(
        Rewards,
        rollout_and_evaluation,
        EACH_SAMPLE,
        lambda out, args: {sample.reward for sample in out.samples} == {0.5} and out.eval_metrics["held-out"] == 0.5,
        types={"samples": type(None)},
    ),
    "shape_reward": Case(
        Shapes,
        rollout_and_evaluation,
        EACH_SAMPLE,
        lambda out, args: {sample.reward for sample in out.samples} == {10.0, 11.0},
    ),
    "dynamic_sampling_filter": Case(
        FiltersGroups,
        rollout_and_evaluation,
        {"train": GROUPS + 1},
        lambda out, args: len(args["samples"]) == SIZE and out.rollout.metrics["dynamic_filter/drop_recorder"] == 1,
    ),
    "rollout_sample_filter": Case(
        FiltersSamples,
        rollout_and_evaluation,
        {"train": 1},
        lambda out, args: (
            [len(group) for group in args["samples"]] == [SIZE] * GROUPS
            and [sample.remove_sample for sample in out.samples] == [True, False, False, False]
            and out.rollout.metrics["removed_samples"] == 1
        ),
    ),
    "process_all_samples": Case(
        ProcessesAll,
        rollout_and_evaluation,
        {"train": 1},
        lambda out, args: out.source.metadata["groups seen"] == GROUPS + 1 and args["data_source"] is out.source,
    ),
    "log_rollout_data": Case(
        LogsRollout,
        rollout_and_evaluation,
        {"train": 1},
        lambda out, args: out.rollout.metrics["mine"] == 1.5 and out.rollout.logged_by_plugin and args["samples"] == out.samples,
    ),
    "log_eval_rollout_data": Case(
        LogsEvaluation,
        rollout_and_evaluation,
        {"evaluation": 1},
        lambda out, args: out.eval_metrics["held-out/best"] == 1.0 and set(args["data"]["held-out"]) == {"rewards", "truncated", "samples"},
    ),
    "post_process_rewards": Case(
        PostProcesses,
        batch,
        {"start": 1},
        lambda out, args: (out.batch.raw_rewards, out.batch.rewards) == ([1.0] * ROWS, [0.0, 1.0, 2.0, 3.0]),
    ),
    "convert_samples_to_train_data": Case(
        Converts,
        batch,
        {"start": 1},
        lambda out, args: len(args["samples"]) == ROWS and len(out.batch) == 1 and out.batch.extra == {"colour": ["red"]},
    ),
    "rollout_data_postprocess": Case(
        PostProcessesData,
        training,
        {"start": 1},
        lambda out, args: args["rollout_id"] == 3 and _is_filled(out, args) and out.train_metrics["tokens"] == 2 * ROWS,
    ),
    "compute_advantages": Case(
        ComputesAdvantages,
        training,
        {"start": 1},
        lambda out, args: _is_filled(out, args) and out.train_metrics["grad_norm"] == 0.0,
    ),
    "policy_loss": Case(
        Loses,
        training,
        MICRO_BATCHES,
        lambda out, args: out.train_metrics["mine"] == pytest.approx(4.0) and args["inputs"].log_probs.shape == (6,),
        options={"loss_type": "custom_loss"},
        types={"inputs": object},
    ),
    "importance_weights": Case(
        Weighs,
        training,
        MICRO_BATCHES,
        lambda out, args: (
            out.train_metrics["mine"] == pytest.approx(3.0)
            and out.train_metrics["pg_loss"] == 0.0
            and args["pg_loss"].shape == (6,)
            and [len(row) for row in args["loss_masks"]] == [3, 3]
        ),
        options={"use_tis": True},
        types={"pg_loss": object},
    ),
    "pg_loss_reducer": Case(
        Reduces,
        training,
        MICRO_BATCHES,
        lambda out, args: (
            out.train_metrics["pg_loss"] == pytest.approx(10.0)
            and args["total_lengths"] == [7, 7]
            and args["response_lengths"] == [len(mask) for mask in args["loss_masks"]] == [3, 3]
        ),
    ),
}


def test_every_hook_has_a_case() -> None:
    assert list(CASES) == list(HOOKS)
    assert all(hook in vars(case.plugin) for hook, case in CASES.items())


@pytest.mark.parametrize("hook", HOOKS)
def test_the_hook_is_called_as_its_spec_says_and_has_its_effect(hook: str, tmp_path: Path) -> None:
    case = CASES[hook]
    outcome = case.drive(case.plugin, tmp_path, **case.options)
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
