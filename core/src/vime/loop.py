"""The training loop. Start reading here.

Prompts become rewarded groups on the engine, groups become a batch, the trainer takes its steps, and the engine gets
the new weights. Everything that a line does in detail belongs to the object it is called on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime.errors import ConfigError
from vime.runtime.interrupts import Interrupted, Interrupts
from vime.runtime.local import LocalRuntime

if TYPE_CHECKING:
    from vime.config.load import Resolved


def train(resolved: Resolved) -> int:
    """Run training as configured and return the exit code. Raises VimeError for what the command line reports."""
    if resolved.config.num_rollout == 0:
        return evaluate(resolved)
    with Interrupts() as interrupts:
        try:
            with LocalRuntime.start(resolved, interrupts) as run:
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


def training_loop(run: LocalRuntime) -> None:
    """Rollout, train, sync, and now and then evaluate and save, until the last rollout."""
    run.sync_weights()
    run.evaluate_if_due()
    while run.rollouts_left:
        with run.step() as step:
            with step.timed("rollout"):
                groups = run.rollout()
            with step.timed("train"):
                run.train(groups)
            with step.timed("sync"):
                run.sync_weights()
        run.evaluate_if_due()
        run.save_if_due()
    run.save()


def evaluate(resolved: Resolved) -> int:
    """Evaluate the configured datasets once, without a trainer, and return the exit code."""
    if not resolved.config.eval_datasets:
        raise ConfigError("there is nothing to evaluate", hint="name the data: --eval-prompt-data NAME FILE, or --eval-config FILE.yaml")
    with Interrupts() as interrupts:
        try:
            with LocalRuntime.start(resolved, interrupts, train=False) as run:
                with interrupts.deferred():
                    run.evaluate()
                run.finish()
        except Interrupted as interrupt:
            return interrupt.exit_code
    return 0
