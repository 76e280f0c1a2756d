"""Alerts: each rule speaks where it should, once, with its numbers, and is silent on runs that learn."""

from __future__ import annotations

import io
import math

import pytest

from vime.track.alerts import AlertWatch, find_alerts
from vime.track.console import Console

NUM_GPUS = 0


def _rollout(step, **changes):
    """The metrics of a healthy step, as the quickstart has them; keys are given with __ for /."""
    healthy = {
        "rollout/groups_kept": 16,
        "rollout/groups_dropped": 0,
        "rollout/samples_generated": 128,
        "rollout/raw_reward": min(0.9, 0.3 + 0.01 * step),
        "rollout/truncated_ratio": 0.02,
        "rollout/zero_std/count_1.0": min(9, step // 8),
        "train/entropy_loss": 0.52 * math.exp(-step / 40),
        "train/train_rollout_logprob_abs_diff": 4e-7 * (1 + step % 3),
        "train/skipped_steps": 0.0,
    }
    return {"step": step, "time": 1.0, **healthy, **{key.replace("__", "/"): value for key, value in changes.items()}}


def _kinds(lines):
    return [(alert.kind, alert.step, alert.last_step) for alert in find_alerts(lines)]


def test_a_run_that_learns_is_silent():
    assert _kinds(_rollout(step) for step in range(80)) == []


def test_single_odd_rollouts_are_no_alert():
    odd = {
        "rollout__truncated_ratio": 0.9,
        "rollout__groups_dropped": 60,
        "rollout__reward_errors/math/ValueError": 6,
        "train__entropy_loss": 1e-6,
        "train__train_rollout_logprob_abs_diff": 1.0,
        "train__skipped_steps": 1.0,
        "rollout__zero_std/count_0.0": 76,
    }
    assert _kinds(_rollout(step, **(odd if step == 10 else {})) for step in range(30)) == []


@pytest.mark.parametrize(
    ("kind", "first", "changes"),
    [
        ("equal_rewards", 12, {"rollout__zero_std/count_0.0": 15}),
        ("reward_errors", 12, {"rollout__reward_errors/math/ValueError": 40}),
        ("most_filtered", 13, {"rollout__groups_dropped": 200, "rollout__dynamic_filter/drop_zero_std_1.0": 200}),
        ("truncation", 12, {"rollout__truncated_ratio": 0.75}),
        ("entropy_collapse", 12, {"train__entropy_loss": 0.001}),
        ("logprob_difference", 12, {"train__train_rollout_logprob_abs_diff": 0.2}),
        ("skipped_steps", 11, {"train__skipped_steps": 1.0}),
    ],
)
def test_each_rule_speaks_once_and_says_how_long_it_held(kind, first, changes):
    lines = [_rollout(step, **(changes if 10 <= step < 20 else {})) for step in range(40)]
    found = [alert for alert in find_alerts(lines) if alert.kind == kind]
    assert len(found) == 1, _kinds(lines)
    (alert,) = found
    assert first - 2 <= alert.step <= first + 1 and 19 <= alert.last_step <= 25
    assert alert.value > alert.threshold or kind in ("entropy_collapse", "equal_rewards")
    for part in (alert.metric, alert.look_at, f"step {alert.step + 1}:"):
        assert part in alert.text


def test_a_trouble_that_comes_back_is_a_second_alert():
    lines = [_rollout(step, rollout__truncated_ratio=0.8 if step % 20 < 5 else 0.0) for step in range(40)]
    assert _kinds(lines) == [("truncation", 2, 4), ("truncation", 22, 24)]


def test_an_alert_names_numbers_and_the_worst_cause():
    lines = [_rollout(step, **{"rollout__reward_errors/a/E": 2, "rollout__reward_errors/math/ValueError": 30}) for step in range(5)]
    (alert,) = find_alerts(lines)
    assert alert.what == "25% of the rewards fail, most of them as math/ValueError"
    assert (alert.metric, alert.value, alert.threshold) == ("rollout/reward_errors/* per sample", 0.25, 0.05)


def test_a_difference_that_is_large_from_the_start_is_found_too():
    lines = [_rollout(step, train__train_rollout_logprob_abs_diff=0.3) for step in range(10)]
    assert [kind for kind, *_ in _kinds(lines)] == ["logprob_difference"]
    lines = [_rollout(step, train__train_rollout_logprob_abs_diff=0.015) for step in range(10)]
    assert _kinds(lines) == []


def test_groups_that_a_filter_drops_for_equal_rewards_are_no_dead_run():
    lines = [_rollout(step, rollout__groups_dropped=9, **{"rollout__zero_std/count_0.0": 9}) for step in range(9)]
    assert "equal_rewards" not in [kind for kind, *_ in _kinds(lines)]


def test_a_few_groups_with_equal_rewards_may_be_chance():
    few = {"rollout__groups_kept": 2, "rollout__zero_std/count_1.0": 0, "rollout__zero_std/count_0.0": 2}
    assert _kinds(_rollout(step, **few) for step in range(5)) == []
    assert _kinds(_rollout(step, **{**few, "rollout__groups_kept": 4, "rollout__zero_std/count_0.0": 4}) for step in range(3)) != []


def test_lines_without_the_metrics_say_nothing():
    assert find_alerts([{"step": 0, "time": 0.0}, {"step": 1, "train/loss": 0.5}, {"step": 2, "eval/x": 0.1}]) == []
    assert find_alerts([]) == []


def test_lines_of_one_step_may_come_one_by_one():
    watch = AlertWatch()
    for step in range(5):
        for key, value in _rollout(step, rollout__truncated_ratio=0.9).items():
            if "/" in key:
                watch.feed(step, {key: value})
    assert [alert.kind for alert in watch.alerts] == ["truncation"]


def test_the_console_says_each_kind_once_also_when_quiet():
    for quiet in (False, True):
        config = type("Config", (), {"quiet": quiet})()
        out = io.StringIO()
        console = Console(config, file=out, terminal=False)
        for step in range(40):
            metrics = _rollout(step, rollout__truncated_ratio=0.8 if step % 20 < 5 else 0.0)
            console.step(step + 1, 40, {key: value for key, value in metrics.items() if "/" in key})
        assert out.getvalue().count("alert step 3: 80% of the responses are cut off (rollout/truncated_ratio 0.8, threshold 0.5)") == 1
        assert out.getvalue().count("alert ") == 1


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
