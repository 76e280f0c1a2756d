"""What a rollout says of itself while it goes on: groups kept, dropped by reason, tokens."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from vime.api import DynamicFilterOutput, Sample

NUM_GPUS = 0


def odd_groups(samples: list[Sample]) -> DynamicFilterOutput:
    return DynamicFilterOutput((samples[0].group_index or 0) % 2 == 1, "even")


def test_each_judged_group_is_shown_with_the_tokens_so_far(setup_run: Callable[..., Any]) -> None:
    setup = setup_run(dynamic_sampling_filter=odd_groups, over_sampling_batch_size=3)
    seen: list[tuple[int, dict[str, int], int]] = []

    def show(collected: Any) -> None:
        seen.append((len(collected.kept), dict(collected.drop_reasons), collected.tokens))

    rollout = asyncio.run(setup.runner.train(0, show))
    assert [(kept, dropped) for kept, dropped, _ in seen[:4]] == [(0, {"even": 1}), (1, {"even": 1}), (1, {"even": 2}), (2, {"even": 2})]
    everything = [*rollout.groups, *(group for group, _ in rollout.dropped), *setup.source.buffer]
    assert seen[-1][2] == sum(sample.response_length for group in everything for sample in group)
    assert seen[-1][2] == setup.engine.stats()["generated_tokens"]


def test_tokens_out_of_the_buffer_count_in_the_rollout_that_made_them(setup_run: Callable[..., Any]) -> None:
    setup = setup_run(over_sampling_batch_size=4)
    tokens: list[int] = []
    for number in range(2):
        setup.engine.stats()
        asyncio.run(setup.runner.train(number, lambda collected: tokens.append(collected.tokens)))
        assert tokens[-1] == setup.engine.stats()["generated_tokens"]
    assert setup.runner.built_in.last.samples_from_buffer == 4


def test_groups_that_fill_up_the_batch_are_dropped_no_longer(setup_run: Callable[..., Any]) -> None:
    setup = setup_run(
        dynamic_sampling_filter=lambda samples: DynamicFilterOutput(False, f"reason_{(samples[0].group_index or 0) % 2}"),
        dynamic_sampling_max_rounds=2,
        on_exhausted="fallback",
    )
    setup.train()
    last = setup.runner.built_in.last
    assert [group[0].group_index for group in last.kept] == [0, 1]
    assert last.drop_reasons == Counter(reason for _, reason in last.dropped) == {"reason_0": 1, "reason_1": 1}


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
