"""Calling `custom_generate` as the run does, one sample or several at a time, and keeping what the engine was asked."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vime.api import ConfigError, Sample
from vime.engine.base import SamplingParams
from vime.rollout.generate import train_sampling_params
from vime.testing.checks.base import Bench, CheckFailed, CheckSkipped, RewardCase, skip
from vime.testing.checks.rollout_engine import RecordingEngine, Replies, SpelledDigits
from vime.testing.checks.rollout_loop import drive
from vime.testing.checks.rollout_stage import CHAT_ROWS, TEXT_ROWS, Stage
from vime.testing.fakes import Policy

TRAIN: dict[str, Any] = {
    "rollout_temperature": 0.7,
    "rollout_top_p": 0.9,
    "rollout_top_k": 40,
    "rollout_max_response_len": 96,
    "rollout_stop": ["</stop>"],
    "rollout_stop_token_ids": [105],
    "rollout_repetition_penalty": 1.05,
}
"""The sampling settings of training, all of them other than the engine's defaults."""
EVALUATION: dict[str, Any] = {
    "temperature": 0.2,
    "top_p": 0.8,
    "top_k": 20,
    "max_new_tokens": 64,
    "min_new_tokens": 0,
    "stop": ["</end>"],
    "stop_token_ids": [104],
    "repetition_penalty": 1.15,
}
"""The sampling parameters of an evaluation dataset, none of which is that of training."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Generated:
    """The samples of one rollout, what it was made from, and the engine that was asked."""

    samples: list[Sample]
    row: Row
    index: int
    params: SamplingParams
    engine: RecordingEngine


def fresh_sample(row: Row, index: int = 3) -> Sample:
    """The sample that a run would pass for this row."""
    row = copy.deepcopy(row)
    return Sample(group_index=index // 2, index=index, prompt=row["input"], label=row.get("label"), metadata=row.get("metadata", {}))


def row_of(case: RewardCase) -> Row:
    """The row of data that a case of the author's stands for."""
    return {"input": case.prompt, "label": case.label, "metadata": case.metadata}


def params_for(stage: Stage, index: int, *, evaluation: bool = False) -> SamplingParams:
    """The sampling parameters that the run passes for this sample, with its seed."""
    params = SamplingParams(**EVALUATION) if evaluation else train_sampling_params(stage.config)
    params["seed"] = 1000 + index
    return params


def generated(
    bench: Bench, row: Row, index: int = 3, *, policy: Policy = None, evaluation: bool = False, sample: Sample | None = None, **options: Any
) -> Generated:
    """One call. Without a `policy` the engine spells numbers digit by digit, which the tokenizer does not."""
    with Stage(bench, policy=policy or SpelledDigits(), **(TRAIN | options)) as stage:
        params = params_for(stage, index, evaluation=evaluation)
        given = sample or fresh_sample(row, index)
        samples = drive(stage.generate(given, params, evaluation=evaluation))
        return Generated(samples, row, index, params, stage.engine)


def generated_many(bench: Bench, rows: Sequence[Row]) -> list[Generated]:
    """All rows at once, with answers that come in another order than the requests; the engine is shared."""

    def latency(token_ids: Sequence[int], params: SamplingParams) -> float:
        return (sum(token_ids) % 7) * 0.005

    with Stage(bench, latency=latency, **TRAIN) as stage:
        params = [params_for(stage, index) for index in range(len(rows))]
        calls = [stage.generate(fresh_sample(row, index), params[index]) for index, row in enumerate(rows)]

        async def together() -> list[list[Sample]]:
            return list(await asyncio.gather(*calls))

        results = drive(together())
        return [Generated(samples, rows[index], index, params[index], stage.engine) for index, samples in enumerate(results)]


def one_by_one(bench: Bench, rows: Sequence[Row]) -> list[Generated]:
    """The same rows, each alone with a fresh plugin."""
    results: list[Generated] = []
    for index, row in enumerate(rows):
        with Stage(bench, **TRAIN) as stage:
            params = params_for(stage, index)
            results.append(Generated(drive(stage.generate(fresh_sample(row, index), params)), row, index, params, stage.engine))
    return results


def usable_rows(bench: Bench) -> list[Row]:
    """Rows with the kind of prompt that the function takes: text, else chat messages. Skips where it takes neither."""
    for rows in (TEXT_ROWS, CHAT_ROWS):
        try:
            generated(bench, rows[0])
        except ConfigError as error:
            skip(f"it refuses the configuration of the checks: {error.message}; give one that it takes as args")
        except (Exception, CheckFailed):  # noqa: BLE001 - reported by generate-train
            continue
        return rows
    raise CheckSkipped("there is no response to look at, see generate-train")


def plain(bench: Bench, *, evaluation: bool = False) -> list[Generated]:
    """Two prompts with ordinary responses."""
    return [generated(bench, row, index, evaluation=evaluation) for index, row in enumerate(usable_rows(bench)[:2], 3)]


TOOL_CALLS = (
    '<tool_call>{"name": "calculator", "arguments": {"expression": "1+2"}}</tool_call>',
    "<calc>1+2</calc>",
    "```python\nprint(1+2)\n```",
    "<code>print(1+2)</code>",
    "<search>1+2</search>",
    "So it is \\boxed{3}",
)
"""How models ask for tools: replies that make a function with tools take its other branch."""


def various(bench: Bench, calls: int = 1) -> list[Generated]:
    """Ordinary responses, replies that ask for a tool `calls` times before they end, and the responses of the author's cases."""
    row = usable_rows(bench)[0]
    scripts = [(row, [*[call] * calls, "3"]) for call in TOOL_CALLS]
    scripts += [(row_of(case), [*[case.response] * calls, "3"]) for case in bench.cases]
    return [*plain(bench), *(generated(bench, given, policy=Replies(replies)) for given, replies in scripts)]
