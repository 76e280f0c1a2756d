"""A run: engine, trainer, data and plugins, wherever they are placed, and what the loop does with them."""

from __future__ import annotations

import socket
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from vime.config.load import plain_values
from vime.data.dataset import check_prompt_data
from vime.heavy import collecting_less_often, heavy_imports
from vime.plugins.manager import PluginManager
from vime.report.page import report_at_end
from vime.rollout.context import RolloutContext
from vime.rollout.data_source import DataSource
from vime.rollout.debug_data import SavedRollouts, check_saved_rollouts, save_rollout
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
    planned_rollouts,
    seed_everything,
)
from vime.runtime.chatter import Chatter
from vime.runtime.checkpoints import Boundary, take_over, write_checkpoint
from vime.runtime.evaluation import Evaluation, record
from vime.runtime.event_loop import RunLoop
from vime.runtime.interrupts import Interrupts
from vime.runtime.loss_evaluation import LossScorer, evaluate_by_loss
from vime.runtime.pipeline import Pipeline, Workshop, pipeline_of, refuse_data_source, refuse_rollout_functions
from vime.runtime.placement import Needs, Placement, placement_of
from vime.runtime.resume import ResumePoint, find_resume_point
from vime.runtime.step import Step
from vime.runtime.story import header_rows, secrets_of, starting_engine, starting_trainer, summary_rows
from vime.runtime.third_party import are_loud, quiet_third_parties
from vime.track.console import Console
from vime.track.lines import LOSS
from vime.track.run_dir import RunDir
from vime.track.trace import Tracer
from vime.track.tracker import Tracker

if TYPE_CHECKING:
    from vime.config.load import Resolved
    from vime.config.run_config import RunConfig
    from vime.engine.base import TrainableEngine
    from vime.train.base import Trainer
    from vime.train.weights import WeightSync

T = TypeVar("T")


class Run:
    """Owns every handle of a run. `rollout_id` is the number of finished rollouts: the step boundary."""

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
        self.tracer = Tracer(config.trace_step, run_dir.path)
        self.chatter = Chatter(run_dir.path / "logs", console.warn, console.hides, loud=are_loud(config))
        self.is_built = False
        self.event_loop = RunLoop(interrupts)
        self.placement = placement_of(config)
        self.engine: TrainableEngine | None = None
        self.trainer: Trainer | None = None
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
        self.pipeline: Pipeline
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
        cls,
        resolved: Resolved,
        interrupts: Interrupts,
        *,
        train: bool = True,
        run_dir: RunDir | None = None,
        placement: Placement | None = None,
    ) -> Iterator[Run]:
        """Check everything that can be checked cheaply, then build the run; closes it at the end.

        `run_dir` continues a folder; `placement` takes the place of the one that the configuration names.
        """
        started, record = time.perf_counter(), None
        config = resolved.config
        plugins = PluginManager.load(config)
        listener = None
        if config.serve_engine is not None:
            listener = open_port(config.serve_engine)
            config = config.model_copy(update=address_of(listener))
        scorer = RewardScorer(config, plugins)
        if train:
            refuse_rollout_functions(config, plugins)
        check_prompt_data(config)
        check_saved_rollouts(config)
        resume, passed_over = find_resume_point(config)
        doubts = [f"{path} is passed over: {problem}" for path, problem in passed_over.items()]
        if resume is not None:
            resume.check_model(config)
            doubts += resume.compare_plugins(config, plugins)
        quiet_third_parties(config)
        console = Console(config, hides=secrets_of(config, plugins))
        # An evaluation may score the checkpoint of another run, but it writes into a folder of its own.
        name = config.run_name if train else f"{config.run_name.removesuffix('-eval')}-eval"
        if run_dir is None:
            run_dir = RunDir.create(config.model_copy(update={"name": name, "load": config.load if train else None}))
            record = console.hides.data({**plain_values(config), "name": name})
        tracker = Tracker(run_dir, config, console, console.hides)
        run = cls(config, console, run_dir, tracker, plugins, interrupts, started)
        run.placement = placement or run.placement
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
            with collecting_less_often():
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
        with console.phase(f"loading PyTorch, transformers{' and DeepSpeed' if train else ''}"), self.chatter.captured():
            with heavy_imports():
                import torch
                from transformers import AutoTokenizer

            deterministic = config.deterministic if config.deterministic is not None else not torch.cuda.is_available()
            seed_everything(config.rollout_seed)
            self.tokenizer = tokenizer = AutoTokenizer.from_pretrained(model_path)
            self.tracker.read_tokens_with(tokenizer)
            if train:
                from vime.train.weights import WeightSync
        with console.phase("reading the data"):
            self.source = build_data_source(config, self.plugins, tokenizer) if train and not config.debug_train_only else None
            self.datasets = [] if config.debug_train_only else build_eval_datasets(config, tokenizer)
        refuse_data_source(config, self.source)
        self.num_rollout = planned_rollouts(config, self.source) if train else 0
        self.config = config = config.model_copy(update={"num_rollout": self.num_rollout})
        needs_trainer = train and not config.debug_rollout_only
        self.placement.open(
            Needs(
                config=config,
                model_path=model_path,
                plugins=self.plugins,
                warn=console.warn,
                say=console.info,
                phase=console.phase,
                logs=self.run_dir.path / "logs",
                deterministic=deterministic,
                concurrency=concurrent_requests(config, self.datasets),
                trainer=needs_trainer,
                engine=self._needs_engine,
            )
        )
        if needs_trainer:
            with console.phase(starting_trainer(config)), self.chatter.captured():
                self.loss_scorer = self.trainer = self.placement.start_trainer()
        elif self.loss_function is not None and self.datasets:
            with console.phase("loading the model"), self.chatter.captured():
                from vime.train.scoring import ModelScorer

                self.loss_scorer = ModelScorer(config, model_path)
        if self._needs_engine:
            with console.phase(starting_engine(config)), self.chatter.captured():
                self.engine = self.event_loop.engine = self.placement.start_engine()
            if self.trainer is not None:
                self.weight_sync = WeightSync(config, self.trainer, self.engine, self.placement.push_weights)
        if listener is not None:
            self._serve(listener)
        self._build_rollouts(resume, deterministic)

    def _build_rollouts(self, resume: ResumePoint | None, deterministic: bool) -> None:
        """What makes the rollouts, once all that it works with is there, at the step where the run goes on."""
        config = self.config
        if config.debug_train_only:
            self.runner = SavedRollouts(config)
        else:
            repeatable = deterministic and config.pipeline != "continuous"
            handles = (self.engine, self.plugins, self.scorer, repeatable, self.endpoint, self.tracer)
            context = RolloutContext(config, *handles)  # type: ignore[arg-type]
            self.runner = RolloutRunner(context, VllmRollout(context, self.source, self.datasets))
        take_over(self, resume)
        workshop = Workshop(config, self.event_loop, self.console, self.plugins, self.runner, self.source, self.engine)
        self.pipeline = pipeline_of(workshop, self.rollout_id, self.num_rollout)
        self._boundary = Boundary.of(self)

    def _serve(self, listener: socket.socket) -> None:
        """Answer requests at the port that `listener` holds, where there is an engine to answer them."""
        if self.engine is None:
            listener.close()
            self.console.warn("--serve-engine has no effect: nothing is generated in this run, so that there is no engine")
            return
        self.endpoint = HttpEndpoint(self.engine, self.event_loop.loop, train_sampling_params(self.config), listener)
        self.endpoint.start()
        self.console.info(f"the engine also answers at {self.endpoint.url}/v1")

    @property
    def _needs_engine(self) -> bool:
        generates = self.config.loss_type != "sft_loss" or bool(self.datasets and self.loss_function is None)
        return generates and not self.config.debug_train_only

    def _close(self) -> None:
        if self.endpoint is not None:
            self.endpoint.close()
        if self.is_built:
            self.pipeline.stop()
        self.event_loop.settle()
        for handle in (self.scorer, self.engine, self.trainer, self.placement, self.tracker, self.chatter):
            if handle is not None:
                handle.close()
        if self.is_built:
            report_at_end(self.run_dir.path, self.console)
        self.event_loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of an evaluation to its end; after an error or an interrupt nothing is left running."""
        return self.event_loop.run(coroutine)

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
        self._step = Step(self.rollout_id, self.tracer, self.console, self.engine, overlaps=self.config.pipeline != "sync")
        started = time.perf_counter()
        with self.tracer.step(self.rollout_id, self.plugins.times), self._step.writing_samples(self.tracker, self.config.sample_every):
            yield self._step
        self._log("perf", self._step.perf_metrics(time.perf_counter() - started))
        self._log("hooks", self.plugins.take_timings())
        self.console.step(self.rollout_id + 1, self.num_rollout, self._step.metrics)
        self.rollout_id += 1
        self._boundary = Boundary.of(self)

    def rollout(self) -> list[list[Any]]:
        """The training batch of this step: generated, rewarded and filtered, now or before."""
        self.interrupts.check()
        made = self.pipeline.take(self.rollout_id)
        for notice in self.scorer.failures.take_notices():
            self.console.warn(notice)
        metrics = self._step.metrics_of(made, None if self.trainer is None else self.trainer.weight_version)
        self._log("rollout", metrics, to_file=not made.rollout.logged_by_plugin)
        if self.config.save_debug_rollout_data is not None:
            save_rollout(self.config.save_debug_rollout_data, self.rollout_id, made.rollout.groups)
        return made.rollout.groups

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
        self.placement.before_training()
        self._log("train", self.trainer.train(batch, verify=verify))

    def finish_next_rollout(self) -> None:
        """Wait for the rollout that runs beside this step, where one does that must see no change of weights.

        An interrupt waits for the end of the step: what was trained is not rolled back.
        """
        self.pipeline.settle()

    def sync_weights(self) -> None:
        """Give the engine the trainer's weights; verified as WeightSync says."""
        if self.weight_sync is not None:
            self.weight_sync.sync()
        self.pipeline.weights_changed()

    def evaluate(self) -> Evaluation:
        """Evaluate all datasets and log the scores: of what is generated, or by the loss."""
        assert isinstance(self.runner, RolloutRunner), "a run on saved rollouts has no datasets"
        with self.console.phase("evaluating") as show:
            if self.loss_function is not None and self.loss_scorer is not None:
                output, metrics, logged_by_plugin = evaluate_by_loss(self, self.runner, self.loss_function, self.loss_scorer)
            else:
                output, metrics, logged_by_plugin = self.run(self.runner.evaluate(self.rollout_id, show))
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
        self.pipeline.stop()
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
