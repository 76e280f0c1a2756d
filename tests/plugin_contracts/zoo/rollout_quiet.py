"""Rollout functions with one mistake each that the run cannot tell: only the kit says what is wrong."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from vime.api import EngineError, Sample, Status, hookimpl
from vime.rollout.vllm_rollout import generate_rollout_async
from zoo.rollout import quiet, respond, respond_all


def or_built_in(function):
    """The mistake is in the training branch only: evaluations go to the built-in rollout."""

    async def rollout(args, rollout_id, data_source, evaluation=False, engine=None):
        if evaluation:
            return await generate_rollout_async(args, rollout_id, data_source, evaluation)
        return await function(args, rollout_id, data_source, engine)

    rollout.__qualname__, rollout.__module__, rollout.inner = function.__qualname__, function.__module__, function
    return rollout


@or_built_in
async def regrouped(args, rollout_id, data_source, engine):
    groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
    samples = sorted((sample for group in groups for sample in group), key=lambda sample: sample.response_length)
    size = args.n_samples_per_prompt
    return [samples[start : start + size] for start in range(0, len(samples), size)]


@or_built_in
async def one_group_index(args, rollout_id, data_source, engine):
    groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
    for group in groups:
        for sample in group:
            sample.group_index = rollout_id
    return groups


@or_built_in
async def new_samples(args, rollout_id, data_source, engine):
    groups = data_source.get_samples(args.rollout_batch_size)
    return await respond_all(args, [[Sample(prompt=sample.prompt, label=sample.label) for sample in group] for group in groups], engine)


class Cached:
    """The first batch for ever."""

    def __init__(self) -> None:
        self.groups: Any = None

    @hookimpl
    async def generate_rollout(self, args, rollout_id, data_source, evaluation, engine):
        if evaluation:
            return await generate_rollout_async(args, rollout_id, data_source, evaluation)
        if self.groups is None:
            self.groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
        return self.groups


@or_built_in
async def no_text(args, rollout_id, data_source, engine):
    groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
    for group in groups:
        for sample in group:
            sample.response = ""
    return groups


@or_built_in
async def tokenises_again(args, rollout_id, data_source, engine):
    groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
    for group in groups:
        for sample in group:
            prompt, response = engine.tokenizer.encode(sample.prompt), engine.tokenizer.encode(sample.response)
            sample.tokens, sample.response_length = prompt + response, len(response)
            sample.rollout_log_probs = None
    return groups


@or_built_in
async def invented_log_probs(args, rollout_id, data_source, engine):
    groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
    for group in groups:
        for sample in group:
            sample.rollout_log_probs = [0.0] * sample.response_length
    return groups


@or_built_in
async def always_completed(args, rollout_id, data_source, engine):
    groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
    for group in groups:
        for sample in group:
            sample.status = Status.COMPLETED
    return groups


@or_built_in
async def own_length(args, rollout_id, data_source, engine):
    own = args.model_copy(update={"rollout_max_response_len": 512})
    return await respond_all(own, data_source.get_samples(args.rollout_batch_size), engine)


@or_built_in
async def writes_into_args(args, rollout_id, data_source, engine):
    args.apply_chat_template_kwargs["enable_thinking"] = False
    return await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)


@or_built_in
async def unseeded_shuffle(args, rollout_id, data_source, engine):
    groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
    for group in groups:
        for sample in group:
            sample.reward = float(len(sample.response)) + random.random() / 100  # against ties
    return groups


@or_built_in
async def asks_for_ever(args, rollout_id, data_source, engine):
    groups: list[list[Sample]] = []
    while len(groups) < args.rollout_batch_size:
        groups += await respond_all(args, data_source.get_samples(args.rollout_batch_size - len(groups)), engine)
    return groups


@or_built_in
async def counts_samples(args, rollout_id, data_source, engine):
    groups = data_source.get_samples(args.rollout_batch_size * args.n_samples_per_prompt)
    return await respond_all(args, groups[: args.rollout_batch_size], engine)


@or_built_in
async def swallows_errors(args, rollout_id, data_source, engine):
    groups = data_source.get_samples(args.rollout_batch_size)
    for sample in (sample for group in groups for sample in group):
        try:
            await respond(args, sample, engine)
        except EngineError:
            sample.tokens = engine.tokenizer.encode(sample.prompt)
            sample.status, sample.reward, sample.rollout_log_probs = Status.COMPLETED, 0.0, []
    return groups


@or_built_in
async def sleeps(args, rollout_id, data_source, engine):
    groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
    time.sleep(0.4)  # noqa: ASYNC251 - the mistake: a rate limit, a blocking client, a big json.dumps
    return groups


@or_built_in
async def leaves_tasks(args, rollout_id, data_source, engine):
    groups = data_source.get_samples(args.rollout_batch_size)
    tasks = [asyncio.create_task(respond(args, sample, engine)) for group in groups for sample in group]
    await asyncio.wait(tasks)
    return groups


WRONG = (
    quiet("groups cut anew out of sorted samples", regrouped, "rollout-groups", "group 0 mixes samples of the groups 0, 1"),
    quiet("one group_index for all groups", one_group_index, "rollout-groups", "groups 0 and 1 both have the group_index 0"),
    quiet(
        "new samples that have lost their index",
        new_samples,
        "rollout-groups",
        "samples come back without the index that the data source gave them",
    ),
    quiet("the first batch for ever", Cached, "rollout-fresh", "rollout 1 returned the samples of rollout 0 again"),
    quiet("responses without their text", no_text, "rollout-response", "sample 0 has 8 response tokens and no text in sample.response"),
    quiet(
        "tokens made of the text",
        tokenises_again,
        "rollout-tokens",
        "sample 0: the engine generated the token '1' at position 0 of the response, and the sample has '12' there",
    ),
    quiet(
        "log-probs that nobody computed",
        invented_log_probs,
        "rollout-log-probs",
        "sample 0: log-prob 0 of the response is 0.0000; the engine gave -2.1031 there",
    ),
    quiet(
        "every response is complete",
        always_completed,
        "rollout-status",
        "sample 0 is COMPLETED, and its last tokens ended with finish_reason 'length'",
    ),
    quiet(
        "a response length of its own",
        own_length,
        "rollout-length",
        "sample 0 has 512 trained tokens, more than rollout_max_response_len (16)",
    ),
    quiet(
        "a value inside args is changed",
        writes_into_args,
        "rollout-args",
        "it changed its args: args.apply_chat_template_kwargs {} -> {'enable_thinking': False}",
    ),
    quiet(
        "unseeded randomness",
        unseeded_shuffle,
        "rollout-deterministic",
        "two rollouts from the same state differ: reward of sample 0 (place 0)",
    ),
    quiet(
        "a loop that waits for data that have ended", asks_for_ever, "rollout-data-ends", "it asked an empty data source 200 times for more"
    ),
    quiet(
        "get_samples taken to count samples",
        counts_samples,
        "rollout-data-lost",
        "2 of 4 groups were taken from the data source and neither generated, returned nor given back",
    ),
    quiet(
        "a failed request becomes an empty answer",
        swallows_errors,
        "rollout-engine-failure",
        "all 4 requests failed, and the rollout returned a batch all the same",
    ),
    quiet(
        "a blocking call in an async function",
        sleeps,
        "rollout-blocking",
        f"blocks the event loop for more than 0.25 s, at rollout_quiet.py:{sleeps.inner.__code__.co_firstlineno + 3} in sleeps",
    ),
    quiet(
        "tasks that nobody cancels",
        leaves_tasks,
        "rollout-cancellation",
        "requests still running in the engine after the rollout was cancelled: 4",
    ),
)
