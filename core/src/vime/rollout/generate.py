"""From a prompt to generated, rewarded samples: one sample, then one group."""

from __future__ import annotations

import asyncio
import copy
import functools
import hashlib
import inspect
import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime.data.prompts import encode_prompt
from vime.engine.base import SamplingParams, calling_engine
from vime.errors import ContractError, EngineDeadError, EngineError
from vime.rollout.ending import CallEngine
from vime.rollout.hook_guards import Place, check_distinct, check_generated
from vime.rollout.reward_failures import REASON
from vime.rollout.unchanged import watched
from vime.sample import Sample, Status, note_verdict, rollouts

if TYPE_CHECKING:
    from vime.config.eval import EvalDatasetConfig
    from vime.config.run_config import RunConfig
    from vime.plugins.manager import HookFunction
    from vime.rollout.context import RolloutContext

FINISH_STATUS = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}


def train_sampling_params(config: RunConfig) -> SamplingParams:
    """The sampling parameters of training rollouts, without the seed."""
    return SamplingParams(
        temperature=config.rollout_temperature,
        top_p=config.rollout_top_p,
        top_k=config.rollout_top_k,
        max_new_tokens=config.rollout_max_response_len,
        min_new_tokens=config.rollout_min_new_tokens,
        stop=config.rollout_stop,
        stop_token_ids=config.rollout_stop_token_ids,
        repetition_penalty=config.rollout_repetition_penalty,
    )


def eval_sampling_params(dataset: EvalDatasetConfig) -> SamplingParams:
    """The sampling parameters of one evaluation dataset of `args.eval_datasets`, without the seed."""
    assert (
        dataset.temperature is not None and dataset.top_p is not None and dataset.top_k is not None and dataset.max_response_len is not None
    )
    return SamplingParams(
        temperature=dataset.temperature,
        top_p=dataset.top_p,
        top_k=dataset.top_k,
        max_new_tokens=dataset.max_response_len,
        min_new_tokens=dataset.min_new_tokens or 0,
        stop=dataset.stop,
        stop_token_ids=dataset.stop_token_ids,
        repetition_penalty=dataset.repetition_penalty or 1.0,
    )


def request_seed(seed: int, sample_index: int | None, attempt: int, scope: str = "train") -> int:
    """A seed in [0, 2^63) that depends on nothing but (run seed, scope, sample index, attempt)."""
    digest = hashlib.blake2b(f"{seed}/{scope}/{sample_index}/{attempt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass
class Slot:
    """One rollout of a group: its samples (one, or siblings of a fan-out), and the prompt that it can be restarted from."""

    samples: list[Sample]
    prompt: Sample | None = None
    """A copy made before a custom generate saw the sample; the built-in generate only appends, which can be undone."""
    failure: str | None = None
    """Why its generation failed for good."""

    @property
    def is_unfinished(self) -> bool:
        return any(sample.status in (Status.PENDING, Status.ABORTED) for sample in self.samples)

    @property
    def is_failed(self) -> bool:
        return any(sample.status is Status.FAILED for sample in self.samples)

    def undo(self) -> None:
        """As it was before this attempt, and ABORTED: the rollout has ended before it was generated."""
        sample = copy.deepcopy(self.prompt) if self.prompt is not None else self.samples[0]
        sample.status = Status.ABORTED
        self.samples = [sample]

    def restart(self) -> Sample:
        """The prompt as it was before generation, in place of all siblings."""
        sample = copy.deepcopy(self.prompt) if self.prompt is not None else self.samples[0]
        if len(self.samples) > 1:
            sample.rollout_id = None
        sample.reset_for_generation()
        self.samples = [sample]
        return sample


@dataclass
class GroupResult:
    """One group after generation and reward, and what it took."""

    slots: list[Slot]
    generated: int = 0
    """Samples that are here now and were not in the buffer (siblings of a fan-out each), retries not counted again."""
    tokens: int = 0
    """Response tokens that are here now and were not in the buffer."""
    retries: int = 0

    @property
    def group(self) -> list[Sample]:
        return [sample for slot in self.slots for sample in slot.samples]

    @property
    def failed(self) -> bool:
        return any(slot.is_failed for slot in self.slots)

    @property
    def failure_reasons(self) -> list[str]:
        """One reason for each failed rollout."""
        return [slot.failure or getattr(slot.samples[0], REASON, "its reward failed") for slot in self.slots if slot.is_failed]

    def requeued(self, *, partial: bool) -> list[Sample]:
        """The group as it goes back to the buffer: finished rollouts as they are, unfinished ones from scratch.

        With `partial`, a rollout of one sample keeps its tokens.
        """
        for slot in self.slots:
            if slot.is_unfinished and not (partial and len(slot.samples) == 1):
                slot.restart()
        return self.group


@functools.lru_cache(maxsize=64)
def _encoded_text(tokenizer: Any, prompt: str) -> tuple[int, ...]:
    return tuple(encode_prompt(tokenizer, prompt))


def _encoded(tokenizer: Any, prompt: str | list[dict[str, Any]]) -> list[int]:
    """The tokens of a prompt. That of a group is encoded once."""
    if isinstance(prompt, str) and isinstance(tokenizer, Hashable):
        return list(_encoded_text(tokenizer, prompt))
    return encode_prompt(tokenizer, prompt)


async def default_generate(context: RolloutContext, sample: Sample, sampling_params: SamplingParams) -> Sample:
    """Continue one sample on the engine: from its prompt, or from the response tokens that it already has."""
    tokenizer = context.engine.tokenizer
    if not sample.tokens:
        sample.tokens = _encoded(tokenizer, sample.prompt)
    if not sample.tokens:
        raise ContractError(f"sample {sample.index}: the prompt is empty", hint="drop empty prompts from the data")
    left = sampling_params.get("max_new_tokens", context.config.rollout_max_response_len) - sample.response_length
    if left <= 0:
        sample.status = Status.TRUNCATED
        return sample
    params = SamplingParams(**sampling_params)
    params["max_new_tokens"] = left
    is_continued = sample.response_length > 0
    if is_continued:
        params["min_new_tokens"] = max(0, sampling_params.get("min_new_tokens", 0) - sample.response_length)
        if context.config.mask_offpolicy_in_partial_rollout:
            sample.loss_mask = [0] * sample.response_length
    submitted = time.monotonic()
    generation = await context.engine.generate(sample.tokens, params, session_id=sample.session_id)
    context.tracer.generation(sample, submitted, generation)
    sample.append_response_tokens(
        context.config,
        tokens=generation.token_ids,
        log_probs=generation.log_probs,
        text=None if is_continued else generation.text,
        meta_info={"weight_version": generation.weight_version} if generation.token_ids else None,
    )
    sample.status = FINISH_STATUS[generation.finish_reason]
    if is_continued:
        sample.response = response_text(tokenizer, sample, params.get("stop") or [])
    return sample


def response_text(tokenizer: Any, sample: Sample, stop: list[str]) -> str:
    """The text of a response that was generated in parts: decoded as a whole, since characters may span two parts.

    Without the token that ended it, and up to the first stop string.
    """
    tokens = sample.tokens[-sample.response_length :]
    text: str = tokenizer.decode(tokens, skip_special_tokens=False)
    if sample.status is not Status.COMPLETED:
        return text
    ends = [end for end in (text.find(word) for word in stop) if end >= 0]
    return text[: min(ends)] if ends else tokenizer.decode(tokens[:-1], skip_special_tokens=False)


def _generate_function(context: RolloutContext, sample: Sample, dataset: EvalDatasetConfig | None) -> HookFunction | None:
    """Who generates this sample: its own function, its evaluation dataset's, the plugin that claims it, or nobody."""
    path = sample.generate_function_path or (dataset.custom_generate_function_path if dataset else None)
    if path:
        return context.plugins.path_function(path, "custom_generate")
    return context.plugins.claimed("custom_generate")


async def generate_sample(
    context: RolloutContext,
    sample: Sample,
    sampling_params: SamplingParams,
    *,
    evaluation: bool = False,
    dataset: EvalDatasetConfig | None = None,
) -> list[Sample]:
    """Generate one rollout: a list of one sample, or of several siblings that a custom generate returned.

    Raises CutShortError where the end of the rollout cut a custom generate short and it did not say so.
    """
    function = _generate_function(context, sample, dataset)
    if function is None:
        return [await default_generate(context, sample, sampling_params)]
    place, engine = Place.of(sample), CallEngine(context.engine, context.end, sample, context.tracer)
    arguments = {
        "args": context.config,
        "sample": sample,
        "sampling_params": dict(sampling_params),
        "evaluation": evaluation,
        "engine": engine,
    }
    try:
        of_sample = context.tracer.of_samples([sample], f"{function.plugin}/{function.hook}")
        with watched(context.config, function), calling_engine(engine), of_sample:
            if function.is_async:
                result = await function.acall(**arguments)
            else:  # it may block on its agent, so it gets a thread
                result = await asyncio.to_thread(function.call, **arguments)
                result = await result if inspect.isawaitable(result) else result
        siblings = check_generated(function.label, place, result)
        note_verdict(siblings, function.hook, function.plugin, "generated" if len(siblings) == 1 else f"one of {len(siblings)}")
    except Exception as error:
        if engine.was_cut:  # an answer that was cut off is not what the function reckons with
            raise CutShortError from error
        raise
    if engine.was_cut and all(sibling.status is not Status.ABORTED for sibling in siblings):
        raise CutShortError
    return siblings


class CutShortError(Exception):
    """The rollout ended while a custom generate was at work, which raised then, or went on as if nothing had happened."""


async def _generate_slot(
    context: RolloutContext,
    slot: Slot,
    sampling_params: SamplingParams,
    result: GroupResult,
    *,
    first_attempt: int,
    evaluation: bool,
    dataset: EvalDatasetConfig | None,
) -> None:
    """Generate one rollout; a request that the engine fails is tried again, from the prompt, before it counts as failed.

    After the end of the rollout nothing is begun.
    """
    scope = f"eval/{dataset.name}" if dataset else "train"
    sample = slot.samples[0] if len(slot.samples) == 1 else slot.restart()
    if _generate_function(context, sample, dataset) is not None:
        slot.prompt = copy.deepcopy(sample)
    last = first_attempt + context.config.generation_retries
    for attempt in range(first_attempt, last + 1):
        if context.end.reached:
            return slot.undo()
        params = SamplingParams(**sampling_params)
        params["seed"] = request_seed(context.config.rollout_seed, sample.index, attempt, scope) if context.deterministic else None
        try:
            slot.samples = await generate_sample(context, sample, params, evaluation=evaluation, dataset=dataset)
        except CutShortError:
            return slot.undo()
        except EngineDeadError:
            raise
        except EngineError as exc:
            slot.failure = exc.message
            sample = slot.restart()
            result.retries += attempt < last
        else:
            slot.failure = None
            return None
    sample.status = Status.FAILED
    return None


async def generate_group(
    context: RolloutContext,
    group: list[Sample],
    sampling_params: SamplingParams,
    *,
    rollout_id: int,
    evaluation: bool = False,
    dataset: EvalDatasetConfig | None = None,
) -> GroupResult:
    """Generate and reward what is unfinished in a group.

    Rollouts that are complete already (a surplus group out of the buffer) are kept as they are. One whose reward fails
    under `--on-reward-error drop` is generated once more, alone.
    """
    started = time.monotonic()
    result = GroupResult([Slot(siblings) for siblings in rollouts(group)])
    from_buffer = sum(len(slot.samples) for slot in result.slots if slot.samples[0].status is not Status.PENDING)
    tokens_before = sum(sample.response_length for sample in group)

    async def run(slots: list[Slot], first_attempt: int) -> None:
        options: dict[str, Any] = {"first_attempt": first_attempt, "evaluation": evaluation, "dataset": dataset}
        await asyncio.gather(*(_generate_slot(context, slot, sampling_params, result, **options) for slot in slots))
        samples = result.group
        function = _generate_function(context, samples[0], dataset)
        if function is not None:
            check_distinct(function.label, samples, len(result.slots), len(rollouts(samples)))
        scoring: dict[str, Any] = {"evaluation": evaluation, "dataset": dataset, "rollout_id": rollout_id, "tracer": context.tracer}
        await context.scorer.score_group(samples, **scoring)
        for slot in result.slots:  # a rollout_sample_hook may have put other objects into their places
            slot.samples, samples = samples[: len(slot.samples)], samples[len(slot.samples) :]

    await run([slot for slot in result.slots if slot.is_unfinished], 0)
    to_retry = [slot for slot in result.slots if slot.is_failed and slot.failure is None]
    if to_retry and not evaluation:
        for slot in to_retry:
            slot.restart()
        result.retries += len(to_retry)
        await run(to_retry, 1 + context.config.generation_retries)
    context.tracer.finished(result.group, started)
    result.generated = len(result.group) - from_buffer
    result.tokens = sum(sample.response_length for sample in result.group) - tokens_before
    return result
