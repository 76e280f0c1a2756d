"""Samples and groups for tests, made in one line each: plain Python, deterministic, aligned as a rollout would leave them.

    group = finished_group([1.0, 0.0, 0.0, 1.0], label="4")
    assert [sample.reward for sample in group] == [1.0, 0.0, 0.0, 1.0]

Tokens are those of `FakeTokenizer()`, one per character.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from vime.sample import Sample, Status
from vime.testing.fakes import FakeTokenizer

Reward = float | dict[str, Any] | None


def make_sample(index: int = 0, *, prompt: str | list[dict[str, Any]] = "1+1=", label: Any = "2", **fields: Any) -> Sample:
    """A sample that waits for generation: prompt, label and index are set, and it has its prompt's tokens.

    `fields` are any other fields of Sample.
    """
    tokenizer = FakeTokenizer()
    text = prompt if isinstance(prompt, str) else tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    values: dict[str, Any] = {"group_index": index, "rollout_id": None, "tokens": tokenizer.encode(text), **fields}
    return Sample(index=index, prompt=prompt, label=label, **values)


def finished_sample(
    index: int = 0,
    response: str = "2",
    *,
    reward: Reward = None,
    status: Status = Status.COMPLETED,
    log_probs: Sequence[float] | None = None,
    **fields: Any,
) -> Sample:
    """A sample whose response was generated: tokens, length and log-probs are those of `response`, each -0.5 by default.

    A COMPLETED response ends with the end-of-sequence token, whose text is not in `response`. `fields` are any other
    arguments of `make_sample` and fields of Sample, which count as they are given.
    """
    tokenizer = FakeTokenizer()
    made = {name: fields.pop(name) for name in ("prompt", "label", "group_index", "metadata") if name in fields}
    sample = make_sample(index, **made)
    tokens = tokenizer.encode(response) + ([tokenizer.eos_token_id] if status is Status.COMPLETED else [])
    sample.append_response_tokens(
        tokens=tokens,
        log_probs=list(log_probs) if log_probs is not None else [-0.5] * len(tokens),
        meta_info={"weight_version": 1},
        text=response,
    )
    sample.reward, sample.status = reward, status
    for name, value in fields.items():
        setattr(sample, name, value)
    return sample


def make_group(size: int = 4, *, group_index: int = 0, first_index: int | None = None, **fields: Any) -> list[Sample]:
    """`size` samples of one prompt that wait for generation. Indices go on from `first_index` (default group_index * size)."""
    first = group_index * size if first_index is None else first_index
    return [make_sample(first + position, group_index=group_index, **_fresh(fields)) for position in range(size)]


def finished_group(
    rewards: Sequence[Reward] | int = (1.0, 0.0, 1.0, 0.0),
    *,
    group_index: int = 0,
    first_index: int | None = None,
    responses: Sequence[str] | None = None,
    statuses: Sequence[Status] | None = None,
    **fields: Any,
) -> list[Sample]:
    """A group whose responses were generated, with these rewards; a number asks for so many samples without a reward.

    Each of `responses` and `statuses` has an entry per sample; the default response is its position in the group.
    `fields` are as for `finished_sample`, the same for every sample (copied, so that no two share an object).
    """
    values: list[Reward] = [None] * rewards if isinstance(rewards, int) else list(rewards)
    size = len(values)
    first = group_index * size if first_index is None else first_index
    return [
        finished_sample(
            first + position,
            responses[position] if responses is not None else str(position),
            reward=value,
            status=statuses[position] if statuses is not None else Status.COMPLETED,
            group_index=group_index,
            **_fresh(fields),
        )
        for position, value in enumerate(values)
    ]


def fan_out_group(
    rewards: Sequence[Reward] = (1.0, 0.0), *, siblings: int = 2, group_index: int = 0, first_index: int | None = None, **fields: Any
) -> list[Sample]:
    """A flat group in which every rollout has `siblings` adjacent samples that share its `rollout_id`, index and reward."""
    first = group_index * len(rewards) if first_index is None else first_index
    group: list[Sample] = []
    for position, reward in enumerate(rewards):
        for part in range(siblings):
            sample = finished_sample(first + position, f"{position}.{part}", reward=reward, group_index=group_index, **_fresh(fields))
            sample.rollout_id = first + position
            group.append(sample)
    return group


def finished_groups(count: int = 3, rewards: Sequence[Reward] | int = (1.0, 0.0, 1.0, 0.0), **fields: Any) -> list[list[Sample]]:
    """`count` finished groups with consecutive indices, as a rollout returns them."""
    return [finished_group(rewards, group_index=number, **_fresh(fields)) for number in range(count)]


def _fresh(fields: dict[str, Any]) -> dict[str, Any]:
    """Copies of lists and dicts, so that samples do not share them."""
    return copy.deepcopy(fields)
