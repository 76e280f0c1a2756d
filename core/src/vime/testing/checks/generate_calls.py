"""Checks of `custom_generate` as one call among many: siblings, state, randomness, continued samples, the event loop and its end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from vime.api import Sample, Status, rollouts
from vime.testing.checks.base import Bench, Check, CheckFailed, fail, skip
from vime.testing.checks.generate_stage import (
    Generated,
    fresh_sample,
    generated,
    generated_many,
    one_by_one,
    params_for,
    usable_rows,
)
from vime.testing.checks.loop_watch import Phase, Stalls, watch
from vime.testing.checks.rollout_loop import cancelled, drive
from vime.testing.checks.rollout_stage import Stage

HOOK = "custom_generate"


def siblings(bench: Bench) -> None:
    """Samples of one rollout share a rollout_id that no other rollout has, and no list or dict."""
    results = [result for result in generated_many(bench, usable_rows(bench)[:3]) if len(result.samples) > 1]
    if not results:
        skip("it returns one sample for a prompt")
    used: dict[int | None, int] = {}
    for result in results:
        rollout_id = result.samples[0].rollout_id
        if rollout_id in used:
            fail(
                f"the rollouts of samples {used[rollout_id]} and {result.index} both have the rollout_id {rollout_id}",
                hint="sibling.rollout_id = sample.index, which no other sample has",
            )
        used[rollout_id] = result.index
        if len(rollouts(result.samples)) != 1 or len({id(sample) for sample in result.samples}) < len(result.samples):
            fail("it returns the same Sample object twice", hint="copy.deepcopy(sample) for each sibling")
        for name in ("tokens", "loss_mask", "rollout_log_probs", "metadata"):
            values = [value for sample in result.samples if (value := getattr(sample, name)) is not None]
            if len({id(value) for value in values}) < len(values):
                fail(
                    f"siblings share one {name} object: what is appended to one changes the other",
                    hint="copy.deepcopy(sample) for each sibling",
                )


def deterministic(bench: Bench) -> None:
    """The same prompt, engine and seed give the same response."""
    if not bench.deterministic:
        skip("declared as not deterministic")
    rows, found = usable_rows(bench)[:2], list[dict[int, list[list[int]]]]()
    for seed in (1, 2):
        random.seed(seed)  # what it takes from the global generator shows
        found.append(_tokens(one_by_one(bench, rows)))
    one, other = found
    for index, tokens_of in one.items():
        if tokens_of != other[index]:
            fail(
                "the same prompt with the same seed gives other tokens",
                hint="seed what is random from sampling_params['seed'] or sample.index",
            )


def leftovers(bench: Bench) -> None:
    """It leaves no task behind, and the random numbers of others alone."""
    drawn: list[float] = []

    async def watched(stage: Stage) -> list[str]:
        before = asyncio.all_tasks()
        await generate_one(stage, fresh_sample(stage.rows[0]))
        drawn.append(random.random())
        await asyncio.wait([asyncio.ensure_future(asyncio.sleep(0.05))])
        left = asyncio.all_tasks() - before
        return sorted({getattr(task.get_coro(), "__qualname__", "?") for task in left})

    state = random.getstate()
    try:
        for seed in (1, 2):
            with Stage(bench, rows=usable_rows(bench)) as stage:
                random.seed(seed)
                left = drive(watched(stage))
                if left:
                    fail(f"tasks still there after it returned: {', '.join(left)}", hint="await what was started: asyncio.TaskGroup does")
    finally:
        random.setstate(state)
    if drawn[0] == drawn[1]:
        fail("it seeds the random numbers of the module `random`", hint="use a generator of your own: random.Random(sample.index)")


def concurrent(bench: Bench) -> None:
    """Calls that run at the same time do not disturb each other."""
    if not bench.deterministic:
        skip("declared as not deterministic")
    rows = usable_rows(bench)[:5]
    alone = _tokens(one_by_one(bench, rows))
    if alone != _tokens(one_by_one(bench, rows)):
        skip("it is not deterministic, see generate-deterministic")
    together = _tokens(generated_many(bench, rows))
    for index, tokens_of in alone.items():
        if tokens_of != together[index]:
            fail(
                f"sample {index} has other tokens when {len(rows)} samples are generated at the same time",
                hint="keep what belongs to one sample in local variables: self and module globals are shared by all calls",
            )


def _tokens(results: Sequence[Generated]) -> dict[int, list[list[int]]]:
    return {result.index: [sample.tokens for sample in result.samples] for result in results}


def partial(bench: Bench) -> None:
    """A sample that was begun before is continued, or started anew; old and new tokens are not mixed up."""
    row = usable_rows(bench)[0]
    first = generated(bench, row)
    if len(first.samples) != 1 or not first.engine.answers or first.samples[0].response_length < 2:
        skip("only a rollout of one sample with a response from the engine is continued")
    sample = first.samples[0]
    prompt = sample.tokens[: len(sample.tokens) - sample.response_length]
    try:
        result = generated(bench, row, sample=_begun(sample, len(prompt), first), partial_rollout=True)
    except (Exception, CheckFailed) as error:  # noqa: BLE001 - a refusal
        skip(f"it does not take a sample that was begun before ({type(error).__name__}): use it without --partial-rollout")
    for continued in result.samples:
        start = len(continued.tokens) - continued.response_length
        if continued.tokens[: max(start, 0)] != prompt:
            wrong = f"has {start} tokens before its response of {continued.response_length}, and its prompt has {len(prompt)}"
            if not bench.subject.args.get("partial_rollout"):
                skip(f"a sample that was begun before {wrong}: use it without --partial-rollout")
            fail(f"a sample that was begun before {wrong}", hint=_PARTIAL)


def _begun(sample: Sample, start: int, result: Generated) -> Sample:
    """The sample as it was when half of its response was there."""
    part, keep = fresh_sample(result.row, result.index), sample.response_length // 2
    part.tokens, part.response_length, part.status = sample.tokens[: start + keep], keep, Status.ABORTED
    part.response = result.engine.tokenizer.decode(part.tokens[start:], skip_special_tokens=True)
    part.rollout_log_probs = sample.rollout_log_probs[:keep] if sample.rollout_log_probs is not None else None
    part.loss_mask = sample.loss_mask[:keep] if sample.loss_mask is not None else None
    return part


_PARTIAL = "continue sample.tokens where sample.response_length > 0, or call sample.reset_for_generation() first"


def blocking(bench: Bench) -> None:
    """It lets the event loop turn, so that other samples are generated meanwhile."""
    with Stage(bench, rows=usable_rows(bench)) as stage:
        drive(generate_one(stage, fresh_sample(stage.rows[0])))  # imports and caches of the first call
        home = (getattr(stage.function.function, "__module__", None) or "").partition(".")[0]

        async def watched(phase: Phase) -> None:
            for index, row in enumerate(stage.rows[:3], 1):
                phase(f"{index}")
                await generate_one(stage, fresh_sample(row, index))

        if stage.function.is_async:
            found = sorted(watch(watched, home, limit=5.0).values(), key=_held) or [Stalls()]
            middle = found[len(found) // 2]
            if _held(middle) >= STALL_SECONDS:
                where, line = middle.place
                fail(
                    f"it holds up the event loop: it waits or computes at {where}",
                    hint=f"{line}: all other samples wait meanwhile: await an async client, or await asyncio.to_thread(function, ...)",
                )


STALL_SECONDS = 0.05
"""What one call may keep the event loop for, asleep; twice that of processor time."""


def _held(stalls: Stalls) -> float:
    return max(stalls.asleep, stalls.working / 2)


def cancellation(bench: Bench) -> None:
    """When the run is interrupted, it ends at once and leaves no request and no task behind."""
    with Stage(bench, rows=usable_rows(bench), latency=60.0) as stage:
        if not stage.function.is_async:
            skip("it is synchronous: it runs in a thread, which cannot be cancelled")
        if not drive(cancelled(generate_one(stage, fresh_sample(stage.rows[0])), lambda: stage.engine.in_flight, "custom_generate")):
            skip("it asks nothing of the engine")


async def generate_one(stage: Stage, sample: Sample) -> list[Sample]:
    """One call as the run makes it, with the sampling parameters of training."""
    return await stage.generate(sample, params_for(stage, sample.index or 0))


CHECKS: tuple[Check, ...] = (
    Check("generate-siblings", HOOK, siblings),
    Check("generate-deterministic", HOOK, deterministic),
    Check("generate-leftovers", HOOK, leftovers),
    Check("generate-concurrent", HOOK, concurrent),
    Check("generate-partial", HOOK, partial),
    Check("generate-blocking", HOOK, blocking),
    Check("generate-cancellation", HOOK, cancellation),
)
