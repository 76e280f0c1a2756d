"""Checks of `custom_generate`: one prompt, one rollout, called many times at once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

from vime.api import ConfigError, Sample, Status
from vime.engine.base import SamplingParams
from vime.errors import EngineError, VimeError
from vime.testing.checks import generate_calls
from vime.testing.checks.base import Bench, Check, CheckFailed, fail, skip
from vime.testing.checks.generate_calls import generate_one
from vime.testing.checks.generate_stage import (
    TRAIN,
    Generated,
    fresh_sample,
    generated,
    plain,
    usable_rows,
    various,
)
from vime.testing.checks.rollout_engine import Answer, SpelledDigits, check_log_probs, check_tokens, covered, trained_positions
from vime.testing.checks.rollout_loop import drive
from vime.testing.checks.rollout_stage import CHAT_ROWS, TEXT_ROWS, Stage

HOOK = "custom_generate"


def train(bench: Bench) -> None:
    """What it returns passes the checks of a training rollout: tokens, masks and log-probs are aligned, status and reward are set."""
    try:
        with Stage(bench, rows=TEXT_ROWS) as stage:
            _train(stage)
    except (Exception, CheckFailed) as error:  # noqa: BLE001 - raised again unless it works with chat prompts
        try:
            with Stage(bench, rows=CHAT_ROWS) as stage:
                stage.train()
        except (Exception, CheckFailed):  # noqa: BLE001 - the first error is the one to look at
            if isinstance(error, ConfigError):
                skip(f"it refuses the configuration of the checks: {error.message}; give one that it takes as args")
            raise error from None


def _train(stage: Stage) -> None:
    """A training rollout; says it plainly where every sample comes back aborted, which ends as too few groups."""
    try:
        stage.train()
    except VimeError as error:
        if "gave up" in error.message and any(request.aborted.is_set() for request in stage.engine.requests):
            fail("it aborted its own requests, so that no sample was finished", hint="abort only sessions of your own, by their session_id")
        raise


def evaluation(bench: Bench) -> None:
    """It generates for evaluations too."""
    with Stage(bench, rows=usable_rows(bench)) as stage:
        stage.evaluate()


def chat(bench: Bench) -> None:
    """A prompt of chat messages goes through the chat template, or is refused."""
    try:
        result = generated(bench, CHAT_ROWS[0])
    except (Exception, CheckFailed) as error:  # noqa: BLE001 - a refusal
        skip(f"it takes text prompts only: chat messages raise {type(error).__name__}")
    asked = result.engine.tokenizer.decode(result.engine.requests[0].token_ids) if result.engine.requests else ""
    if "'role'" in asked or '"role"' in asked:
        fail(
            "the engine was asked with the chat messages written out as a Python list",
            hint="engine.tokenizer.apply_chat_template(sample.prompt, tokenize=True, add_generation_prompt=True, return_dict=False)",
        )


def fields(bench: Bench) -> None:
    """What came with the prompt stays: index, group_index, label and metadata."""
    for result in plain(bench):
        given = fresh_sample(result.row, result.index)
        for sample in result.samples:
            for name in ("index", "group_index", "label"):
                was, now = getattr(given, name), getattr(sample, name)
                if was != now and not (name == "group_index" and len(result.samples) > 1):
                    fail(
                        f"{name} was {was!r}, and is {now!r} in what it returns",
                        hint="work on the sample that was given, or copy.deepcopy it; do not build one from its prompt alone",
                    )
            missing = [key for key in given.metadata if key not in sample.metadata]
            if missing:
                fail(f"metadata lost its keys {', '.join(missing)}", hint="add to sample.metadata, and leave what the data gave")


def prompt_tokens(bench: Bench) -> None:
    """sample.tokens is the prompt and then the response of response_length tokens, which sample.response has as text."""
    for result in plain(bench):
        for sample in result.samples:
            start = len(sample.tokens) - sample.response_length
            if start <= 0:
                fail(
                    f"tokens has {len(sample.tokens)} entries, all of them response; the prompt has to come first",
                    hint="sample.tokens = prompt token ids, then sample.append_response_tokens(...)",
                )
            text = result.engine.tokenizer.decode(sample.tokens[start:], skip_special_tokens=True)
            if text and not sample.response:
                fail(
                    f"{sample.response_length} response tokens and no text in sample.response",
                    hint="pass text=generation.text to append_response_tokens",
                )
            prompt = result.engine.tokenizer.decode(sample.tokens[:start], skip_special_tokens=True)
            if prompt and sample.response.startswith(prompt) and not text.startswith(prompt):
                fail(
                    f"sample.response begins with the prompt: {sample.response[:60]!r}",
                    hint="the response is what follows the prompt: pass text=generation.text to append_response_tokens",
                )


def tokens(bench: Bench) -> None:
    """Trained tokens are those that the engine generated; tool output and tokenised text are not trained."""
    asked = False
    for result in various(bench):
        for sample in result.samples if result.engine.answers else ():
            asked = True
            check_tokens(sample, result.engine)
    if not asked:
        skip("it asks nothing of the engine")


def mask(bench: Bench) -> None:
    """The mask fits the tokens: an answer of the engine is not trained but for its first or its last token."""
    looked = shifted = 0
    for result in plain(bench):
        for sample in result.samples:
            known, trained = covered(sample, result.engine.answers), set(trained_positions(sample))
            run = sorted(known)
            if len(run) < 3 or run[-1] - run[0] != len(run) - 1 or len(result.engine.answers) > 1:
                continue
            looked += 1
            shifted += set(run) - trained in ({run[0]}, {run[-1]})
    if not looked:
        skip("no response is one answer of the engine")
    if shifted == looked:
        fail(
            "every answer of the engine is trained but for one token at its end: the mask is shifted by one",
            hint="loss_mask has an entry for each response token, 1 where the engine generated it; append_response_tokens keeps it",
        )


def end(bench: Bench) -> None:
    """The end-of-sequence token that the engine generated stays in the response: the policy learns to stop."""
    looked = lost = 0
    for result in plain(bench):
        eos = result.engine.tokenizer.eos_token_id
        for sample in result.samples:
            for answer in result.engine.answers[-1:]:
                generated_ids = answer.generation.token_ids
                looked += _is_last(sample, answer) and generated_ids[-1] == eos
                lost += generated_ids[-1:] == [eos] and sample.tokens == answer.prompt + generated_ids[:-1]
    if lost:
        fail(
            "the response lacks the end-of-sequence token that the engine generated: the policy does not learn to stop",
            hint="append generation.token_ids as they are; generation.text has no special tokens",
        )
    if not looked:
        skip("no response ends with an end-of-sequence token")


def log_probs(bench: Bench) -> None:
    """Log-probs are the engine's, each with the token that it belongs to."""
    found = [check_log_probs(sample, result.engine) for result in various(bench) for sample in result.samples if result.engine.answers]
    if not any(found):
        skip("no sample has log-probs that the engine gave")


def sampling(bench: Bench) -> None:
    """Requests have the sampling parameters that it was given; lengths may be tighter and stops may be added."""
    asked, results = False, plain(bench)
    with contextlib.suppress(Exception, CheckFailed):  # reported by generate-evaluation
        results += plain(bench, evaluation=True)
    for result in results:
        for answer in _own_answers(result):
            asked = True
            _check_params(answer, result.params)
    if not asked:
        skip("no response came from the engine")


def _own_answers(result: Generated) -> list[Answer]:
    """The answers that are part of a returned sample; helpers may ask for other things as they like."""
    samples = result.samples
    return [answer for answer in result.engine.answers if any(sample.tokens[: len(answer.prompt)] == answer.prompt for sample in samples)]


def _check_params(answer: Answer, given: SamplingParams) -> None:
    hint = "pass sampling_params on: {**sampling_params, 'max_new_tokens': what is left}"
    for name, wanted in cast("dict[str, Any]", given).items():
        got = answer.params.get(name)
        if isinstance(wanted, list):  # stop, stop_token_ids
            lost = [stop for stop in cast("list[Any]", wanted) if stop not in (got or [])]
            if lost:
                fail(f"the engine was asked without {name} {lost[0]!r}, which it was given", hint=hint)
        elif name == "max_new_tokens":
            if got is None or got > wanted:
                fail(
                    f"the engine was asked for {'its default of' if got is None else got} tokens, and at most {wanted} were allowed",
                    hint=hint,
                )
        elif name == "min_new_tokens":
            if (got or 0) > wanted:
                fail(f"the engine was asked for at least {got} tokens, and it was given min_new_tokens {wanted}", hint=hint)
        elif got != wanted and name != "seed":
            how = f"without {name}" if got is None else f"with {name} {got}"
            fail(f"the engine was asked {how}, and it was given {wanted}", hint=hint)
        elif got is None:
            fail("the engine was asked without the seed that it was given", hint=hint)


def length(bench: Bench) -> None:
    """All generated tokens of a response together are at most max_new_tokens."""
    for result in [*various(bench, calls=8), generated(bench, usable_rows(bench)[0], policy=SpelledDigits(endless=True))]:
        limit = result.params.get("max_new_tokens", 0)
        for sample in result.samples:
            count = len(covered(sample, result.engine.answers))
            if count > limit:
                fail(
                    f"a response has {count} generated tokens, and at most {limit} were allowed (max_new_tokens)",
                    hint="ask each turn for what is left: sampling_params['max_new_tokens'] - sample.response_length",
                )


def status(bench: Bench) -> None:
    """The status follows the engine's finish_reason: COMPLETED for "stop", TRUNCATED for "length"."""
    row = usable_rows(bench)[0]
    for endless in (False, True):
        result = generated(bench, row, policy=SpelledDigits(endless=endless))
        if not result.engine.answers:
            skip("it asks nothing of the engine")
        reason = result.engine.answers[-1].generation.finish_reason
        for sample in result.samples:
            if reason == "length" and sample.status is Status.COMPLETED and _is_last(sample, result.engine.answers[-1]):
                fail("the status is completed where the engine said finish_reason 'length'; expected truncated", hint=_STATUS_HINT)
            if reason == "stop" and not endless and sample.status is Status.TRUNCATED and len(result.engine.answers) == 1:
                fail("the status is truncated where the engine said finish_reason 'stop'; expected completed", hint=_STATUS_HINT)


_STATUS_HINT = "{'stop': Status.COMPLETED, 'length': Status.TRUNCATED, 'abort': Status.ABORTED}[generation.finish_reason]"


def _is_last(sample: Sample, answer: Answer) -> bool:
    """Whether the sample ends with what was generated here; a text that was cut by hand does not."""
    tail = answer.generation.token_ids
    return bool(tail) and sample.tokens[-len(tail) :] == tail


def aborted(bench: Bench) -> None:
    """A response that the engine aborted is ABORTED, so that it is not trained."""

    async def abort_soon(stage: Stage) -> list[Sample]:
        task = asyncio.ensure_future(generate_one(stage, fresh_sample(stage.rows[0])))
        await asyncio.wait([task], timeout=0.15)
        stage.engine.latency = 0.0
        await stage.engine.abort_all()
        return await task

    with Stage(bench, rows=usable_rows(bench), latency=0.6, **TRAIN) as stage:
        samples = drive(abort_soon(stage), 5.0)
        answers = stage.engine.answers
    if not answers:
        skip("it asks nothing of the engine")
    stopped = [answer for answer in answers if answer.generation.finish_reason == "abort"]
    for sample in samples:
        ends = any(sample.tokens == answer.prompt + answer.generation.token_ids for answer in stopped) or answers[-1] in stopped
        if ends and sample.status in (Status.COMPLETED, Status.TRUNCATED):
            fail(f"the status is {sample.status.value} where the engine said finish_reason 'abort'; expected aborted", hint=_STATUS_HINT)


def engine_failure(bench: Bench) -> None:
    """An error of the engine goes through, and does not become an answer."""
    with Stage(bench, rows=usable_rows(bench)) as stage:
        stage.engine.failure = EngineError("the request failed")
        try:
            samples = drive(generate_one(stage, fresh_sample(stage.rows[0])))
        except (Exception, CheckFailed):  # noqa: BLE001 - any error will do
            return
    if not stage.engine.requests:
        skip("it asks nothing of the engine")
    for sample in samples:
        if sample.status in (Status.COMPLETED, Status.TRUNCATED):
            fail(
                f"the engine raised EngineError, and the sample came back {sample.status.value} with {sample.response_length} tokens",
                hint="let EngineError through: the request is tried again, and then counted as failed",
            )


CHECKS: tuple[Check, ...] = (
    Check("generate-train", HOOK, train),
    Check("generate-evaluation", HOOK, evaluation),
    Check("generate-chat", HOOK, chat),
    Check("generate-fields", HOOK, fields),
    Check("generate-prompt-tokens", HOOK, prompt_tokens),
    Check("generate-tokens", HOOK, tokens),
    Check("generate-mask", HOOK, mask),
    Check("generate-end", HOOK, end),
    Check("generate-log-probs", HOOK, log_probs),
    Check("generate-sampling", HOOK, sampling),
    Check("generate-length", HOOK, length),
    Check("generate-status", HOOK, status),
    Check("generate-abort", HOOK, aborted),
    Check("generate-engine-failure", HOOK, engine_failure),
    *generate_calls.CHECKS,
)
