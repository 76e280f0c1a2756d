"""A reward that hangs, raises or returns NaN for 1% of the samples each: what is counted is what was injected, under each policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vime.sample import Status

NUM_GPUS = 0

FAILING = '''
"""Which sample fails how follows from its index. Every call is noted before it fails."""
import asyncio, os, time
from pathlib import Path

KINDS = {53: "hang", 67: "raise", 81: "nan"}

def note(sample):
    kind = KINDS.get(sample.index % 100, "fine")
    with open(Path(__file__).with_name("calls.log"), "a") as log:
        log.write(f"{sample.index} {kind}\\n")
    return kind

def answer(kind, index):
    if kind == "raise":
        raise KeyError(f"injected for {index}")
    return float("nan") if kind == "nan" else float(index % 2)

def blocking(args, sample, **kwargs):
    kind = note(sample)
    if kind == "hang":
        time.sleep(20)
    return answer(kind, sample.index)

async def awaiting(args, sample, **kwargs):
    kind = note(sample)
    if kind == "hang":
        await asyncio.sleep(3600)
    return answer(kind, sample.index)

def only(kind):
    def score(args, sample, **kwargs):
        found = note(sample)
        return answer(found if found == kind else "fine", sample.index)
    return score

def hangs(args, sample, **kwargs):
    if note(sample) == "hang":
        time.sleep(20)
    return 0.0

raises, nans = only("raise"), only("nan")
'''
COUNTED = {"hang": "timeout", "raise": "KeyError", "nan": "bad_value"}
"""The kind in the metric's name for each way to fail."""
WAYS = {"process": ("blocking", "process", 1.5), "thread": ("blocking", "thread", 1.5), "async": ("awaiting", "auto", 0.5)}
"""Function, --reward-isolation, and --reward-timeout."""


@pytest.fixture
def failing(setup_run: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """`failing("blocking", on_reward_error="drop")`: a run of 50 groups of 4 whose reward is that function."""
    (tmp_path / "failing.py").write_text(FAILING)

    def build(function: str, **options: Any) -> Any:
        options = {"rollout_batch_size": 50, "over_sampling_batch_size": 1, "n_samples_per_prompt": 4, "reward_timeout": 1.5, **options}
        return setup_run(custom_rm_path=f"{tmp_path}/failing.py:{function}", reward_workers=4, generation_retries=0, **options)

    return build


def calls(tmp_path: Path) -> list[tuple[int, str]]:
    """Sample and kind of every call."""
    return [(int(index), kind) for index, kind in (line.split() for line in (tmp_path / "calls.log").read_text().splitlines())]


def counts(metrics: dict[str, float]) -> dict[str, float]:
    """Failed rewards by kind; they are all of one function."""
    return {key.rpartition("/")[2]: count for key, count in metrics.items() if key.startswith("reward_errors/path:")}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("policy", ["drop", "zero"])
def test_what_is_counted_is_what_was_injected(failing: Callable[..., Any], tmp_path: Path, policy: str, way: str) -> None:
    function, isolation, timeout = WAYS[way]
    run = failing(function, on_reward_error=policy, reward_isolation=isolation, reward_timeout=timeout)
    rollout = run.train()
    run.runner.context.scorer.close()
    metrics = rollout.metrics
    made = calls(tmp_path)
    injected = Counter(kind for _, kind in made if kind != "fine")
    assert set(injected) == set(COUNTED)
    assert counts(metrics) == {COUNTED[kind]: float(count) for kind, count in injected.items()}

    gone = ("trained", "filtered", "to_buffer", "aborted", "failed")
    assert metrics["samples_generated"] == sum(metrics.get(f"samples_{where}", 0) for where in gone) + metrics["removed_samples"]
    assert len({index for index, _ in made}) == metrics["samples_generated"]
    assert sum(map(len, rollout.groups)) == metrics["samples_trained"] == 200
    attempts = Counter(index for index, kind in made if kind != "fine")
    assert set(attempts.values()) == {2 if policy == "drop" else 1}  # a sample whose reward fails is generated once more, alone
    if policy == "zero":
        assert metrics["samples_generated"] == 200 and metrics["samples_failed"] == 0
        assert all(sample.reward == 0.0 for group in rollout.groups for sample in group if sample.index in attempts)
    else:
        lost = {sample.group_index for group, reason in rollout.dropped if reason == "failed" for sample in group}
        assert lost == {index // 4 for index in attempts}
        assert metrics["samples_failed"] == 4 * len(lost)
        assert all(sample.status is not Status.FAILED for group in rollout.groups for sample in group)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        ("hangs", "RewardTimeoutError", "failing.py:hangs: custom_rm took longer than 1.5 s for sample 53 (group 13)"),
        ("raises", "KeyError", "injected for 67"),
        ("nans", "BadRewardError", "failing.py:nans: custom_rm returned nan as the reward for sample 81 (group 20)"),
    ],
)
def test_raise_ends_the_run_and_names_sample_function_and_kind(
    failing: Callable[..., Any], tmp_path: Path, function: str, error: str, message: str
) -> None:
    run = failing(function, reward_isolation="thread")
    with pytest.raises(Exception) as caught:
        run.train()
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert type(caught.value).__name__ == error and message in told and f"failing.py:{function}" in told
    assert error != "KeyError" or "while scoring sample 67 (group 16)" in told
    assert sum(counts(run.runner.context.scorer.take_metrics()).values()) == 1


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
