"""Every hook of training is called by the real batch and trainer: with the arguments of its spec, as often as its docstring says,
to an effect.

A case for each hook, as in core/tests/rollout/test_every_rollout_hook.py, which has the other half.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from vime.api import Sample, hookimpl
from vime.config.run_config import RunConfig
from vime.plugins.hookspecs import HOOKS
from vime.plugins.manager import PluginManager
from vime.plugins.specs_train import TrainSpec
from vime.sample import Status
from vime.train.batch import TrainBatch, build_train_batch

NUM_GPUS = 0

TRAIN_HOOKS = [hook for hook in HOOKS if hook in vars(TrainSpec)]
GROUPS, SIZE = 2, 2
ROWS = GROUPS * SIZE


class Recorder:
    """A plugin that remembers the arguments of its calls, by name."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def saw(self, arguments: dict[str, Any]) -> None:
        self.calls.append({name: value for name, value in arguments.items() if name != "self"})


@dataclass
class Outcome:
    """What came of one batch; `metrics` are those of training on it."""

    batch: TrainBatch
    metrics: dict[str, float]


def made_groups() -> list[list[Sample]]:
    """A rollout's worth of samples with 3 prompt and 4 response tokens, of which the first is masked, and rewards 0 and 1."""
    groups = [[Sample(group_index=g, index=SIZE * g + i, tokens=[5, 6, 7]) for i in range(SIZE)] for g in range(GROUPS)]
    for sample in (sample for group in groups for sample in group):
        sample.append_response_tokens(tokens=[8], trainable=False)
        sample.append_response_tokens(tokens=[9, 10, 11], log_probs=[-3.0] * 3, meta_info={"weight_version": 0})
        sample.reward, sample.status = float((sample.index or 0) % 2), Status.COMPLETED
    return groups


# The plugins, in the order of HOOKS


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


class ComputesAdvantages(Recorder):
    @hookimpl
    def compute_advantages(self, args, rollout_data):
        self.saw({**locals(), "rollout_data": dict(rollout_data)})
        rollout_data["advantages"] = rollout_data["returns"] = [[0.0] * length for length in rollout_data["response_lengths"]]


class PostProcessesData(Recorder):
    @hookimpl
    def rollout_data_postprocess(self, args, rollout_id, rollout_data):
        self.saw({**locals(), "rollout_data": dict(rollout_data)})
        for mask in rollout_data["loss_masks"]:
            mask[1] = 0


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
    calls: int
    check: Callable[[Outcome, dict[str, Any]], bool]
    """Whether the call had its effect, and what the types of the arguments do not say; given the first call's arguments."""
    options: dict[str, Any] = field(default_factory=dict)


TYPES: dict[str, type] = {
    "args": RunConfig,
    "rollout_id": int,
    "samples": list,
    "rollout_data": dict,
    "total_lengths": list,
    "response_lengths": list,
    "loss_masks": list,
    "train_log_probs": list,
    "rollout_log_probs": list,
    "calculate_per_token_loss": bool,
    "inputs": object,
    "pg_loss": object,
}
MICRO_BATCHES = 2


def _is_filled(args: dict[str, Any]) -> bool:
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
    "post_process_rewards": Case(
        PostProcesses,
        1,
        lambda out, args: (out.batch.raw_rewards, out.batch.rewards) == ([1.0] * ROWS, [0.0, 1.0, 2.0, 3.0]),
    ),
    "convert_samples_to_train_data": Case(
        Converts,
        1,
        lambda out, args: len(args["samples"]) == ROWS and len(out.batch) == 1 and out.batch.extra == {"colour": ["red"]},
    ),
    "compute_advantages": Case(
        ComputesAdvantages,
        1,
        lambda out, args: _is_filled(args) and out.metrics["grad_norm"] == 0.0,
    ),
    "rollout_data_postprocess": Case(
        PostProcessesData,
        1,
        lambda out, args: args["rollout_id"] == 3 and _is_filled(args) and out.metrics["tokens"] == 2 * ROWS,
    ),
    "policy_loss": Case(
        Loses,
        MICRO_BATCHES,
        lambda out, args: out.metrics["mine"] == pytest.approx(4.0) and args["inputs"].log_probs.shape == (6,),
        options={"loss_type": "custom_loss"},
    ),
    "importance_weights": Case(
        Weighs,
        MICRO_BATCHES,
        lambda out, args: (
            out.metrics["mine"] == pytest.approx(3.0)
            and out.metrics["pg_loss"] == 0.0
            and args["pg_loss"].shape == (6,)
            and [len(row) for row in args["loss_masks"]] == [3, 3]
        ),
        options={"use_tis": True},
    ),
    "pg_loss_reducer": Case(
        Reduces,
        MICRO_BATCHES,
        lambda out, args: (
            out.metrics["pg_loss"] == pytest.approx(MICRO_BATCHES * 5.0 / ROWS)
            and args["total_lengths"] == [7, 7]
            and args["response_lengths"] == [len(mask) for mask in args["loss_masks"]] == [3, 3]
        ),
    ),
}


def test_every_hook_of_training_has_a_case() -> None:
    assert list(CASES) == TRAIN_HOOKS
    assert all(hook in vars(case.plugin) for hook, case in CASES.items())


@pytest.mark.parametrize("hook", TRAIN_HOOKS)
def test_the_hook_is_called_as_its_spec_says_and_has_its_effect(hook: str, make_trainer: Any) -> None:
    case = CASES[hook]
    plugins = PluginManager()
    recorder = plugins.add(case.plugin, name="recorder").obj
    shape = {"rollout_batch_size": GROUPS, "n_samples_per_prompt": SIZE, "micro_batch_size": ROWS // MICRO_BATCHES}
    config = RunConfig(train_dtype="float32", use_dynamic_batch_size=False, lr=1e-3, **(shape | case.options))
    batch = build_train_batch(config, plugins, made_groups(), rollout_id=3)
    outcome = Outcome(batch, make_trainer(config, plugins=plugins).train(batch))
    assert len(recorder.calls) == case.calls
    for arguments in recorder.calls:
        assert sorted(arguments) == sorted(HOOKS[hook].params)
        assert {name: type(value) for name, value in arguments.items() if not isinstance(value, TYPES[name])} == {}
    assert case.check(outcome, recorder.calls[0])


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
