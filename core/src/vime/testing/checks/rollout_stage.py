"""The stage on which rollout and generate functions are checked: a run up to the trainer, with an engine that has no model."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from vime.api import ConfigError, Sample, VimeError, hookimpl
from vime.config.eval import EvalDatasetConfig
from vime.config.reward_sum import is_sum, parts_of
from vime.config.run_config import RunConfig
from vime.engine.base import SamplingParams, set_current_engine
from vime.outputs import RolloutFnEvalOutput
from vime.rollout.context import RolloutContext
from vime.rollout.generate import generate_sample
from vime.rollout.rewards import RewardScorer
from vime.rollout.runner import Rollout, RolloutRunner
from vime.rollout.vllm_rollout import VllmRollout
from vime.runtime.build import build_data_source, build_eval_datasets
from vime.testing.checks.base import Bench, CheckFailed, CheckSkipped, skip
from vime.testing.checks.rollout_engine import RecordingEngine
from vime.testing.checks.rollout_loop import drive
from vime.testing.fakes import Policy

DEFAULTS: dict[str, Any] = {
    "label_key": "label",
    "rollout_batch_size": 2,
    "n_samples_per_prompt": 2,
    "num_rollout": 3,
    "rollout_max_response_len": 16,
}
"""The configuration of the checks, below the author's own `args`."""
SFT: dict[str, Any] = {"loss_type": "sft_loss", "n_samples_per_prompt": 1}
"""Tried for a rollout that refuses to work for a policy loss."""
EVAL_ARGS = ("eval_datasets", "eval_prompt_data", "eval_config", "eval")
TEXT_ROWS = [{"input": f"{i}+1=", "label": str(i + 1), "metadata": {"row": i}} for i in range(8)]
CHAT_ROWS = [{**row, "input": [{"role": "user", "content": f"What is {row['input']}?"}]} for row in TEXT_ROWS]


class Stage:
    """A run without a trainer: data, engine, the plugin under test, and a reward where it brings none. A context manager.

    `options` are configuration above the author's `args`. The training data are eight rows, and there are two
    evaluation datasets, `sums` (three prompts, two samples each) and `more` (two prompts, one sample).
    """

    def __init__(
        self, bench: Bench, *, policy: Policy = None, latency: Any = 0.0, rows: Sequence[dict[str, Any]] = TEXT_ROWS, **options: Any
    ) -> None:
        self.bench, self.rows, self.options = bench, rows, options
        self.engine = RecordingEngine(policy, latency)

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="vime-check-", ignore_cleanup_errors=True)
        try:
            self._build(Path(self._folder.name))
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.context.scorer.close()
        self._folder.cleanup()

    def _build(self, folder: Path) -> None:
        self.config = stage_config(self.bench, folder, self.rows, **self.options)
        self.plugins = self.bench.load(self.config)
        if not self.plugins.implementations("custom_rm"):
            for name in reward_names(self.config):
                self.plugins.add(parity_reward(), name=name)
        self.source: Any = build_data_source(self.config, self.plugins, self.engine.tokenizer)
        scorer = RewardScorer(self.config, self.plugins)
        self.context = RolloutContext(self.config, self.engine, self.plugins, scorer, deterministic=True)
        self.built_in = VllmRollout(self.context, self.source, build_eval_datasets(self.config, self.engine.tokenizer))
        self.runner = RolloutRunner(self.context, self.built_in)

    @property
    def function(self) -> Any:
        """The function under test."""
        return self.bench.function(self.plugins)

    def train(self, rollout_id: int = 0) -> Rollout:
        """One training rollout, as the run makes and checks it."""
        return drive(self.runner.train(rollout_id))

    async def generate(self, sample: Sample, params: SamplingParams, *, evaluation: bool = False) -> list[Sample]:
        """One call of custom_generate, as the run makes and checks it."""
        set_current_engine(self.engine)
        return await generate_sample(self.context, sample, params, evaluation=evaluation)

    def evaluate(self, rollout_id: int = 0) -> RolloutFnEvalOutput:
        """One evaluation, as the run makes and checks it."""
        return drive(self.runner.evaluate(rollout_id))[0]


def stage_config(bench: Bench, folder: Path, rows: Sequence[dict[str, Any]] = TEXT_ROWS, **options: Any) -> RunConfig:
    """The configuration of the checks: defaults, then the author's `args`, then `options`; data are written into `folder`."""
    data = _write(folder / "rows.jsonl", rows)
    values: dict[str, Any] = {**DEFAULTS, "prompt_data": data, "save": str(folder / "save"), **bench.subject.args, **options}
    if not any(values.get(name) for name in EVAL_ARGS):
        values["eval_datasets"] = [
            EvalDatasetConfig(name="sums", path=_write(folder / "sums.jsonl", rows[:3]), n_samples_per_eval_prompt=2),
            EvalDatasetConfig(name="more", path=_write(folder / "more.jsonl", rows[3:5]), n_samples_per_eval_prompt=1),
        ]
    return bench.config(**values)


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def reward_names(config: RunConfig) -> list[str]:
    """What the plugins have to be called that score the samples of this run: several for a sum."""
    rm_type = config.rm_type or "kit-reward"
    if is_sum(rm_type):
        return list(dict.fromkeys(part.plugin for part in parts_of(rm_type, config.reward_weights, "--rm-type")))
    return [rm_type.removeprefix("boxed_")]


def parity_reward() -> ModuleType:
    """A reward that differs within a group: 1 for every second sample. A dict where the run has a reward key."""
    module = ModuleType("parity_reward")

    async def custom_rm(args: RunConfig, sample: Sample) -> Any:
        reward = float((sample.index or 0) % 2)
        keys = [key for key in (args.reward_key, args.eval_reward_key) if key and not is_sum(args.rm_type)]
        return dict.fromkeys(keys, reward) if keys else reward

    setattr(module, "custom_rm", hookimpl(custom_rm))  # noqa: B010 - a module has no such attribute to begin with
    return module


def working_options(bench: Bench) -> dict[str, Any]:
    """The options under which two plain training rollouts work. Skips where none does: `rollout-train` says why."""
    refusal: VimeError | None = None
    for options in (dict[str, Any](), SFT):
        try:
            with Stage(bench, **options) as stage:
                stage.train(0)
                stage.train(1)
        except ConfigError as error:
            refusal = refusal or error
        except (Exception, CheckFailed):  # noqa: BLE001 - reported by the check whose subject it is
            skip("there is no training rollout to look at, see rollout-train")
        else:
            return options
    assert refusal is not None
    raise CheckSkipped(f"it refuses the configuration of the checks: {refusal.message}; give one that it takes as args")
