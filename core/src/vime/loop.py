"""The training loop. Start reading here.

Prompts become rewarded groups on the engine, groups become a batch, the trainer takes its steps, and the engine gets
the new weights. Everything that a line does in detail belongs to the object it is called on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vime.errors import EXIT_FAILED, ConfigError
from vime.runtime.interrupts import Interrupted, Interrupts
from vime.runtime.models import ModelSwitch, in_one_engine
from vime.runtime.run import Run

if TYPE_CHECKING:
    from vime.config.load import Resolved
    from vime.runtime.evaluation import Evaluation
    from vime.runtime.models import Model
    from vime.runtime.placement import Placement


def train(resolved: Resolved, placement: Placement | None = None) -> int:
    """Run training as configured and return the exit code. Raises VimeError for what the command line reports.

    `placement` takes the place of the one that `--runtime` names.
    """
    if resolved.config.num_rollout == 0:
        return evaluate(resolved)
    with Interrupts() as interrupts:
        try:
            with Run.start(resolved, interrupts, placement=placement) as run:
                try:
                    with interrupts.deferred():
                        training_loop(run)
                        interrupts.check()
                except Interrupted as interrupt:
                    run.roll_back_and_save()
                    return interrupt.exit_code
                run.finish()
        except Interrupted as interrupt:
            return interrupt.exit_code
    return 0


def training_loop(run: Run) -> None:
    """Rollout, train, sync, and now and then evaluate and save, until the last rollout.

    The next rollout may run beside the training (`--pipeline async`); then it ends before the weights change.
    """
    run.sync_weights()
    run.evaluate_if_due()
    while run.rollouts_left:
        with run.step() as step:
            with step.timed("rollout"):
                groups = run.rollout()
            with step.timed("train"):
                run.train(groups)
            with step.timed("rollout"):
                run.finish_next_rollout()
            with step.timed("sync"):
                run.sync_weights()
        run.evaluate_if_due()
        run.save_if_due()
    run.save()


def evaluate(resolved: Resolved, done: Callable[[Evaluation], None] = lambda _: None) -> int:
    """Evaluate the configured datasets once, without a trainer, and return the exit code. `done` gets the result."""
    if not resolved.config.eval_datasets:
        raise ConfigError("there is nothing to evaluate", hint="name the data: --eval-prompt-data NAME FILE, or --eval-config FILE.yaml")
    with Interrupts() as interrupts:
        try:
            with Run.start(resolved, interrupts, train=False) as run:
                with interrupts.deferred():
                    evaluation = run.evaluate()
                run.finish()
        except Interrupted as interrupt:
            return interrupt.exit_code
    done(evaluation)
    return EXIT_FAILED if evaluation.is_short else 0


def evaluate_each(resolved: Resolved, models: Sequence[Model], done: Callable[[Model, Evaluation], None]) -> int:
    """Evaluate one model after another, each as `evaluate` would alone, and return the exit code. `done` gets each result.

    Models that differ in their weights only share an engine.
    """
    is_short, run_dir = False, None
    with Interrupts() as interrupts:
        try:
            for alike in in_one_engine(models):
                config = resolved.config.model_copy(update={"hf_checkpoint": str(alike[0].path)})
                with Run.start(replace(resolved, config=config), interrupts, train=False, run_dir=run_dir) as run:
                    run_dir, switch = run.run_dir, ModelSwitch(run)
                    with interrupts.deferred():
                        for model in alike:
                            interrupts.check()
                            evaluation = switch.evaluate(model)
                            is_short |= evaluation.is_short
                            done(model, evaluation)
        except Interrupted as interrupt:
            return interrupt.exit_code
    return EXIT_FAILED if is_short else 0
