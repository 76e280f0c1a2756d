"""A run in one process: engine, trainer, data and plugins side by side, and what the loop does with them."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime.config.load import plain_values
from vime.data.dataset import check_prompt_data, load_dataset
from vime.errors import ConfigError
from vime.plugins.lock import compare_locks
from vime.plugins.manager import PluginManager
from vime.rollout.context import RolloutContext
from vime.rollout.dynamic_sampling import Collected
from vime.rollout.evaluate import EvalDataset
from vime.rollout.rewards import RewardScorer
from vime.rollout.runner import Rollout, RolloutRunner
from vime.rollout.vllm_rollout import VllmRollout
from vime.runtime.interrupts import Interrupts
from vime.runtime.resume import ResumePoint, find_resume_point
from vime.runtime.third_party import quiet_third_parties
from vime.track.console import Console
from vime.track.run_dir import RunDir
from vime.track.tracker import Tracker

if TYPE_CHECKING:
    from vime.config.load import Resolved
    from vime.config.run_config import RunConfig
    from vime.engine.base import TrainableEngine
    from vime.rollout.data_source import DataSource
    from vime.train.deepspeed_trainer import DeepSpeedTrainer
    from vime.train.weights import WeightSync


@dataclass
class Step:
    """One turn of the loop: the seconds its parts took, and its metrics by full key."""

    number: int
    seconds: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    engine_seconds: float = 0.0

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = time.perf_counter() - started


class LocalRuntime:
    """Owns every handle of a local run. `rollout_id` is the number of finished rollouts: the step boundary."""

    def __init__(
        self,
        config: RunConfig,
        console: Console,
        run_dir: RunDir,
        tracker: Tracker,
        plugins: PluginManager,
        interrupts: Interrupts,
        started: float,
    ) -> None:
        self.config, self.console, self.run_dir, self.tracker = config, console, run_dir, tracker
        self.plugins, self.interrupts, self.started = plugins, interrupts, started
        self.event_loop = asyncio.new_event_loop()
        self.engine: TrainableEngine | None = None
        self.trainer: DeepSpeedTrainer | None = None
        self.weight_sync: WeightSync | None = None
        self.source: DataSource
        self.datasets: list[EvalDataset] = []
        self.scorer: RewardScorer
        self.runner: RolloutRunner
        self.rollout_id = 0
        self.num_rollout = 0
        self.evaluated_at: int | None = None
        self.saved_at: int | None = None
        self.first_scores: dict[str, float] = {}
        self.last_scores: dict[str, float] = {}
        self._boundary: dict[str, Any] = {}
        self._step = Step(0)

    # --- start and end ------------------------------------------------------------------------------------------

    @classmethod
    @contextmanager
    def start(cls, resolved: Resolved, interrupts: Interrupts, *, train: bool = True) -> Iterator[LocalRuntime]:
        """Check everything that can be checked cheaply, then build the run; closes it at the end."""
        started = time.perf_counter()
        config = resolved.config
        if config.runtime != "local" or config.pipeline != "sync":
            raise ConfigError(f"--runtime {config.runtime} --pipeline {config.pipeline} is not available yet", hint="leave both flags out")
        plugins = PluginManager.load(config)
        scorer = RewardScorer(config, plugins)
        check_prompt_data(config)
        resume = find_resume_point(config)
        quiet_third_parties()
        console = Console(config)
        named = config.model_copy(update={"name": config.run_name})
        run_dir = RunDir.create(named)
        run_dir.write_config({**plain_values(config), "name": named.name})
        run_dir.write_lock(plugins.lock())
        tracker = Tracker(run_dir, config, console)
        run = cls(config, console, run_dir, tracker, plugins, interrupts, started)
        run.scorer = scorer
        if config.trace_hooks:
            plugins.times.trace = lambda key, seconds: console.info(f"hook {key}  {1000 * seconds:.3f} ms")
        try:
            run._build(resume, train=train)
            yield run
        finally:
            run._close()

    def _build(self, resume: ResumePoint | None, *, train: bool) -> None:
        config, console = self.config, self.console
        model_path = str(resume.path) if resume is not None else config.hf_checkpoint
        assert model_path is not None
        console.header(self._header(resume))
        if resume is None and config.load == "auto":
            console.info("no checkpoint to load: starting from the beginning")
        with console.phase("loading PyTorch, transformers and DeepSpeed" if train else "loading PyTorch and transformers"):
            import torch

            deterministic = config.deterministic if config.deterministic is not None else not torch.cuda.is_available()
            _seed_everything(config.rollout_seed)
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(model_path)
            if train:
                from vime.train.deepspeed_trainer import DeepSpeedTrainer
                from vime.train.weights import WeightSync
        with console.phase("reading the data"):
            self._build_data(tokenizer)
        self.num_rollout = self._planned_rollouts() if train else 0
        self.config = config = config.model_copy(update={"num_rollout": self.num_rollout})
        if train:
            with console.phase("starting the trainer"):
                self.trainer = DeepSpeedTrainer(config, model_path, plugins=self.plugins)
        if self._needs_engine:
            with console.phase("starting vLLM"):
                from vime.engine.local import LocalEngine

                self.engine = LocalEngine(
                    config, model_path, dtype=self._engine_dtype(model_path), deterministic=deterministic, concurrency=self._concurrency()
                )
            if self.trainer is not None:
                self.weight_sync = WeightSync(config, self.trainer, self.engine)
        context = RolloutContext(config, self.engine, self.plugins, self.scorer, deterministic)  # type: ignore[arg-type]
        self.runner = RolloutRunner(context, VllmRollout(context, self.source, self.datasets))
        if resume is not None:
            self._restore(resume)
        self._boundary = self._state()
        gc.collect()
        gc.freeze()  # the libraries' objects stay for good: no reason to walk them in every collection

    def _build_data(self, tokenizer: Any) -> None:
        config = self.config
        claimed = self.plugins.claimed("make_data_source")
        if claimed is not None:
            self.source = claimed.run(args=config)
        else:
            from vime.rollout.data_source import RolloutDataSourceWithBuffer

            buffer_filter = self.plugins.claimed("buffer_filter")
            # The number of rollouts bounds the run, not the source: epochs wrap as often as filters make it necessary.
            endless = config.model_copy(update={"num_rollout": config.num_rollout or 0})
            self.source = RolloutDataSourceWithBuffer(endless, tokenizer=tokenizer, buffer_filter=buffer_filter)
        self.datasets = [
            EvalDataset(
                dataset,
                load_dataset(
                    dataset.path,
                    tokenizer=tokenizer,
                    input_key=dataset.input_key or config.input_key,
                    label_key=dataset.label_key or config.label_key,
                    metadata_key=dataset.metadata_key or config.metadata_key,
                    tool_key=dataset.tool_key or config.tool_key,
                    apply_chat_template=bool(dataset.apply_chat_template),
                    apply_chat_template_kwargs=dataset.apply_chat_template_kwargs or {},
                    skip_bad_rows=config.skip_bad_rows,
                ),
            )
            for dataset in config.eval_datasets
        ]

    @property
    def _needs_engine(self) -> bool:
        return self.config.loss_type != "sft_loss" or bool(self.datasets)

    def _engine_dtype(self, model_path: str) -> str:
        """The engine's number format: as configured, else the trainer's, or the one that a trainer would have."""
        if self.config.engine_dtype != "auto":
            return self.config.engine_dtype
        import torch

        from vime.train.deepspeed_config import resolve_train_dtype
        from vime.train.model_loading import count_parameters

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dtype = self.trainer.dtype if self.trainer else resolve_train_dtype(self.config.train_dtype, count_parameters(model_path), device)
        return str(dtype).removeprefix("torch.")

    def _concurrency(self) -> int:
        config = self.config
        wave = (config.over_sampling_batch_size or config.rollout_batch_size) * config.n_samples_per_prompt
        evaluation = sum(len(dataset.rows) * (dataset.config.n_samples_per_eval_prompt or 1) for dataset in self.datasets)
        return max(wave, evaluation)

    def _planned_rollouts(self) -> int:
        config = self.config
        if config.num_rollout is not None:
            return config.num_rollout
        return max(1, len(self.source) * (config.num_epoch or 1) // config.rollout_batch_size)

    def _header(self, resume: ResumePoint | None) -> dict[str, str]:
        config = self.config
        plugins = ", ".join(f"{p.name} ({p.distribution} {p.version})" if p.distribution else p.name for p in self.plugins.plugins)
        model = config.hf_checkpoint
        if config.quickstart:
            model = "the quickstart model that comes with vime (choose your own with --model and --prompt-data)"
        rows = {
            "model": str(model),
            "data": "arithmetic problems that come with vime" if config.quickstart else str(config.prompt_data),
            "plugins": plugins or "none",
            "batch": f"{config.rollout_batch_size} prompts x {config.n_samples_per_prompt} samples",
            "training": f"{self.num_rollout or config.num_rollout} rollouts, {config.advantage_estimator}, lr {config.lr:g}",
            "run folder": str(self.run_dir.path),
        }
        if resume is not None:
            rows["goes on from"] = f"{resume.path} (rollout {resume.manifest['rollout_id']})"
        return rows

    def _close(self) -> None:
        self.scorer.close()
        if self.engine is not None:
            self.engine.close()
        if self.trainer is not None:
            self.trainer.close()
        self.tracker.close()
        self.event_loop.close()

    def finish(self) -> None:
        """Say what came of it."""
        rows = {}
        for name, score in self.last_scores.items():
            first = self.first_scores.get(name, score)
            trained = self.trainer is not None and self.num_rollout > 0
            rows[name] = f"{first:.3f} -> {score:.3f}  ({score - first:+.3f})" if trained else f"{score:.3f}"
        if self.saved_at is not None:
            rows["checkpoint"] = str(self.run_dir.checkpoints / f"step_{self.saved_at}")
        rows["run folder"] = str(self.run_dir.path)
        rows["time"] = f"{time.perf_counter() - self.started:.0f} s"
        self.console.summary(rows)

    # --- what the loop calls ------------------------------------------------------------------------------------

    @property
    def rollouts_left(self) -> bool:
        return self.rollout_id < self.num_rollout

    @property
    def evaluates_before_training(self) -> bool:
        return bool(self.datasets) and not self.config.skip_eval_before_train and self.rollout_id == 0 and self.evaluated_at is None

    @property
    def evaluation_is_due(self) -> bool:
        interval = self.config.eval_interval
        return interval is not None and bool(self.datasets) and (self.rollout_id % interval == 0 or not self.rollouts_left)

    @property
    def checkpoint_is_due(self) -> bool:
        return self.config.save_interval is not None and self.rollout_id % self.config.save_interval == 0

    @contextmanager
    def step(self) -> Iterator[Step]:
        """One rollout with its training: logs the metrics and moves the step boundary at the end."""
        self._step = Step(self.rollout_id)
        started = time.perf_counter()
        yield self._step
        elapsed = time.perf_counter() - started
        step = self._step
        busy = step.engine_seconds + step.seconds.get("train", 0.0) + step.seconds.get("sync", 0.0)
        perf = {f"{part}_time": seconds for part, seconds in step.seconds.items()}
        perf |= {"step_time": elapsed, "overhead_fraction": max(0.0, 1.0 - busy / elapsed) if elapsed else 0.0}
        reward_time = step.metrics.pop("rollout/reward_time", None)
        if reward_time is not None:
            perf["reward_time"] = reward_time
        self._log("perf", perf)
        self._log("hooks", self.plugins.take_timings())
        self.console.step(self.rollout_id + 1, self.num_rollout, step.metrics)
        self.rollout_id += 1
        self._boundary = self._state()

    def rollout(self) -> list[list[Any]]:
        """Generate, reward and filter one training batch."""
        self.interrupts.check()
        started = time.perf_counter()
        with self.console.rollout_progress(self.config.rollout_batch_size) as progress:

            def show(collected: Collected) -> None:
                progress.update(len(collected.kept), collected.drop_reasons)

            self.runner.built_in.progress = show
            rollout: Rollout = self.interrupts.run(self.event_loop, self.runner.train(self.rollout_id))
        seconds = time.perf_counter() - started
        metrics = dict(rollout.metrics)
        if self.engine is not None:
            stats = self.engine.stats()
            self._step.engine_seconds = stats.get("busy_seconds", 0.0)
            metrics["tokens_per_second"] = stats["generated_tokens"] / seconds
        self._log("rollout", metrics)
        if self.config.sample_every and self.rollout_id % self.config.sample_every == 0:
            self.tracker.log_samples(self.rollout_id, "train", rollout.groups, rollout.dropped)
        return rollout.groups

    def train(self, groups: list[list[Any]]) -> None:
        """Turn the groups into a batch and take the optimizer steps of this rollout."""
        from vime.train.batch import build_train_batch

        self.interrupts.check()
        assert self.trainer is not None
        batch = build_train_batch(self.config, self.plugins, groups, rollout_id=self.rollout_id)
        verify = None
        if self.weight_sync is not None:
            self.weight_sync.set_probe([sample.tokens for group in groups for sample in group if sample.tokens])
            verify = self.weight_sync.verify
        self._log("train", self.trainer.train(batch, verify=verify))

    def sync_weights(self) -> None:
        """Give the engine the trainer's weights; verified as WeightSync says."""
        if self.weight_sync is not None:
            self.weight_sync.sync()

    def evaluate(self) -> None:
        """Evaluate all datasets and log the scores."""
        with self.console.phase("evaluating"):
            output, metrics = self.interrupts.run(self.event_loop, self.runner.evaluate(self.rollout_id))
        if self.engine is not None:
            self.engine.stats()
        self.tracker.log(self.rollout_id, "eval", metrics)
        for name, data in output.data.items():
            self.tracker.log_samples(self.rollout_id, f"eval_{name}", [[sample] for sample in data["samples"]])
        full = {f"eval/{key}": value for key, value in metrics.items()}
        self.console.evaluation(self.rollout_id, full)
        self.last_scores = {name: metrics[name] for name in output.data if name in metrics}
        self.first_scores = self.first_scores or dict(self.last_scores)
        self.evaluated_at = self.rollout_id
        self._boundary = self._state()

    def save(self) -> None:
        """Write a checkpoint of the step boundary, unless it is there already."""
        from vime.train.checkpoint import save_checkpoint

        if self.trainer is None or self.saved_at == self.rollout_id:
            return
        trainer = self.trainer

        def write(directory: Path) -> None:
            trainer.save(str(directory))
            tokenizer = self.engine.tokenizer if self.engine is not None else getattr(self.source, "tokenizer", None)
            if tokenizer is not None:
                tokenizer.save_pretrained(str(directory))

        with self.console.phase(f"saving checkpoint step_{self.rollout_id}"):
            save_checkpoint(self.run_dir.checkpoints, self.rollout_id, write, self._boundary, keep=self.config.keep_checkpoints)
        self.saved_at = self.rollout_id

    def roll_back_and_save(self) -> None:
        """After an interrupt: forget the unfinished step, save the boundary before it."""
        self.tracker.truncate_after(self.rollout_id - 1)
        self.save()
        path = self.run_dir.checkpoints / f"step_{self.saved_at}"
        self.console.info(f"interrupted after {self.rollout_id} of {self.num_rollout} rollouts; saved {path}; go on with --load auto")

    # --- state --------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        """All that a resumed run needs beside the trainer's own files, as plain data."""
        source_state = getattr(self.source, "state_dict", None)
        return {
            "rollout_id": self.rollout_id,
            "num_rollout": self.num_rollout,
            "data_source": source_state() if source_state is not None else None,
            "plugins": self.plugins.state_dict(),
            "lock": self.plugins.lock(),
            "evaluated_at": self.evaluated_at,
            "first_scores": self.first_scores,
            "last_scores": self.last_scores,
        }

    def _restore(self, resume: ResumePoint) -> None:
        manifest = resume.manifest
        ignored = self.config.ignore_plugin_lock
        for warning in [] if ignored else compare_locks(manifest["lock"], self.plugins.lock()):
            self.console.warn(warning)
        self.rollout_id = manifest["rollout_id"]
        if self.trainer is not None:
            self.trainer.load(str(resume.path))
        load_state = getattr(self.source, "load_state_dict", None)
        if load_state is not None and manifest["data_source"] is not None:
            load_state(manifest["data_source"])
        self.plugins.load_state_dict(manifest["plugins"], ignore_missing=ignored)
        self.evaluated_at, self.first_scores, self.last_scores = manifest["evaluated_at"], manifest["first_scores"], manifest["last_scores"]
        if resume.path.parent.resolve() == self.run_dir.checkpoints.resolve():
            self.saved_at = self.rollout_id
            self.tracker.truncate_after(self.rollout_id - 1)

    def _log(self, namespace: str, metrics: dict[str, float]) -> None:
        self._step.metrics |= {f"{namespace}/{key}": value for key, value in metrics.items()}
        self.tracker.log(self.rollout_id, namespace, {k: v for k, v in metrics.items() if f"{namespace}/{k}" in self._step.metrics})


def _seed_everything(seed: int) -> None:
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
