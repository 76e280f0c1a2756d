"""Checks of the hooks that log a rollout or an evaluation."""

from __future__ import annotations

from typing import Any

from vime.api import Sample, Status
from vime.rollout.hook_guards import check_log_answer, check_metrics
from vime.rollout.unchanged import Snapshot
from vime.testing.checks.base import Bench, Check, skip
from vime.testing.checks.rollout_loop import drive
from vime.testing.factories import finished_group, finished_sample

ROLLOUT = "log_rollout_data"
EVALUATION = "log_eval_rollout_data"


def _log(bench: Bench, samples: list[Sample], metrics: dict[str, Any], *, empty: str | None = None) -> Any:
    """Call the log hook; `empty` names a dataset without samples, which an evaluation may have."""
    config = bench.config()
    function = bench.function(bench.load(config))
    if bench.hook == ROLLOUT:
        arguments: dict[str, Any] = {"samples": samples, "rollout_extra_metrics": metrics, "rollout_time": 1.5}
    else:
        data = {"held-out": _dataset(samples)} | ({} if empty is None else {empty: _dataset([])})
        arguments = {"data": data, "extra_metrics": metrics}
    return drive(function.acall(rollout_id=0, args=config, **arguments))


def _dataset(samples: list[Sample]) -> dict[str, list[Any]]:
    return {
        "rewards": [sample.reward for sample in samples],
        "truncated": [sample.status is Status.TRUNCATED for sample in samples],
        "samples": samples,
    }


def _samples() -> list[Sample]:
    return [*finished_group((1.0, 0.0, 1.0)), finished_sample(3, "cut off", reward=0.0, status=Status.TRUNCATED, group_index=1)]


def log_result(bench: Bench) -> None:
    """It returns True to skip the built-in log, and None or False to keep it."""
    answer = _log(bench, _samples(), {"raw_reward": 0.5})
    check_log_answer(bench.function().label, bench.hook, answer)


def log_empty(bench: Bench) -> None:
    """An evaluation dataset without samples is no error."""
    try:
        _log(bench, _samples(), {})
    except Exception:  # noqa: BLE001 - reported by the check of the result
        skip("it raises, see the check of its result")
    _log(bench, _samples(), {}, empty="empty")


def log_metrics(bench: Bench) -> None:
    """Metrics that it adds are finite numbers by name, and the others stay."""
    metrics: dict[str, Any] = {"raw_reward": 0.5}
    try:
        _log(bench, _samples(), metrics)
    except Exception:  # noqa: BLE001 - reported by the check of the result
        skip("it raises, see the check of its result")
    check_metrics(bench.function().label, bench.hook, metrics, {"raw_reward": 0.5})


def log_pure(bench: Bench) -> None:
    """Samples and configuration stay as they are; notes go into sample.metadata."""
    samples, config = _samples(), bench.config()
    before = Snapshot(samples, config)
    try:
        _log(bench, samples, {"raw_reward": 0.5})
    except Exception:  # noqa: BLE001 - reported by the check of the result
        skip("it raises, see the check of its result")
    before.check(bench.function().label, bench.hook)


CHECKS: tuple[Check, ...] = (
    Check("log-rollout-result", ROLLOUT, log_result),
    Check("log-rollout-metrics", ROLLOUT, log_metrics),
    Check("log-rollout-pure", ROLLOUT, log_pure),
    Check("log-eval-result", EVALUATION, log_result),
    Check("log-eval-empty", EVALUATION, log_empty),
    Check("log-eval-metrics", EVALUATION, log_metrics),
    Check("log-eval-pure", EVALUATION, log_pure),
)
