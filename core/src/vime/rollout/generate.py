"""From a prompt to generated, rewarded samples: one sample, then one group."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vime.engine.base import SamplingParams, set_current_engine
from vime.errors import ContractError, EngineDeadError, EngineError
from vime.sample import Sample, Status

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
class GroupResult:
    """One group after generation and reward, and what it took."""

    group: list[Sample]
    generated: int = 0
    """Samples that this call generated from scratch (siblings of a fan-out each), retries not counted again."""
    retries: int = 0
    failures: dict[int | None, str] = field(default_factory=dict)
    """Why a FAILED sample failed, by sample index."""

    @property
    def failed(self) -> bool:
        return any(sample.status is Status.FAILED for sample in self.group)


def encode_prompt(tokenizer: Any, prompt: str | list[dict[str, Any]]) -> list[int]:
    """Token ids of a prompt: a string as it stands, chat messages through the tokenizer's chat template."""
    if isinstance(prompt, str):
        return list(tokenizer.encode(prompt, add_special_tokens=False))
    return list(tokenizer.apply_chat_template(prompt, tokenize=True, add_generation_prompt=True, return_dict=False))


async def default_generate(context: RolloutContext, sample: Sample, sampling_params: SamplingParams) -> Sample:
    """Continue one sample on the engine: from its prompt, or from the response tokens that it already has."""
    tokenizer = context.engine.tokenizer
    if not sample.tokens:
        sample.tokens = encode_prompt(tokenizer, sample.prompt)
    if not sample.tokens:
        raise ContractError(f"sample {sample.index}: the prompt is empty", hint="drop empty prompts from the data")
    left = sampling_params.get("max_new_tokens", context.config.rollout_max_response_len) - sample.response_length
    if left <= 0:
        sample.status = Status.TRUNCATED
        return sample
    params = SamplingParams(**sampling_params)
    params["max_new_tokens"] = left
    generation = await context.engine.generate(sample.tokens, params, session_id=sample.session_id)
    sample.append_response_tokens(
        context.config,
        tokens=generation.token_ids,
        log_probs=generation.log_probs,
        text=generation.text,
        meta_info={"weight_version": generation.weight_version} if generation.token_ids else None,
    )
    sample.status = FINISH_STATUS[generation.finish_reason]
    return sample


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
    """Generate one rollout: a list of one sample, or of several siblings that a custom generate returned."""
    function = _generate_function(context, sample, dataset)
    if function is None:
        return [await default_generate(context, sample, sampling_params)]
    set_current_engine(context.engine)
    result = await function.acall(
        args=context.config, sample=sample, sampling_params=dict(sampling_params), evaluation=evaluation, engine=context.engine
    )
    siblings = result if isinstance(result, list) else [result]
    if not siblings or not all(isinstance(item, Sample) for item in siblings):
        got = "an empty list" if siblings == [] else type(result).__name__
        raise ContractError(
            f"{function.label}: custom_generate returned {got} for sample {sample.index}; expected a Sample or a list of Samples"
        )
    if len(siblings) > 1:
        for sibling in siblings:
            sibling.rollout_id = sibling.rollout_id if sibling.rollout_id is not None else sample.index
            sibling.group_index = sample.group_index
    return siblings


async def _generate_with_retries(
    context: RolloutContext,
    sample: Sample,
    sampling_params: SamplingParams,
    result: GroupResult,
    *,
    first_attempt: int = 0,
    evaluation: bool,
    dataset: EvalDatasetConfig | None,
) -> list[Sample]:
    scope = f"eval/{dataset.name}" if dataset else "train"
    attempts = 1 + context.config.generation_retries
    for attempt in range(first_attempt, first_attempt + attempts):
        params = SamplingParams(**sampling_params)
        params["seed"] = request_seed(context.config.rollout_seed, sample.index, attempt, scope) if context.deterministic else None
        try:
            return await generate_sample(context, sample, params, evaluation=evaluation, dataset=dataset)
        except EngineDeadError:
            raise
        except EngineError as exc:
            result.failures[sample.index] = str(exc.message)
            if attempt + 1 < first_attempt + attempts:
                result.retries += 1
                sample.reset_for_generation()
    sample.status = Status.FAILED
    return [sample]


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

    Samples that are COMPLETED or TRUNCATED already (a surplus group out of the buffer) are kept as they are. A sample
    that fails in its reward under `--on-reward-error drop` is generated once more, alone.
    """
    result = GroupResult(group)

    async def run(samples: list[Sample], first_attempt: int) -> list[Sample]:
        unfinished = [s for s in samples if s.status in (Status.PENDING, Status.ABORTED)]
        rollouts = await asyncio.gather(
            *(
                _generate_with_retries(
                    context, s, sampling_params, result, first_attempt=first_attempt, evaluation=evaluation, dataset=dataset
                )
                for s in unfinished
            )
        )
        replaced = dict(zip(map(id, unfinished), rollouts, strict=True))
        return [sibling for s in samples for sibling in replaced.get(id(s), [s])]

    fresh = {id(s) for s in group if s.status is Status.PENDING}
    before = len(group)
    group = await run(group, 0)
    result.generated = len(fresh) + len(group) - before
    await context.scorer.score_group(group, evaluation=evaluation, dataset=dataset, rollout_id=rollout_id)
    to_retry = [s for s in group if s.status is Status.FAILED and s.index not in result.failures]
    if to_retry and not evaluation:
        for sample in to_retry:
            sample.reset_for_generation()
        result.retries += len(to_retry)
        group = await run(group, 1)
        await context.scorer.score_group(group, evaluation=evaluation, dataset=dataset, rollout_id=rollout_id)
    result.group = group
    return result
