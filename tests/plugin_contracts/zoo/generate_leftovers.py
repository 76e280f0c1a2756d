"""Generate functions whose tokens are right and that go wrong at their edges, one mistake each: only the kit says so."""

from __future__ import annotations

import asyncio
import random
import time

from zoo.base import Wrong
from zoo.generate import STATUS, encode, plain, quiet


async def mask_shifted(args, sample, sampling_params, engine=None):
    sample = await plain(args, sample, sampling_params, engine)
    sample.loss_mask = ([0] + [1] * sample.response_length)[: sample.response_length]
    return sample


async def no_end_token(args, sample, sampling_params, engine=None):
    sample.tokens = encode(engine.tokenizer, sample.prompt)
    answer = await engine.generate(sample.tokens, sampling_params)
    count = len(answer.token_ids) - (answer.token_ids[-1:] == [engine.tokenizer.eos_token_id])
    sample.append_response_tokens(args, tokens=answer.token_ids[:count], log_probs=answer.log_probs[:count], text=answer.text)
    sample.status = STATUS[answer.finish_reason]
    return sample


async def everything_is_response(args, sample, sampling_params, engine=None):
    sample = await plain(args, sample, sampling_params, engine)
    sample.response = engine.tokenizer.decode(sample.tokens)
    return sample


async def writes_on(args, sample, sampling_params, engine=None):
    asyncio.get_running_loop().create_task(asyncio.sleep(3600))
    return await plain(args, sample, sampling_params, engine)


async def seeds_for_all(args, sample, sampling_params, engine=None):
    random.seed(sample.index)
    return await plain(args, sample, sampling_params, engine)


async def another_seed(args, sample, sampling_params, engine=None):
    return await plain(args, sample, {**sampling_params, "seed": random.randrange(10**6)}, engine)


async def closes_the_engine(args, sample, sampling_params, engine=None):
    sample = await plain(args, sample, sampling_params, engine)
    engine.close()
    return sample


async def aborts_all(args, sample, sampling_params, engine=None):
    sample = await plain(args, sample, sampling_params, engine)
    await engine.abort_all()
    return sample


async def naps(args, sample, sampling_params, engine=None):
    time.sleep(0.08)  # noqa: ASYNC251
    return await plain(args, sample, sampling_params, engine)


WRONG: tuple[Wrong, ...] = (
    quiet(
        "a mask that is shifted by one",
        mask_shifted,
        "generate-mask",
        "every answer of the engine is trained but for one token at its end: the mask is shifted by one",
    ),
    quiet(
        "a response without its end",
        no_end_token,
        "generate-end",
        "the response lacks the end-of-sequence token that the engine generated: the policy does not learn to stop",
    ),
    quiet(
        "the prompt in the response",
        everything_is_response,
        "generate-prompt-tokens",
        "sample.response begins with the prompt: '0+1=1212072<|im_end|>'",
    ),
    quiet(
        "a task of its own",
        writes_on,
        "generate-leftovers",
        "tasks still there after it returned: sleep",
        also=("generate-cancellation",),
    ),
    quiet("a seed for everybody", seeds_for_all, "generate-leftovers", "it seeds the random numbers of the module `random`"),
    quiet("a seed of its own", another_seed, "generate-deterministic", "the same prompt with the same seed gives other tokens"),
    quiet("closes the engine", closes_the_engine, "generate-train", "it closed the engine, which belongs to the run"),
    quiet(
        "aborts everybody's requests",
        aborts_all,
        "generate-train",
        "it aborted its own requests, so that no sample was finished",
        also=("generate-evaluation", "generate-concurrent"),
    ),
    quiet(
        "a short sleep",
        naps,
        "generate-blocking",
        "it holds up the event loop: it waits or computes at `time.sleep(0.08)  # noqa: ASYNC251` in naps",
    ),
)
