"""Rollout functions with one mistake each, and sound ones."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from vime.api import RolloutFnEvalOutput, RolloutFnTrainOutput, Sample, Status, hookimpl
from vime.rollout.vllm_rollout import generate_rollout, generate_rollout_async
from zoo.base import Wrong

HOOK = "generate_rollout"
STATUS = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}


async def respond(args: Any, sample: Sample, engine: Any) -> None:
    """Generate and score one sample, rightly."""
    sample.tokens = engine.tokenizer.encode(sample.prompt)
    answer = await engine.generate(sample.tokens, {"max_new_tokens": args.rollout_max_response_len, "temperature": 1.0})
    sample.append_response_tokens(tokens=answer.token_ids, log_probs=answer.log_probs, text=answer.text)
    sample.status, sample.reward = STATUS[answer.finish_reason], float(answer.text == sample.label)


async def respond_all(args: Any, groups: list[list[Sample]], engine: Any) -> list[list[Sample]]:
    await asyncio.gather(*(respond(args, sample, engine) for group in groups for sample in group))
    return groups


# Sound


async def sound(args, rollout_id, data_source, evaluation=False, engine=None):
    if not evaluation:
        return RolloutFnTrainOutput(await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine), {"mine/x": 1.0})
    data = {}
    for dataset in args.eval_datasets:
        rows = [json.loads(line) for line in Path(dataset.path).read_text().splitlines()]  # noqa: ASYNC240 - a small file
        samples = [Sample(index=i, prompt=row["input"], label=row["label"]) for i, row in enumerate(rows)]
        await respond_all(args, [samples], engine)
        data[dataset.name] = {
            "rewards": [sample.reward for sample in samples],
            "truncated": [sample.status is Status.TRUNCATED for sample in samples],
            "samples": samples,
        }
    return RolloutFnEvalOutput(data)


def wraps_the_built_in(args, rollout_id, data_source, evaluation=False):
    output = generate_rollout(args, rollout_id, data_source, evaluation)
    output.metrics = {**(output.metrics or {}), "mine/seen": 1.0}
    return output


async def wraps_the_built_in_async(args, rollout_id, data_source, **kwargs):
    return await generate_rollout_async(args, rollout_id, data_source, **kwargs)


class SelfPlay:
    """Makes its own prompts, and trains only."""

    @hookimpl
    async def generate_rollout(self, args, rollout_id, evaluation, engine):
        if evaluation:
            raise NotImplementedError("self-play has no evaluation; use --eval-function-path")
        size = args.n_samples_per_prompt
        groups = [
            [
                Sample(group_index=rollout_id * 100 + number, index=rollout_id * 1000 + number * size + i, prompt=f"{number}-")
                for i in range(size)
            ]
            for number in range(args.rollout_batch_size)
        ]
        return await respond_all(args, groups, engine)


SOUND = (sound, wraps_the_built_in, wraps_the_built_in_async, SelfPlay)


# A training rollout that the run refuses


async def flat_list(args, rollout_id, data_source, evaluation=False, engine=None):
    groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
    return [sample for group in groups for sample in group]


async def no_reward(args, rollout_id, data_source, evaluation=False, engine=None):
    groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
    for group in groups:
        for sample in group:
            sample.reward = None  # custom_rm is thought to run afterwards
    return RolloutFnTrainOutput(groups)


async def no_status(args, rollout_id, data_source, evaluation=False, engine=None):
    groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
    for group in groups:
        for sample in group:
            sample.status = Status.PENDING
    return RolloutFnTrainOutput(groups)


async def one_group_too_many(args, rollout_id, data_source, evaluation=False, engine=None):
    return RolloutFnTrainOutput(await respond_all(args, data_source.get_samples(args.rollout_batch_size + 1), engine))


async def mask_over_all_tokens(args, rollout_id, data_source, evaluation=False, engine=None):
    groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
    for group in groups:
        for sample in group:
            sample.loss_mask = [0] * (len(sample.tokens) - sample.response_length) + [1] * sample.response_length
    return RolloutFnTrainOutput(groups)


async def shifted_lengths(args, rollout_id, data_source, evaluation=False, engine=None):
    groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
    for group in groups:
        for sample in group:
            sample.response_length = len(sample.tokens)
    return RolloutFnTrainOutput(groups)


async def sample_repeated(args, rollout_id, data_source, evaluation=False, engine=None):
    groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
    return RolloutFnTrainOutput([[max(group, key=lambda sample: float(sample.reward))] * args.n_samples_per_prompt for group in groups])


async def half_the_log_probs(args, rollout_id, data_source, evaluation=False, engine=None):
    groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
    groups[0][0].rollout_log_probs = None
    return RolloutFnTrainOutput(groups)


async def nan_reward(args, rollout_id, data_source, evaluation=False, engine=None):
    groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
    for group in groups:
        group[0].reward = float("nan")
    return RolloutFnTrainOutput(groups)


async def blocks_on_the_built_in(args, rollout_id, data_source, evaluation=False):
    return generate_rollout(args, rollout_id, data_source, evaluation)


class RememberedGroups:
    """State shared by all rollouts: groups are collected on self."""

    def __init__(self) -> None:
        self.collected: list[list[Sample]] = []

    @hookimpl
    async def generate_rollout(self, args, rollout_id, data_source, evaluation, engine):
        if evaluation:
            return await generate_rollout_async(args, rollout_id, data_source, evaluation)
        self.collected += await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
        return RolloutFnTrainOutput(self.collected)


async def dict_of_groups(args, rollout_id, data_source, evaluation=False, engine=None):
    return {"samples": await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)}


async def text_metrics(args, rollout_id, data_source, evaluation=False, engine=None):
    groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
    return RolloutFnTrainOutput(groups, {"best": "yes" if groups[0][0].reward else "no"})


# An evaluation that is not one


async def training_only(args, rollout_id, data_source, engine=None):
    return RolloutFnTrainOutput(await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine))


async def ignores_evaluation(args, rollout_id, data_source, evaluation=False, engine=None):
    return RolloutFnTrainOutput(await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine))


async def not_implemented(args, rollout_id, data_source, evaluation=False, engine=None):
    if evaluation:
        raise NotImplementedError
    return RolloutFnTrainOutput(await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine))


async def no_truncated(args, rollout_id, data_source, evaluation=False):
    output: Any = await generate_rollout_async(args, rollout_id, data_source, evaluation)
    if evaluation:
        return {name: {"rewards": data["rewards"], "samples": data["samples"]} for name, data in output.data.items()}
    return output


async def mean_reward(args, rollout_id, data_source, evaluation=False):
    output: Any = await generate_rollout_async(args, rollout_id, data_source, evaluation)
    if evaluation:
        for data in output.data.values():
            data["rewards"] = [sum(data["rewards"]) / len(data["rewards"])]
    return output


async def first_dataset_only(args, rollout_id, data_source, evaluation=False):
    output: Any = await generate_rollout_async(args, rollout_id, data_source, evaluation)
    return {"sums": output.data["sums"]} if evaluation else output


async def finish_reasons(args, rollout_id, data_source, evaluation=False):
    output: Any = await generate_rollout_async(args, rollout_id, data_source, evaluation)
    if evaluation:
        for data in output.data.values():
            data["truncated"] = ["length" if cut else "stop" for cut in data["truncated"]]
    return output


async def evaluates_training_data(args, rollout_id, data_source, evaluation=False, engine=None):
    groups = await respond_all(args, data_source.get_samples(args.rollout_batch_size), engine)
    if not evaluation:
        return RolloutFnTrainOutput(groups)
    samples = [sample for group in groups for sample in group]
    data = {"rewards": [s.reward for s in samples], "truncated": [s.status is Status.TRUNCATED for s in samples], "samples": samples}
    return RolloutFnEvalOutput({dataset.name: data for dataset in args.eval_datasets})


def refused(name: str, target: Any, check: str, message: str) -> Wrong:
    """The run refuses it with the same message."""
    label = f"plugin {target.__name__!r}" if isinstance(target, type) else f"path function {target.__module__}:{target.__name__}"
    whole = message if message.startswith("generate_rollout was called") else f"{label}: {message}"
    return Wrong(name, target, check, whole, core=whole, hook=None if isinstance(target, type) else HOOK)


def quiet(name: str, target: Any, check: str, message: str, core: str | None = None, also: tuple[str, ...] = ()) -> Wrong:
    """The run goes on with it, or says something else."""
    return Wrong(name, target, check, message, core=core, hook=None if isinstance(target, type) else HOOK, also=also)


WRONG = (
    refused(
        "a flat list instead of groups",
        flat_list,
        "rollout-train",
        "generate_rollout returned Sample as group 0; expected a list of samples",
    ),
    refused("samples without a reward", no_reward, "rollout-train", "group 0: generate_rollout left sample 0 without a reward"),
    refused(
        "samples that are still pending",
        no_status,
        "rollout-train",
        "group 0, sample 0 has status pending; expected completed or truncated",
    ),
    refused(
        "more groups than the batch has",
        one_group_too_many,
        "rollout-train",
        "generate_rollout returned 3 groups, expected 2 (rollout_batch_size)",
    ),
    refused(
        "a loss mask over prompt and response",
        mask_over_all_tokens,
        "rollout-train",
        "group 0: loss_mask of sample 0 (group 0) has 6 entries for a response of 2 tokens",
    ),
    refused(
        "response_length counts the prompt too",
        shifted_lengths,
        "rollout-train",
        "group 0: rollout_log_probs of sample 0 (group 0) has 2 entries for a response of 6 tokens",
    ),
    refused("the best sample of a group, n times", sample_repeated, "rollout-train", "group 0: sample 0 appears twice in the rollout"),
    refused("log-probs on some samples only", half_the_log_probs, "rollout-train", "3 of 4 samples have rollout_log_probs"),
    refused(
        "a reward that is not a number",
        nan_reward,
        "rollout-train",
        "group 0: generate_rollout returned nan as the reward for sample 0 (group 0); expected a finite number",
    ),
    refused(
        "an async function that blocks on the built-in rollout",
        blocks_on_the_built_in,
        "rollout-train",
        "generate_rollout was called in the event loop of the run, which would wait for itself",
    ),
    refused(
        "state shared by all rollouts",
        RememberedGroups,
        "rollout-train",
        "generate_rollout returned 4 groups, expected 2 (rollout_batch_size)",
    ),
    refused(
        "a metric that is a text",
        text_metrics,
        "rollout-train",
        "generate_rollout has the metric 'best' = str 'no'; expected a name and a finite number",
    ),
    refused(
        "a dict of its own",
        dict_of_groups,
        "rollout-train",
        "generate_rollout returned dict; expected RolloutFnTrainOutput or a list of groups",
    ),
    quiet(
        "only the training branch",
        training_only,
        "rollout-evaluation",
        "generate_rollout takes no `evaluation`, and is called for every evaluation too",
        core="the evaluation returned RolloutFnTrainOutput; expected RolloutFnEvalOutput or a dict by dataset",
    ),
    refused(
        "the flag for evaluations is ignored",
        ignores_evaluation,
        "rollout-evaluation",
        "the evaluation returned RolloutFnTrainOutput; expected RolloutFnEvalOutput or a dict by dataset",
    ),
    quiet(
        "evaluations end with an empty error",
        not_implemented,
        "rollout-evaluation",
        "an evaluation raises NotImplementedError without a word",
    ),
    refused("evaluation results without a list", no_truncated, "rollout-evaluation", "evaluation dataset 'sums' lacks truncated"),
    refused(
        "one mean instead of a reward for each sample",
        mean_reward,
        "rollout-evaluation",
        "evaluation dataset 'sums' has lists of different lengths: {'rewards': 1, 'truncated': 6, 'samples': 6}",
    ),
    quiet(
        "one of the evaluation datasets only",
        first_dataset_only,
        "rollout-eval-datasets",
        "the evaluation has sums, and lacks more of args.eval_datasets",
    ),
    quiet(
        "finish reasons where booleans belong",
        finish_reasons,
        "rollout-eval-datasets",
        "dataset 'sums': truncated holds 'stop'; expected True or False for each sample",
    ),
    quiet(
        "an evaluation on the training data",
        evaluates_training_data,
        "rollout-eval-data",
        "the evaluation took 2 groups out of the training data",
    ),
)
