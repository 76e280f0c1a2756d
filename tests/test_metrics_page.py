"""docs/metrics.md: every metric that is written is on it, with its unit and what a bad value looks like."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vime.api import Sample
from vime.config.run_config import RunConfig
from vime.outputs import RolloutFnEvalOutput
from vime.rollout.dynamic_sampling import Collected
from vime.rollout.evaluate import eval_metrics
from vime.rollout.held_out import loss_metrics
from vime.rollout.metrics import batch_metrics, dropped_metrics
from vime.runtime.step import Step
from vime.sample import Status

NUM_GPUS = 0

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "metrics.md"

CONTRACT = """
rollout/raw_reward rollout/reward_kept rollout/reward_all rollout/response_len/mean rollout/response_len/median rollout/response_len/max
rollout/response_len/min rollout/truncated_ratio rollout/zero_std/count_1.0 rollout/dynamic_filter/drop_zero_std rollout/groups_kept
rollout/groups_dropped rollout/groups_surplus rollout/groups_aborted rollout/groups_failed rollout/fetch_rounds
rollout/reward_errors/math/timeout rollout/removed_samples rollout/tokens_per_second rollout/prefix_cache_hit_rate
train/loss train/pg_loss train/pg_clipfrac train/ppo_kl train/entropy_loss train/kl_loss train/grad_norm train/lr
train/train_rollout_logprob_abs_diff train/skipped_steps train/padding_fraction
perf/rollout_time perf/reward_time perf/train_time perf/sync_time perf/step_time perf/overhead_fraction hooks/math/custom_rm_ms
eval/gsm8k eval/gsm8k-truncated_ratio eval/gsm8k-pass@4 eval/gsm8k/response_len/mean
"""
"""Names that dashboards depend on."""


def rows_of(page: Path) -> list[list[str]]:
    """The rows of all tables of metrics, as their cells."""
    parts = re.split(r"^(?=\| metric \|)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    lines = [line for part in parts for line in part.partition("\n\n")[0].splitlines()[2:]]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def documented() -> list[str]:
    """The names on the page, as regular expressions."""
    patterns: list[str] = []
    for name in (name for row in rows_of(PAGE) for name in re.findall(r"`([^`]+)`", row[0])):
        choice = re.search(r"\{([^}]+)\}", name)
        spread = [name.replace(choice[0], end) for end in choice[1].split(",")] if choice else [name]
        patterns += [re.sub(r"<\w+>|NAME|KEY", ".+", re.escape(each)).replace("@k", r"@\d+") for each in spread]
    return patterns


def undocumented(names: set[str]) -> set[str]:
    """Those of `names` that the page does not have."""
    known = documented()
    return {name for name in names - {"step", "time"} if not any(re.fullmatch(pattern, name) for pattern in known)}


def test_every_row_says_unit_meaning_and_a_bad_value() -> None:
    rows = rows_of(PAGE)
    assert len(rows) > 50
    assert [row for row in rows if len(row) != 4 or not all(row)] == []


def test_the_page_has_the_names_of_the_contract() -> None:
    assert undocumented(set(CONTRACT.split())) == set()
    assert undocumented({"rollout/new", "eval/gsm8k-pass@4", "train/new"}) == {"rollout/new", "train/new"}


def test_the_page_has_what_a_rollout_and_a_step_count() -> None:
    group = [Sample(group_index=0, index=index, reward={"total": 1.0}, status=Status.COMPLETED) for index in range(2)]
    collected = Collected(kept=[group], dropped=[(group, "zero_std_1.0")])
    counted = {**dropped_metrics(collected), **batch_metrics(RunConfig(reward_key="total"), [group], [group])}
    step = Step(0, seconds={"rollout": 1.0, "train": 1.0, "sync": 1.0, "reward": 1.0})
    names = {f"rollout/{name}" for name in counted} | {f"perf/{name}" for name in step.perf_metrics(4.0)}
    assert undocumented(names) == set()


def test_the_page_has_what_an_evaluation_counts() -> None:
    samples = [Sample(response_length=3, reward={"acc": 1.0, "total": 1.0}, status=Status.COMPLETED) for _ in range(4)]
    output = RolloutFnEvalOutput({"sums": {"rewards": [1.0] * 4, "truncated": [False] * 4, "samples": samples}})
    counted = {**eval_metrics(RunConfig(), output, {"sums": 2}), **loss_metrics("sums", samples, [[-0.5]] * 4)}
    # Any name fits `eval/NAME`, so what stands behind the dataset is looked for.
    known = {pattern for pattern in documented() if pattern != "eval/.+"}
    ends = {f"eval/{name}" for name in counted} - {"eval/sums"}
    assert {name for name in ends if not any(re.fullmatch(pattern, name) for pattern in known)} == set()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
