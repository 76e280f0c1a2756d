"""Checks of the hooks that log a rollout or an evaluation."""

from __future__ import annotations

from typing import Any

from vime.api import Sample, Status
from vime.plugins.loading import describe
from vime.rollout.hook_guards import check_log_answer, check_metrics
from vime.rollout.unchanged import Snapshot
from vime.testing.checks.base import Bench, Check, fail, skip
from vime.testing.checks.rollout_loop import drive
from vime.testing.factories import finished_group, finished_sample

ROLLOUT = "log_rollout_data"
EVALUATION = "log_eval_rollout_data"


def _log(bench: Bench, samples: list[Sample], metrics: dict[str, Any], *, empty: str | None = None, **options: Any) -> Any:
    """Call the log hook; `empty` names a dataset without samples, which an evaluation may have."""
    config = bench.config(**options)
    function = bench.function(bench.load(config))
    if bench.hook == ROLLOUT:
        arguments: dict[str, Any] = {"samples": samples, "rollout_extra_metrics": metrics, "rollout_time": 1.5}
    else:
        data = {"held-out": _dataset(samples)} | ({} if empty is None else {empty: _dataset([])})
        arguments = {"data": data, "extra_metrics": metrics}
    answer = drive(function.acall(rollout_id=0, args=config, **arguments))
    if bench.hook == EVALUATION and arguments["data"].get("held-out") != _dataset(samples):
        fail(f"{function.label}: {bench.hook} changed the lists of a dataset", hint="work on copies: sorted(results['rewards'])")
    return answer


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
    metrics: dict[str, Any] = {}
    try:
        _log(bench, _samples(), metrics)
        check_metrics(bench.function().label, bench.hook, metrics, {})
    except Exception:  # noqa: BLE001 - reported by the checks of the result and of the metrics
        skip("it raises, see the check of its result")
    metrics = {}
    _log(bench, _samples(), metrics, empty="empty")
    check_metrics(bench.function().label, bench.hook, metrics, {})


def log_dict_rewards(bench: Bench) -> None:
    """Dict rewards under --reward-key, and samples that failed and have no reward, do not make it raise."""
    try:
        _log(bench, _samples(), {})
    except Exception:  # noqa: BLE001 - reported by the check of the result
        skip("it raises, see the check of its result")
    hint = "sample.get_reward_value(args) reads either kind; leave out samples whose reward is None"
    samples = finished_group([{"length": 3.0, "acc": 1.0}, {"length": 5.0, "acc": 0.0}])
    failed = finished_group([1.0, None], statuses=[Status.COMPLETED, Status.FAILED])
    for shown, what, options in (
        (samples, "dict rewards under --reward-key acc", {"reward_key": "acc"}),
        (failed, "a sample that failed and has no reward", {"on_reward_error": "drop"}),
    ):
        try:
            _log(bench, shown, {}, **options)
        except Exception as error:  # noqa: BLE001 - whatever a log hook raises
            fail(f"{bench.function().label}: {bench.hook} raised {describe(error)} for {what}", hint)


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
    Check("log-rollout-dict-rewards", ROLLOUT, log_dict_rewards),
    Check("log-rollout-pure", ROLLOUT, log_pure),
    Check("log-eval-result", EVALUATION, log_result),
    Check("log-eval-empty", EVALUATION, log_empty),
    Check("log-eval-metrics", EVALUATION, log_metrics),
    Check("log-eval-pure", EVALUATION, log_pure),
)
