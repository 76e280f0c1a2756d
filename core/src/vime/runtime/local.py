"""A run in one process: engine, trainer, data and plugins side by side, and what the loop does with them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from vime.config.load import plain_values
from vime.data.dataset import check_prompt_data
from vime.errors import EngineError
from vime.plugins.manager import PluginManager
from vime.report.page import report_at_end
from vime.rollout.context import RolloutContext
from vime.rollout.data_source import DataSource, RolloutDataSource
from vime.rollout.debug_data import SavedRollouts, check_saved_rollouts, save_rollout
from vime.rollout.dynamic_sampling import Collected
from vime.rollout.evaluate import EvalDataset
from vime.rollout.generate import train_sampling_params
from vime.rollout.held_out import loss_evaluation
from vime.rollout.http.server import HttpEndpoint, address_of, open_port
from vime.rollout.rewards import RewardScorer
from vime.rollout.runner import RolloutRunner
from vime.rollout.vllm_rollout import VllmRollout
from vime.runtime.build import (
    build_data_source,
    build_eval_datasets,
    concurrent_requests,
    engine_dtype,
    new_event_loop,
    planned_rollouts,
    seed_everything,
)
from vime.runtime.checkpoints import Boundary, take_over, write_checkpoint
from vime.runtime.evaluation import Evaluation, record
from vime.runtime.interrupts import Interrupts
from vime.runtime.loss_evaluation import LossScorer, evaluate_by_loss
from vime.runtime.resume import ResumePoint, find_resume_point
from vime.runtime.step import Step
from vime.runtime.story import header_rows, summary_rows
from vime.runtime.third_party import quiet_third_parties
from vime.track.console import Console
from vime.track.lines import LOSS
from vime.track.run_dir import RunDir
from vime.track.tracker import Tracker

if TYPE_CHECKING:
    from vime.config.load import Resolved
    from vime.config.run_config import RunConfig
    from vime.engine.base import TrainableEngine
    from vime.train.deepspeed_trainer import DeepSpeedTrainer
    from vime.train.weights import WeightSync

T = TypeVar("T")


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
        self.is_built = False
        self.event_loop = new_event_loop()
        self.engine: TrainableEngine | None = None
        self.trainer: DeepSpeedTrainer | None = None
        self.weight_sync: WeightSync | None = None
        self.endpoint: HttpEndpoint | None = None
        self.source: DataSource | None = None
        self.tokenizer: Any = None
        self.datasets: list[EvalDataset] = []
        self.loss_function = loss_evaluation(config, plugins)
        """Makes the samples of an evaluation by loss; None where evaluations generate."""
        self.loss_scorer: LossScorer | None = None
        self.scorer: RewardScorer
        self.runner: RolloutRunner | SavedRollouts
        self.rollout_id = self.num_rollout = 0
        self.evaluated_at: int | None = None
        self.saved_at: int | None = None
        self.first_scores: dict[str, float] = {}
        self.last_scores: dict[str, float] = {}
        self._boundary: Boundary
        self._step = Step(0)

    # --- start and end ------------------------------------------------------------------------------------------

    @classmethod
    @contextmanager
    def start(
        cls, resolved: Resolved, interrupts: Interrupts, *, train: bool = True, run_dir: RunDir | None = None
    ) -> Iterator[LocalRuntime]:
        """Check everything that can be checked cheaply, then build the run; closes it at the end. `run_dir` continues a folder."""
        started, record = time.perf_counter(), None
        config = resolved.config
        plugins = PluginManager.load(config)
        listener = None
        if config.serve_engine is not None:
            listener = open_port(config.serve_engine)
            config = config.model_copy(update=address_of(listener))
        scorer = RewardScorer(config, plugins)
        check_prompt_data(config)
        check_saved_rollouts(config)
        resume, passed_over = find_resume_point(config)
        doubts = [f"{path} is passed over: {problem}" for path, problem in passed_over.items()]
        if resume is not None:
            resume.check_model(config)
            doubts += resume.compare_plugins(config, plugins)
        quiet_third_parties()
        console = Console(config)
        # An evaluation may score the checkpoint of another run, but it writes into a folder of its own.
        name = config.run_name if train else f"{config.run_name.removesuffix('-eval')}-eval"
        if run_dir is None:
            run_dir = RunDir.create(config.model_copy(update={"name": name, "load": config.load if train else None}))
            record = {**plain_values(config), "name": name}
        tracker = Tracker(run_dir, config, console)
        run = cls(config, console, run_dir, tracker, plugins, interrupts, started)
        run.scorer = scorer
        for doubt in doubts:
            console.warn(doubt)
        if config.trace_hooks:
            plugins.times.trace = lambda key, seconds: console.info(f"hook {key}  {1000 * seconds:.3f} ms")
        try:
            if record is not None and resume is None:
                run_dir.write_record(record, plugins.lock())
            run._build(resume, listener, train=train)
            if record is not None and resume is not None:  # only now is it known that the run may go on in this folder
                run_dir.write_record(record, plugins.lock())
            run.is_built = True
            yield run
        finally:
            run._close()

    def _build(self, resume: ResumePoint | None, listener: socket.socket | None, *, train: bool) -> None:
        config, console = self.config, self.console
        model_path = str(resume.path) if resume is not None else config.hf_checkpoint
        assert model_path is not None
        console.header(header_rows(config, self.plugins, self.run_dir.path, resume, train=train))
        if resume is None and config.load == "auto":
            console.info("no checkpoint to load: starting from the beginning")
        with console.phase("loading PyTorch, transformers and DeepSpeed" if train else "loading PyTorch and transformers"):
            import torch

            deterministic = config.deterministic if config.deterministic is not None else not torch.cuda.is_available()
            seed_everything(config.rollout_seed)
            from transformers import AutoTokenizer

            self.tokenizer = tokenizer = AutoTokenizer.from_pretrained(model_path)
            self.tracker.read_tokens_with(tokenizer)
            if train:
                from vime.train.deepspeed_trainer import DeepSpeedTrainer
                from vime.train.weights import WeightSync
        with console.phase("reading the data"):
            self.source = build_data_source(config, self.plugins, tokenizer) if train and not config.debug_train_only else None
            self.datasets = [] if config.debug_train_only else build_eval_datasets(config, tokenizer)
        self.num_rollout = planned_rollouts(config, self.source) if train else 0
        self.config = config = config.model_copy(update={"num_rollout": self.num_rollout})
        if train and not config.debug_rollout_only:
            with console.phase("starting the trainer"):
                self.loss_scorer = self.trainer = DeepSpeedTrainer(config, model_path, plugins=self.plugins, warn=console.warn)
        elif self.loss_function is not None and self.datasets:
            with console.phase("loading the model"):
                from vime.train.scoring import ModelScorer

                self.loss_scorer = ModelScorer(config, model_path)
        if self._needs_engine:
            with console.phase("starting vLLM"):
                from vime.engine.local import LocalEngine

                self.engine = LocalEngine(
                    config,
                    model_path,
                    dtype=engine_dtype(config, model_path, self.trainer),
                    deterministic=deterministic,
                    concurrency=concurrent_requests(config, self.datasets),
                )
            if self.trainer is not None:
                self.weight_sync = WeightSync(config, self.trainer, self.engine)
        if listener is not None:
            self._serve(listener)
        if config.debug_train_only:
            self.runner = SavedRollouts(config)
        else:
            context = RolloutContext(config, self.engine, self.plugins, self.scorer, deterministic, self.endpoint)  # type: ignore[arg-type]
            self.runner = RolloutRunner(context, VllmRollout(context, self.source, self.datasets))
        take_over(self, resume)
        self._boundary = Boundary.of(self)
        gc.collect()
        gc.freeze()  # the libraries' objects stay for good: no reason to walk them in every collection

    def _serve(self, listener: socket.socket) -> None:
        """Answer requests at the port that `listener` holds, where there is an engine to answer them."""
        if self.engine is None:
            listener.close()
            self.console.warn("--serve-engine has no effect: nothing is generated in this run, so that there is no engine")
            return
        self.endpoint = HttpEndpoint(self.engine, self.event_loop, train_sampling_params(self.config), listener)
        self.endpoint.start()
        self.console.info(f"the engine also answers at {self.endpoint.url}/v1")

    @property
    def _needs_engine(self) -> bool:
        generates = self.config.loss_type != "sft_loss" or bool(self.datasets and self.loss_function is None)
        return generates and not self.config.debug_train_only

    def _close(self) -> None:
        if self.endpoint is not None:
            self.endpoint.close()
        self._settle_event_loop()
        for handle in (self.scorer, self.engine, self.trainer, self.tracker):
            if handle is not None:
                handle.close()
        if self.is_built:
            report_at_end(self.run_dir.path, self.console)
        self.event_loop.run_until_complete(self.event_loop.shutdown_asyncgens())  # what plugins keep open for this loop
        self.event_loop.close()

    def _settle_event_loop(self) -> None:
        """End what an error or an interrupt has left running: requests first, so that whoever waits for one goes on."""
        left = asyncio.all_tasks(self.event_loop)
        if not left:
            return
        if self.engine is not None:
            with contextlib.suppress(EngineError):
                self.event_loop.run_until_complete(self.engine.abort_all())
        for task in left:
            task.cancel()
        self.event_loop.run_until_complete(asyncio.wait(left, timeout=5.0))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the rollout to its end; after an error or an interrupt nothing of it is left running."""
        try:
            return self.interrupts.run(self.event_loop, coroutine)
        except BaseException:
            self._settle_event_loop()
            raise

    def finish(self) -> None:
        """Say what came of it."""
        self.console.summary(
            summary_rows(
                first_scores=self.first_scores if self.trainer is not None and self.num_rollout else {},
                last_scores=self.last_scores,
                checkpoint=None if self.saved_at is None else self.run_dir.checkpoints / f"step_{self.saved_at}",
                run_folder=self.run_dir.path,
                seconds=time.perf_counter() - self.started,
            )
        )

    # --- what the loop calls ------------------------------------------------------------------------------------

    @property
    def rollouts_left(self) -> bool:
        return self.rollout_id < self.num_rollout

    def evaluate_if_due(self) -> None:
        """Evaluate before the first rollout, every `eval_interval` rollouts and after the last; never twice at one boundary."""
        interval = self.config.eval_interval
        if not self.datasets or self.evaluated_at == self.rollout_id:
            return
        if self.rollout_id == 0:
            is_due = not self.config.skip_eval_before_train
        else:
            is_due = interval is not None and (self.rollout_id % interval == 0 or not self.rollouts_left)
        if is_due:
            self.evaluate()

    def save_if_due(self) -> None:
        """Write a checkpoint every `save_interval` rollouts."""
        if self.config.save_interval is not None and self.rollout_id % self.config.save_interval == 0:
            self.save()

    @contextmanager
    def step(self) -> Iterator[Step]:
        """One rollout with its training: logs the metrics and moves the step boundary at the end."""
        self._step = Step(self.rollout_id)
        started = time.perf_counter()
        with self._step.writing_samples(self.tracker, self.config.sample_every):
            yield self._step
        self._log("perf", self._step.perf_metrics(time.perf_counter() - started))
        self._log("hooks", self.plugins.take_timings())
        self.console.step(self.rollout_id + 1, self.num_rollout, self._step.metrics)
        self.rollout_id += 1
        self._boundary = Boundary.of(self)

    def rollout(self) -> list[list[Any]]:
        """Generate, reward and filter one training batch."""
        self.interrupts.check()
        if isinstance(self.source, RolloutDataSource):
            self.source.rollout_id = self.rollout_id
            self.source.weight_version = None if self.engine is None else self.engine.weight_version
        started = time.perf_counter()
        with self.console.rollout_progress(self.config.rollout_batch_size) as progress:

            def show(collected: Collected) -> None:
                progress.update(len(collected.kept), collected.drop_reasons, collected.tokens / (time.perf_counter() - started))

            rollout = self.run(self.runner.train(self.rollout_id, show))
        seconds = time.perf_counter() - started
        for notice in self.scorer.failures.take_notices():
            self.console.warn(notice)
        metrics = dict(rollout.metrics)
        self._step.seconds["reward"] = metrics.pop("reward_time", 0.0)
        if self.engine is not None:
            stats = self.engine.stats()
            self._step.engine_seconds = stats.get("busy_seconds", 0.0)
            metrics["tokens_per_second"] = stats["generated_tokens"] / seconds
            if stats.get("prompt_tokens"):
                metrics["prefix_cache_hit_rate"] = stats.get("cached_tokens", 0.0) / stats["prompt_tokens"]
        self._log("rollout", metrics, to_file=not rollout.logged_by_plugin)
        if self.config.save_debug_rollout_data is not None:
            save_rollout(self.config.save_debug_rollout_data, self.rollout_id, rollout.groups)
        self._step.rollout = rollout
        return rollout.groups

    def train(self, groups: list[list[Any]]) -> None:
        """Turn the groups into a batch and take the optimizer steps of this rollout; with --debug-rollout-only there are none."""
        from vime.train.batch import build_train_batch

        self.interrupts.check()
        if self.trainer is None:
            return
        self._step.batch = batch = build_train_batch(self.config, self.plugins, groups, rollout_id=self.rollout_id)
        verify = None
        if self.weight_sync is not None:
            samples = [sample for group in groups for sample in group]
            self.weight_sync.set_probe([sample.tokens for sample in samples], [sample.response_length for sample in samples])
            verify = self.weight_sync.verify
        self._log("train", self.trainer.train(batch, verify=verify))

    def sync_weights(self) -> None:
        """Give the engine the trainer's weights; verified as WeightSync says."""
        if self.weight_sync is not None:
            self.weight_sync.sync()

    def evaluate(self) -> Evaluation:
        """Evaluate all datasets and log the scores: of what is generated, or by the loss."""
        assert isinstance(self.runner, RolloutRunner), "a run on saved rollouts has no datasets"
        with self.console.phase("evaluating"):
            if self.loss_function is not None and self.loss_scorer is not None:
                output, metrics, logged_by_plugin = evaluate_by_loss(self, self.runner, self.loss_function, self.loss_scorer)
            else:
                output, metrics, logged_by_plugin = self.run(self.runner.evaluate(self.rollout_id))
        if self.engine is not None:
            self.engine.stats()
        evaluation = record(self, output, metrics, logged_by_plugin=logged_by_plugin)
        self.last_scores = {key: metrics[key] for name in output.data for key in (name, f"{name}{LOSS}") if key in metrics}
        self.first_scores = self.first_scores or dict(self.last_scores)
        self.evaluated_at = self.rollout_id
        self._boundary = Boundary.of(self)
        return evaluation

    def save(self) -> None:
        """Write a checkpoint of the step boundary, unless it is there already."""
        if self.trainer is not None and self.saved_at != self.rollout_id:
            self.tracker.sync()
            write_checkpoint(self, self.trainer, self._boundary)
            self.saved_at = self.rollout_id

    def roll_back_and_save(self) -> None:
        """After an interrupt: forget the unfinished step, save the boundary before it."""
        self.forget_later_metrics()
        if self.trainer is not None:
            self._boundary.restore_random_states()
        self.save()
        saved = "; nothing to save without a trainer"
        if self.saved_at is not None:
            saved = f"; saved {self.run_dir.checkpoints / f'step_{self.saved_at}'}; go on with --load auto"
        self.console.info(f"interrupted after {self.rollout_id} of {self.num_rollout} rollouts{saved}")

    def forget_later_metrics(self) -> None:
        """Remove from the run folder what was logged beyond the step boundary."""
        self.tracker.truncate_after(self.rollout_id - 1, keep_evaluation=self.evaluated_at == self.rollout_id)

    def _log(self, namespace: str, metrics: dict[str, float], *, to_file: bool = True) -> None:
        self._step.metrics |= {f"{namespace}/{key}": value for key, value in metrics.items()}
        if to_file:
            self.tracker.log(self.rollout_id, namespace, metrics)
