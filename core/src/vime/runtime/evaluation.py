"""What an evaluation leaves behind: metrics, samples and a line on the console."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vime.rollout.evaluate import shortfalls

if TYPE_CHECKING:
    from vime.outputs import RolloutFnEvalOutput
    from vime.runtime.run import Run

PROBE_TOKENS = 256


@dataclass(frozen=True)
class Evaluation:
    """One finished evaluation. `step` is the one in metrics.jsonl, `datasets` are the names; metrics have their full keys."""

    step: int
    datasets: list[str]
    metrics: dict[str, float]
    is_short: bool
    """Whether a dataset has fewer good rollouts than its min_eval_samples."""
    run_folder: str
    probe: list[tuple[list[int], int]] = field(default_factory=list[tuple[list[int], int]])
    """Some of the sequences of tokens that were generated, with the lengths of their responses."""


def record(run: Run, output: RolloutFnEvalOutput, metrics: dict[str, float], *, logged_by_plugin: bool) -> Evaluation:
    """Log an evaluation of the run's current step; a plugin that has logged it takes the place of metrics.jsonl and the console."""
    step, short = run.rollout_id, shortfalls(run.config, output)
    full = run.tracker.finite("eval", metrics)
    if not logged_by_plugin:
        run.tracker.log(step, "eval", metrics)
    if run.config.sample_every:
        for name, data in output.data.items():
            run.tracker.log_samples(step, f"eval_{name}", [[sample] for sample in data["samples"]])
    for line in [*short.values(), *run.scorer.failures.take_notices()]:
        run.console.warn(line)
    if not logged_by_plugin:
        run.console.evaluation(step, full)
    return Evaluation(step, list(output.data), full, bool(short), str(run.run_dir.path), _probe(output))


def _probe(output: RolloutFnEvalOutput) -> list[tuple[list[int], int]]:
    """The first sequences, up to the one that makes `PROBE_TOKENS` response tokens."""
    probe: list[tuple[list[int], int]] = []
    count = 0
    for sample in (sample for data in output.data.values() for sample in data["samples"]):
        if 0 < sample.response_length < len(sample.tokens) and count < PROBE_TOKENS:
            probe.append((list(sample.tokens), sample.response_length))
            count += sample.response_length
    return probe
