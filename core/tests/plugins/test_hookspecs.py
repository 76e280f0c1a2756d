"""The hooks that plugins are written against: names, parameters, flags, and documentation whose examples run."""

from __future__ import annotations

import asyncio
import doctest
import subprocess
import sys

import pytest

from vime.config.run_config import RunConfig
from vime.plugins.hookspecs import EVAL_PATH_FLAG, HOOKS
from vime.sample import Sample
from vime.testing.fakes import FakeEngine

NUM_GPUS = 0

CONTRACT = {
    "generate_rollout": ("args rollout_id data_source evaluation engine", "one", "--rollout-function-path"),
    "custom_generate": ("args sample sampling_params evaluation engine", "one", "--custom-generate-function-path"),
    "custom_rm": ("args sample samples", "one", "--custom-rm-path"),
    "dynamic_sampling_filter": ("args samples", "agree", "--dynamic-sampling-filter-path"),
    "buffer_filter": ("args rollout_id buffer num_samples", "one", "--buffer-filter-path"),
    "rollout_sample_filter": ("args samples", "all", "--rollout-sample-filter-path"),
    "process_all_samples": ("args all_samples data_source", "all", "--rollout-all-samples-process-path"),
    "post_process_rewards": ("args samples", "one", "--custom-reward-post-process-path"),
    "convert_samples_to_train_data": ("args samples", "one", "--custom-convert-samples-to-train-data-path"),
    "rollout_data_postprocess": ("args rollout_id rollout_data", "all", "--rollout-data-postprocess-path"),
    "rollout_sample_hook": ("args sample rollout_id evaluation", "all", "--rollout-sample-hook-path"),
    "shape_reward": ("args sample", "all", None),
    "compute_advantages": ("args rollout_data", "one", "--custom-advantage-function-path"),
    "policy_loss": ("args inputs", "one", "--custom-loss-function-path"),
    "importance_weights": ("args pg_loss train_log_probs rollout_log_probs loss_masks", "one", "--custom-tis-function-path"),
    "pg_loss_reducer": (
        "total_lengths response_lengths loss_masks calculate_per_token_loss",
        "one",
        "--custom-pg-loss-reducer-function-path",
    ),
    "log_rollout_data": ("rollout_id args samples rollout_extra_metrics rollout_time", "all", "--custom-rollout-log-function-path"),
    "log_eval_rollout_data": ("rollout_id args data extra_metrics", "all", "--custom-eval-rollout-log-function-path"),
    "make_data_source": ("args", "one", "--data-source-path"),
}
"""Section 2 of the contracts: what plugins depend on."""


def test_the_hooks_are_those_of_the_contract():
    assert {name: (" ".join(info.params), info.kind, info.flag) for name, info in HOOKS.items()} == CONTRACT


def test_every_path_flag_is_a_field_of_the_configuration():
    for info in HOOKS.values():
        if info.path_flag is not None:
            field = RunConfig.model_fields[info.path_flag]
            assert field.get_default(call_default_factory=True) == ([] if info.repeatable else None), info.name
    assert RunConfig.model_fields[EVAL_PATH_FLAG].default is None


@pytest.mark.parametrize("hook", HOOKS)
def test_the_documentation_of_a_hook_is_complete(hook):
    doc = HOOKS[hook].doc
    for part in ("Called: ", "Arguments: ", "Returns: ", "Several plugins: ", "Example:", "@hookimpl\n"):
        assert part in doc, part
    for param in HOOKS[hook].params:
        assert f"`{param}`" in doc or param in ("args", "rollout_id", "calculate_per_token_loss"), param


class Prompts:
    def get_samples(self, n):
        return [[Sample(group_index=i, index=2 * i + k, prompt="1+1=", label="2") for k in range(2)] for i in range(n)]


@pytest.mark.parametrize("hook", HOOKS)
def test_the_example_of_a_hook_runs(hook):
    doc = HOOKS[hook].doc
    if "import torch" in doc:
        pytest.importorskip("torch")
    names = {
        "args": RunConfig(rollout_batch_size=2, n_samples_per_prompt=2),
        "engine": FakeEngine(),
        "data_source": Prompts(),
        "run": asyncio.run,
    }
    example = doctest.DocTestParser().get_doctest(doc, names, hook, None, 0)
    assert example.examples[-1].want, "an example ends in a result"
    output: list[str] = []
    results = doctest.DocTestRunner().run(example, out=output.append)
    assert results.failed == 0, "".join(output)


def test_the_plugin_system_is_light():
    code = "import sys, vime.plugins.manager, vime.api, vime.cli.plugin; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "transformers", "vllm", "deepspeed", "ray", "pyarrow"} & set(loaded)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
