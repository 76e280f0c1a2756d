"""The evaluation of a supervised run: the loss on held-out rows, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from vime.outputs import RolloutFnEvalOutput
from vime.rollout.held_out import as_eval_data, held_out_samples, loss_metrics

if TYPE_CHECKING:
    from vime.plugins.manager import HookFunction
    from vime.rollout.runner import RolloutRunner
    from vime.runtime.run import Run
    from vime.sample import Sample


class LossScorer(Protocol):
    """The trainer, or a model alone."""

    def sample_log_probs(self, samples: Sequence[Sample]) -> list[list[float]]: ...


def evaluate_by_loss(
    run: Run, runner: RolloutRunner, function: HookFunction, scorer: LossScorer
) -> tuple[RolloutFnEvalOutput, dict[str, float], bool]:
    """The mean negative log-prob of the trained tokens of the samples that `function` makes of each dataset.

    Returns what `RolloutRunner.evaluate` does.
    """
    metrics: dict[str, float] = {}
    output = RolloutFnEvalOutput(data={})
    for dataset in run.datasets:
        name = dataset.config.name
        try:
            samples = run.run(held_out_samples(run.config, function, dataset, run.tokenizer, run.rollout_id))
            log_probs = scorer.sample_log_probs(samples)
        except Exception as error:
            error.add_note(f"in the evaluation dataset {name!r}, after {run.rollout_id} rollouts")
            raise
        metrics |= loss_metrics(name, samples, log_probs)
        output.data[name] = as_eval_data(samples, log_probs)
    return output, metrics, run.run(runner.log_evaluation(run.rollout_id, output.data, metrics))
