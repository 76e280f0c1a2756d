"""The kit on functions in upstream's style, as path flags name them: what they lack is known, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from vime.testing import check

NUM_GPUS = 0

FUNCTIONS = Path(__file__).resolve().parents[1] / "upstream" / "functions.py"

CASES: list[tuple[str, str, tuple[str, ...]]] = [
    ("reward_func", "custom_rm", ()),
    ("batched_reward_func", "custom_rm", ()),
    ("not_all_equal", "dynamic_sampling_filter", ("filter-failed-samples", "filter-empty-group")),
    ("drop_small_sums", "dynamic_sampling_filter", ("filter-empty-group",)),
    ("pop_newest", "buffer_filter", ("buffer-filter-unchanged",)),
    ("remove_worst", "rollout_sample_filter", ("sample-filter-odd-samples",)),
    ("count_all_samples", "process_all_samples", ()),
    ("generate", "custom_generate", ()),
    ("generate_segments", "custom_generate", ("generate-status", "generate-abort")),
    ("center_by_prompt", "post_process_rewards", ()),
    ("generate_rollout", "generate_rollout", ()),
    ("generate_rollout_with_metrics", "generate_rollout", ()),
    ("log_rollout_data", "log_rollout_data", ()),
    ("log_eval_rollout_data", "log_eval_rollout_data", ("log-eval-empty",)),
    ("ShuffledDataSource", "make_data_source", ("data-source-resume",)),
]
"""Function, hook, and the checks that it is known to fail: for empty data, failed samples, aborts and a resume."""


@pytest.mark.parametrize(("name", "hook", "failing"), CASES, ids=[name for name, _, _ in CASES])
def test_a_function_in_upstreams_style(name: str, hook: str, failing: tuple[str, ...]) -> None:
    report = check(f"{FUNCTIONS}:{name}", hook=hook, expected_failures=dict.fromkeys(failing, "written for one kind of data"))
    assert [(result.id, result.message) for result in report.failures] == []
    assert [result for result in report.checks if result.status == "pass"]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
