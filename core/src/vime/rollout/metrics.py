"""The numbers of one rollout: lengths, rewards, and where every group and sample ended."""

from __future__ import annotations

import math
import numbers
import statistics
from collections import Counter
from typing import TYPE_CHECKING, Any

from vime.rollout.hook_guards import metric_word
from vime.sample import Sample, Status, rollouts

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.rollout.dynamic_sampling import Collected


def dropped_metrics(collected: Collected) -> dict[str, float]:
    """Groups by where they ended, drop reasons, and the sample counts that add up (contracts section 10)."""
    metrics: dict[str, float] = {
        "groups_kept": len(collected.kept),
        "groups_dropped": len(collected.dropped),
        "groups_surplus": len(collected.surplus),
        "groups_aborted": len(collected.aborted),
        "groups_failed": len(collected.failed),
        "fetch_rounds": collected.fetch_rounds,
        "retries": collected.retries,
        "samples_generated": collected.samples_generated,
        "samples_from_buffer": collected.samples_from_buffer,
        "samples_filtered": sum(len(group) for group, _ in collected.dropped),
        "samples_to_buffer": sum(map(len, collected.surplus)),
        "samples_aborted": collected.samples_aborted,
        "samples_failed": sum(map(len, collected.failed)),
    }
    if collected.samples_stale:
        metrics["samples_stale"] = collected.samples_stale
    metrics |= {f"dynamic_filter/drop_{reason}": count for reason, count in collected.drop_reasons.items()}
    return metrics


def batch_metrics(config: RunConfig, kept: list[list[Sample]], dropped: list[list[Sample]]) -> dict[str, float]:
    """Rewards and lengths of a training batch. `reward_all` includes the dropped groups, `reward_kept` does not."""
    samples = [sample for group in kept for sample in group]
    lengths = [sample.response_length for sample in samples]
    metrics: dict[str, float] = {
        "truncated_ratio": statistics.fmean(sample.status is Status.TRUNCATED for sample in samples),
        "response_len/mean": statistics.fmean(lengths),
        "response_len/median": statistics.median(lengths),
        "response_len/max": max(lengths),
        "response_len/min": min(lengths),
        "removed_samples": sum(sample.remove_sample and sample.status is not Status.FAILED for sample in samples),
        "samples_trained": sum(not sample.remove_sample and sample.status is not Status.FAILED for sample in samples),
    }
    kept_rewards = _rewards(config, kept)
    if kept_rewards:
        everything = kept_rewards + _rewards(config, dropped)
        metrics |= {
            "raw_reward": statistics.fmean(kept_rewards),
            "reward_kept": statistics.fmean(kept_rewards),
            "reward_all": statistics.fmean(everything),
        }
    metrics |= part_means([sample for sample in samples if sample.status is not Status.FAILED])
    metrics |= _zero_std_counts(config, kept + dropped)
    return metrics


def part_means(samples: list[Sample], failed: int = 0) -> dict[str, float]:
    """`reward/<key>` for each key of dict rewards under which every sample that has it has a finite number: the mean of these.

    `failed` is how many samples count as 0 beside them.
    """
    values: dict[str, list[Any]] = {}
    for sample in samples:
        for key, value in sample.reward.items() if isinstance(sample.reward, dict) else ():
            values.setdefault(metric_word(str(key)), []).append(value)
    finite = {key: found for key, found in values.items() if all(map(_is_finite, found))}
    return {f"reward/{key}": sum(map(float, found)) / (len(found) + failed) for key, found in finite.items()}


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, numbers.Real) and math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def _rewards(config: RunConfig, groups: list[list[Sample]]) -> list[float]:
    return [float(s.get_reward_value(config)) for group in groups for s in group if s.reward is not None and s.status is not Status.FAILED]


def _zero_std_counts(config: RunConfig, groups: list[list[Sample]]) -> dict[str, float]:
    """How many groups have one reward throughout, by that reward, rounded to one decimal."""
    counts: Counter[str] = Counter()
    for group in groups:
        values = [_rewards(config, [siblings[:1]]) for siblings in rollouts(group)]
        flat = [value for entry in values for value in entry]
        if len(flat) > 1 and max(flat) - min(flat) < 1e-8:
            counts[f"{flat[0]:.1f}"] += 1
    return {f"zero_std/count_{reward}": count for reward, count in counts.items()}
