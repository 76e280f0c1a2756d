"""A runner on FakeEngine, with one small plugin for each hook that a test names."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vime.api import Sample, hookimpl
from vime.config.eval import EvalDatasetConfig
from vime.config.run_config import RunConfig
from vime.data.dataset import load_dataset
from vime.plugins.manager import PluginManager
from vime.rollout.context import RolloutContext
from vime.rollout.evaluate import EvalDataset
from vime.rollout.rewards import RewardScorer
from vime.rollout.runner import RolloutRunner
from vime.rollout.vllm_rollout import VllmRollout
from vime.runtime.build import build_data_source
from vime.testing.fakes import FakeEngine, FakeTokenizer


async def index_parity(args: Any, sample: Sample) -> float:
    assert sample.index is not None
    return float(sample.index % 2)


class Setup:
    """A runner on FakeEngine over eight prompts, with an evaluation dataset `held-out` of two prompts; one plugin a hook."""

    def __init__(
        self,
        tmp_path: Path,
        *,
        prompt: Any = "p",
        reward: Any = index_parity,
        latency: float = 0.0,
        failure_rate: float = 0.0,
        **hooks_and_options: Any,
    ) -> None:
        hooks = {name: value for name, value in hooks_and_options.items() if callable(value) or isinstance(value, list)}
        options = {name: value for name, value in hooks_and_options.items() if name not in hooks}
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(json.dumps({"input": prompt, "label": [i], "metadata": {"list": [i]}}) + "\n" for i in range(8)))
        dataset = EvalDatasetConfig(name="held-out", path=f"{path}@[0:2]", n_samples_per_eval_prompt=2)
        options = {"rollout_batch_size": 2, "n_samples_per_prompt": 2, "num_rollout": 1, "label_key": "label", **options}
        self.config = RunConfig(prompt_data=str(path), rollout_max_response_len=4, eval_datasets=[dataset], **options)
        self.plugins = PluginManager()
        for hook, functions in {"custom_rm": reward, **hooks}.items():
            for number, function in enumerate(functions if isinstance(functions, list) else [functions]):
                module = ModuleType(hook)
                setattr(module, hook, hookimpl(function))
                self.plugins.add(module, name=f"{hook}-{number}")
        self.engine = FakeEngine(latency=latency, failure_rate=failure_rate)
        self.source = build_data_source(self.config, self.plugins, FakeTokenizer())
        context = RolloutContext(
            self.config, self.engine, self.plugins, RewardScorer(self.config, self.plugins), deterministic=latency == 0
        )
        rows = load_dataset(dataset.path, tokenizer=FakeTokenizer(), input_key="input", label_key="label", metadata_key="metadata")
        self.dataset = EvalDataset(self.config.eval_datasets[0], rows)
        self.runner = RolloutRunner(context, VllmRollout(context, self.source, [self.dataset]))

    def train(self, rollout_id: int = 0) -> Any:
        return asyncio.run(asyncio.wait_for(self.runner.train(rollout_id), 30))

    def evaluate(self) -> Any:
        return asyncio.run(asyncio.wait_for(self.runner.evaluate(0), 30))


@pytest.fixture
def setup_run(tmp_path: Path) -> Callable[..., Setup]:
    """`setup_run(custom_generate=function, rollout_batch_size=4)`: hooks are callables or lists of them, the rest are options."""
    return functools.partial(Setup, tmp_path)
