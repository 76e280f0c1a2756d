"""Generate functions with one mistake each, and sound ones."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from vime.api import Status, current_engine, hookimpl
from zoo.base import Wrong

HOOK = "custom_generate"
STATUS = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}


def encode(tokenizer: Any, prompt: Any) -> list[int]:
    """A prompt of text, or of chat messages, rightly."""
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, add_special_tokens=False)
    return tokenizer.apply_chat_template(prompt, tokenize=True, add_generation_prompt=True, return_dict=False)


# Sound


async def plain(args, sample, sampling_params, engine=None):
    if not sample.tokens:
        sample.tokens = encode(engine.tokenizer, sample.prompt)
    left = sampling_params["max_new_tokens"] - sample.response_length
    answer = await engine.generate(sample.tokens, {**sampling_params, "max_new_tokens": left})
    sample.append_response_tokens(args, tokens=answer.token_ids, log_probs=answer.log_probs, text=answer.text)
    sample.status = STATUS[answer.finish_reason]
    return sample


async def with_calculator(args, sample, sampling_params):
    """Upstream's style: several turns, with a tool whose output is not trained."""
    engine = current_engine()
    sample.tokens = encode(engine.tokenizer, sample.prompt)
    stop = [*(sampling_params.get("stop") or []), "</calc>"]
    for _turn in range(4):
        left = sampling_params["max_new_tokens"] - sum(sample.loss_mask or [1] * sample.response_length)
        if left <= 0:
            sample.status = Status.TRUNCATED
            break
        answer = await engine.generate(sample.tokens, {**sampling_params, "max_new_tokens": left, "stop": stop})
        sample.append_response_tokens(args, tokens=answer.token_ids, log_probs=answer.log_probs, text=answer.text)
        sample.status = STATUS[answer.finish_reason]
        if answer.finish_reason != "stop" or "<calc>" not in answer.text:
            break
        result = f" = {answer.text.count('+') + 1}\n"
        sample.append_response_tokens(args, tokens=engine.tokenizer.encode(result), trainable=False, text=result)
    return sample


async def two_agents(args, sample, sampling_params, evaluation=False, engine=None):
    """A rollout of two samples."""
    siblings = []
    for part in ("plan: ", "answer: "):
        sibling = copy.deepcopy(sample)
        sibling.tokens = encode(engine.tokenizer, sample.prompt) + engine.tokenizer.encode(part)
        answer = await engine.generate(sibling.tokens, sampling_params)
        sibling.append_response_tokens(args, tokens=answer.token_ids, log_probs=answer.log_probs, text=answer.text)
        sibling.status, sibling.rollout_id = STATUS[answer.finish_reason], sample.index
        siblings.append(sibling)
    return siblings


class Judged:
    """Asks the engine for a judgement too, with settings of its own, and sets the reward."""

    @hookimpl
    async def custom_generate(self, sample, sampling_params, engine):
        sample.tokens = encode(engine.tokenizer, sample.prompt)
        answer = await engine.generate(sample.tokens, sampling_params)
        sample.append_response_tokens(tokens=answer.token_ids, log_probs=answer.log_probs, text=answer.text)
        sample.status = STATUS[answer.finish_reason]
        question = engine.tokenizer.encode(f"Is {sample.response!r} right?")
        verdict = await engine.generate(question, {"temperature": 0.0, "max_new_tokens": 1})
        sample.reward = float("y" in verdict.text)
        return sample


def runs_a_loop(args, sample, sampling_params, engine=None):
    """Synchronous: it has a thread to itself."""
    return asyncio.run(plain(args, sample, sampling_params, engine))


SOUND = (plain, with_calculator, two_agents, Judged, runs_a_loop)


# A sample that the run refuses


async def returns_nothing(args, sample, sampling_params, engine=None):
    await plain(args, sample, sampling_params, engine)


async def returns_text(args, sample, sampling_params, engine=None):
    return (await plain(args, sample, sampling_params, engine)).response


async def no_status(args, sample, sampling_params, engine=None):
    sample = await plain(args, sample, sampling_params, engine)
    sample.status = Status.PENDING
    return sample


async def mask_over_all_tokens(args, sample, sampling_params, engine=None):
    sample = await plain(args, sample, sampling_params, engine)
    sample.loss_mask = [0] * (len(sample.tokens) - sample.response_length) + [1] * sample.response_length
    return sample


async def tool_without_log_probs(args, sample, sampling_params, engine=None):
    sample = await plain(args, sample, sampling_params, engine)
    tool = engine.tokenizer.encode(" = 3")
    sample.tokens += tool
    sample.response_length += len(tool)
    sample.loss_mask = [1] * (sample.response_length - len(tool)) + [0] * len(tool)
    return sample


async def own_rollout_ids(args, sample, sampling_params, engine=None):
    siblings = await two_agents(args, sample, sampling_params, engine=engine)
    for number, sibling in enumerate(siblings):
        sibling.rollout_id = 10 * sample.index + number
    return siblings


async def one_rollout_id(args, sample, sampling_params, engine=None):
    siblings = await two_agents(args, sample, sampling_params, engine=engine)
    for sibling in siblings:
        sibling.rollout_id = 0
    return siblings


async def rewards_of_siblings_differ(args, sample, sampling_params, engine=None):
    siblings = await two_agents(args, sample, sampling_params, engine=engine)
    siblings[0].reward, siblings[1].reward = 0.0, 1.0
    return siblings


async def training_only(args, sample, sampling_params, evaluation=False, engine=None):
    if evaluation:
        return sample
    return await plain(args, sample, sampling_params, engine)


def refused(name: str, target: Any, check: str, message: str) -> Wrong:
    """The run refuses it with the same message."""
    label = f"plugin {target.__name__!r}" if isinstance(target, type) else f"path function {target.__module__}:{target.__name__}"
    whole = f"{label}: {message}"
    return Wrong(name, target, check, whole, core=whole, hook=None if isinstance(target, type) else HOOK)


def quiet(name: str, target: Any, check: str, message: str, core: str | None = None, also: tuple[str, ...] = ()) -> Wrong:
    """The run goes on with it, or says something else."""
    return Wrong(name, target, check, message, core=core, hook=None if isinstance(target, type) else HOOK, also=also)


WRONG = (
    refused(
        "the sample is changed and not returned",
        returns_nothing,
        "generate-train",
        "custom_generate returned None for sample 1 (group 0); expected a Sample or a list of Samples",
    ),
    refused(
        "the text instead of the sample",
        returns_text,
        "generate-train",
        "custom_generate returned str for sample 1 (group 0); expected a Sample or a list of Samples",
    ),
    refused(
        "samples that are still pending",
        no_status,
        "generate-train",
        "custom_generate left sample 1 with status pending; expected completed or truncated",
    ),
    refused(
        "a loss mask over prompt and response",
        mask_over_all_tokens,
        "generate-train",
        "custom_generate: loss_mask of sample 1 (group 0) has 7 entries for a response of 3 tokens",
    ),
    refused(
        "tool output put there by hand",
        tool_without_log_probs,
        "generate-train",
        "custom_generate: rollout_log_probs of sample 1 (group 0) has 3 entries for a response of 7 tokens",
    ),
    refused(
        "a rollout_id for each sibling",
        own_rollout_ids,
        "generate-train",
        "custom_generate returned 2 samples with the rollout_ids 10, 11 for sample 1 (group 0); expected one for all of them",
    ),
    quiet(
        "one rollout_id for everything",
        one_rollout_id,
        "generate-siblings",
        "the rollouts of samples 0 and 1 both have the rollout_id 0",
        core="custom_generate gave several rollouts of group 0 the same rollout_id: 2 rollouts became 1",
        also=("generate-train", "generate-evaluation"),
    ),
    quiet(
        "siblings with rewards of their own",
        rewards_of_siblings_differ,
        "generate-train",
        "the samples of rollout 0 (group 0) have different rewards: [0.0, 1.0]",
        core="have different rewards: [0.0, 1.0]",
        also=("generate-evaluation",),
    ),
    refused(
        "evaluations are left out",
        training_only,
        "generate-evaluation",
        "custom_generate left sample 0 with status pending; expected completed or truncated",
    ),
)
