"""Generate functions with one mistake each that the run cannot tell: only the kit says what is wrong."""

from __future__ import annotations

import asyncio
import copy
import random
import time

from vime.api import EngineError, Sample, Status, hookimpl
from zoo.base import Wrong
from zoo.generate import HOOK, STATUS, encode, plain, quiet


async def str_of_messages(args, sample, sampling_params, engine=None):
    sample.tokens = engine.tokenizer.encode(str(sample.prompt))
    return await plain(args, sample, sampling_params, engine)


async def new_sample(args, sample, sampling_params, engine=None):
    new = Sample(prompt=sample.prompt, index=sample.index, group_index=sample.group_index, metadata=sample.metadata)
    return await plain(args, new, sampling_params, engine)


async def new_metadata(args, sample, sampling_params, engine=None):
    sample = await plain(args, sample, sampling_params, engine)
    sample.metadata = {"turns": 1}
    return sample


async def response_tokens_only(args, sample, sampling_params, engine=None):
    sample = await plain(args, sample, sampling_params, engine)
    sample.tokens = sample.tokens[-sample.response_length :]
    return sample


async def no_text(args, sample, sampling_params, engine=None):
    sample = await plain(args, sample, sampling_params, engine)
    sample.response = ""
    return sample


async def tokenises_again(args, sample, sampling_params, engine=None):
    sample.tokens = encode(engine.tokenizer, sample.prompt)
    answer = await engine.generate(sample.tokens, sampling_params)
    tokens = engine.tokenizer.encode(answer.text)
    sample.tokens = sample.tokens + tokens
    sample.response, sample.response_length, sample.status = answer.text, len(tokens), STATUS[answer.finish_reason]
    return sample


async def trains_tool_output(args, sample, sampling_params, engine=None):
    sample = await plain(args, sample, sampling_params, engine)
    if "<calc>" in sample.response:
        tool = engine.tokenizer.encode(" = 3")
        sample.append_response_tokens(args, tokens=tool, log_probs=[0.0] * len(tool), text=" = 3")
    return sample


async def hidden_prompt(args, sample, sampling_params, engine=None):
    sample.tokens = encode(engine.tokenizer, sample.prompt)
    system = engine.tokenizer.encode("Think step by step. ")
    answer = await engine.generate(system + sample.tokens, sampling_params)
    sample.append_response_tokens(args, tokens=answer.token_ids, log_probs=answer.log_probs, text=answer.text)
    sample.status = STATUS[answer.finish_reason]
    return sample


async def log_probs_shifted(args, sample, sampling_params, engine=None):
    sample = await plain(args, sample, sampling_params, engine)
    sample.rollout_log_probs = [0.0, *sample.rollout_log_probs[:-1]]
    return sample


async def own_sampling(args, sample, sampling_params, engine=None):
    return await plain(args, sample, {"max_new_tokens": sampling_params["max_new_tokens"], "temperature": 1.0}, engine)


async def training_temperature(args, sample, sampling_params, engine=None):
    return await plain(args, sample, {**sampling_params, "temperature": args.rollout_temperature}, engine)


async def stop_replaced(args, sample, sampling_params, engine=None):
    return await plain(args, sample, {**sampling_params, "stop": ["</calc>"]}, engine)


async def length_for_each_turn(args, sample, sampling_params, engine=None):
    sample.tokens = encode(engine.tokenizer, sample.prompt)
    for _turn in range(6):
        answer = await engine.generate(sample.tokens, sampling_params)
        sample.append_response_tokens(args, tokens=answer.token_ids, log_probs=answer.log_probs, text=answer.text)
        sample.status = STATUS[answer.finish_reason]
        if answer.finish_reason != "stop" or "<calc>" not in answer.text:
            break
    return sample


async def always_completed(args, sample, sampling_params, engine=None):
    sample = await plain(args, sample, sampling_params, engine)
    sample.status = Status.COMPLETED if sample.status is not Status.ABORTED else Status.ABORTED
    return sample


async def abort_is_an_end(args, sample, sampling_params, engine=None):
    sample = await plain(args, sample, sampling_params, engine)
    sample.status = Status.TRUNCATED if sample.status is Status.ABORTED else sample.status
    return sample


async def swallows_errors(args, sample, sampling_params, engine=None):
    try:
        return await plain(args, sample, sampling_params, engine)
    except EngineError:
        sample.status, sample.reward = Status.COMPLETED, 0.0
        return sample


async def shallow_copies(args, sample, sampling_params, engine=None):
    first = await plain(args, sample, sampling_params, engine)
    second = copy.copy(first)
    first.rollout_id = second.rollout_id = sample.index
    return [first, second]


async def unseeded(args, sample, sampling_params, engine=None):
    sample.tokens = encode(engine.tokenizer, sample.prompt) + engine.tokenizer.encode(f"[{random.randrange(10**6)}] ")
    return await plain(args, sample, sampling_params, engine)


class RemembersTheSample:
    """What belongs to one call is kept on self."""

    @hookimpl
    async def custom_generate(self, args, sample, sampling_params, engine):
        self.tokens = encode(engine.tokenizer, sample.prompt)
        for _turn in range(2):
            answer = await engine.generate(self.tokens, {**sampling_params, "max_new_tokens": sampling_params["max_new_tokens"] // 2})
            self.tokens = self.tokens + answer.token_ids
            if not sample.tokens:
                sample.tokens = self.tokens[: len(self.tokens) - len(answer.token_ids)]
            sample.append_response_tokens(tokens=answer.token_ids, log_probs=answer.log_probs, text=answer.text)
            sample.status = STATUS[answer.finish_reason]
            if sample.status is not Status.COMPLETED:
                break
        return sample


async def sleeps(args, sample, sampling_params, engine=None):
    sample = await plain(args, sample, sampling_params, engine)
    time.sleep(0.4)  # noqa: ASYNC251 - a tool that blocks
    return sample


async def leaves_a_task(args, sample, sampling_params, engine=None):
    task = asyncio.create_task(plain(args, sample, sampling_params, engine))
    await asyncio.wait([task])
    return task.result()


async def begins_again(args, sample, sampling_params, engine=None):
    sample.tokens = encode(engine.tokenizer, sample.prompt)
    return await plain(args, sample, sampling_params, engine)


WRONG = (
    quiet(
        "chat messages turned into text by str()",
        str_of_messages,
        "generate-chat",
        "the engine was asked with the chat messages written out as a Python list",
    ),
    quiet("a new sample that has lost its label", new_sample, "generate-fields", "label was '1', and is None in what it returns"),
    quiet("metadata replaced", new_metadata, "generate-fields", "metadata lost its keys row"),
    quiet(
        "tokens without the prompt",
        response_tokens_only,
        "generate-prompt-tokens",
        "tokens has 8 entries, all of them response; the prompt has to come first",
        also=("generate-tokens",),
    ),
    quiet("responses without their text", no_text, "generate-prompt-tokens", "8 response tokens and no text in sample.response"),
    quiet(
        "tokens made of the text",
        tokenises_again,
        "generate-tokens",
        "sample 3: the engine generated the token '1' at position 0 of the response, and the sample has '12' there",
    ),
    quiet(
        "tool output that is trained",
        trains_tool_output,
        "generate-tokens",
        "sample 3: the token ' ' at position 17 of the response is trained, and the engine did not generate it",
    ),
    quiet(
        "a system prompt that the sample does not have",
        hidden_prompt,
        "generate-tokens",
        "sample 3: the engine was never asked to continue the 4 tokens that its prompt has",
    ),
    quiet(
        "log-probs shifted by one",
        log_probs_shifted,
        "generate-log-probs",
        "sample 3: log-prob 0 of the response is 0.0000; the engine gave -2.1031 there",
    ),
    quiet(
        "sampling parameters of its own",
        own_sampling,
        "generate-sampling",
        "the engine was asked with temperature 1.0, and it was given 0.7",
    ),
    quiet(
        "training's temperature in evaluations too",
        training_temperature,
        "generate-sampling",
        "the engine was asked with temperature 0.7, and it was given 0.2",
    ),
    quiet(
        "its own stop strings instead of the given ones",
        stop_replaced,
        "generate-sampling",
        "the engine was asked without stop '</stop>', which it was given",
    ),
    quiet(
        "the whole length for each turn",
        length_for_each_turn,
        "generate-length",
        "a response has 102 generated tokens, and at most 96 were allowed (max_new_tokens)",
    ),
    quiet(
        "every response is complete",
        always_completed,
        "generate-status",
        "the status is completed where the engine said finish_reason 'length'; expected truncated",
    ),
    quiet(
        "an aborted response counts as truncated",
        abort_is_an_end,
        "generate-abort",
        "the status is truncated where the engine said finish_reason 'abort'; expected aborted",
    ),
    quiet(
        "a failed request becomes an empty answer",
        swallows_errors,
        "generate-engine-failure",
        "the engine raised EngineError, and the sample came back completed with 0 tokens",
    ),
    quiet(
        "siblings that are shallow copies",
        shallow_copies,
        "generate-siblings",
        "siblings share one tokens object: what is appended to one changes the other",
    ),
    quiet("unseeded randomness", unseeded, "generate-deterministic", "the same prompt with the same seed gives other tokens"),
    quiet(
        "one sample's state on self",
        RemembersTheSample,
        "generate-concurrent",
        "sample 0 has other tokens when 5 samples are generated at the same time",
    ),
    quiet(
        "a task that nobody cancels",
        leaves_a_task,
        "generate-cancellation",
        "requests still running in the engine after custom_generate was cancelled: 1",
    ),
    quiet(
        "a blocking tool",
        sleeps,
        "generate-blocking",
        "it holds up the event loop: it waits or computes at `time.sleep(0.4)  # noqa: ASYNC251 - a tool that blocks` in sleeps",
    ),
    Wrong(
        "a continued sample begins again, and keeps its old length",
        begins_again,
        "generate-partial",
        "a sample that was begun before has 0 tokens before its response of 12, and its prompt has 4",
        hook=HOOK,
        args={"partial_rollout": True},
    ),
)
