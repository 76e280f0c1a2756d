"""Checks of `generate_rollout`: training, evaluation, and what has to hold while it works."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from vime.api import ConfigError, Sample, Status
from vime.errors import EngineDeadError
from vime.rollout.unchanged import Snapshot
from vime.testing.checks.base import Bench, Check, CheckFailed, CheckSkipped, fail, skip
from vime.testing.checks.rollout_engine import SpelledDigits, check_log_probs, check_tokens
from vime.testing.checks.rollout_loop import Turns, cancelled, drive
from vime.testing.checks.rollout_stage import Stage, working_options

HOOK = "generate_rollout"
SHAPES = ((2, 2), (3, 1), (1, 4))
"""(rollout_batch_size, n_samples_per_prompt)"""


def train(bench: Bench) -> None:
    """A training rollout has rollout_batch_size groups of n_samples_per_prompt finished, rewarded, aligned samples."""
    refusals: list[ConfigError] = []
    for options in _shapes(bench):
        try:
            with Stage(bench, **options) as stage:
                for rollout_id in range(2):
                    stage.train(rollout_id)
        except ConfigError as error:
            refusals.append(error)
    if len(refusals) == len(_shapes(bench)):
        skip(f"it refuses the configuration of the checks: {refusals[0].message}; give one that it takes as args")


def _shapes(bench: Bench) -> list[dict[str, Any]]:
    """Several batch shapes, as far as the author leaves them open, and one for supervised fine-tuning."""
    given = bench.subject.args
    sizes = [
        {"rollout_batch_size": groups, "n_samples_per_prompt": samples}
        for groups, samples in SHAPES
        if {"rollout_batch_size", "n_samples_per_prompt"}.isdisjoint(given)
    ] or [{}]
    return [*sizes, {"loss_type": "sft_loss", "n_samples_per_prompt": 1}] if "loss_type" not in given else sizes


def evaluation(bench: Bench) -> None:
    """With evaluation=True it returns, by dataset, equally long lists of rewards, truncated and samples."""
    _evaluated(bench)


def _evaluated(bench: Bench, look: Callable[[Stage, Any], None] = lambda stage, output: None) -> None:
    """Evaluate, and let `look` see the result. Skips for a function that says that it makes training rollouts only."""
    with Stage(bench, **working_options(bench)) as stage:
        function = stage.function
        own = stage.config.eval_function_path is not None
        if "evaluation" not in function.params and not own:
            fail(
                "generate_rollout takes no `evaluation`, and is called for every evaluation too",
                hint="take `evaluation` and return a RolloutFnEvalOutput for it, or raise ConfigError if it makes training rollouts only",
            )
        try:
            look(stage, stage.evaluate())
        except (ConfigError, NotImplementedError) as error:
            message = error.message if isinstance(error, ConfigError) else str(error)
            if not message:
                fail(
                    "an evaluation raises NotImplementedError without a word",
                    hint="say what to do: ConfigError('...', hint='--eval-function-path vime.rollout.vllm_rollout.generate_rollout')",
                )
            skip(f"it refuses evaluations, and says so: {message}")


def _if_evaluated(bench: Bench, look: Callable[[Stage, Any], None]) -> None:
    """As `_evaluated`, for checks of details: they skip where `rollout-evaluation` fails."""
    outputs: list[Any] = []
    try:
        _evaluated(bench, lambda stage, output: outputs.append((stage, output)))
    except CheckSkipped:
        raise
    except (Exception, CheckFailed):  # noqa: BLE001 - reported by rollout-evaluation
        skip("there is no evaluation to look at, see rollout-evaluation")
    look(*outputs[0])


def eval_datasets(bench: Bench) -> None:
    """An evaluation answers for every dataset of args.eval_datasets, under its name."""

    def look(stage: Stage, output: Any) -> None:
        wanted = [dataset.name for dataset in stage.config.eval_datasets]
        missing = [name for name in wanted if name not in output.data]
        if missing == wanted and any(data["samples"] for data in output.data.values()):
            skip(f"it evaluates data of its own ({', '.join(output.data)}) and none of args.eval_datasets")
        if missing:
            fail(
                f"the evaluation has {', '.join(output.data) or 'nothing'}, and lacks {', '.join(missing)} of args.eval_datasets",
                hint="go over args.eval_datasets and use dataset.name as the key",
            )
        if not any(data["samples"] for data in output.data.values()):
            fail(
                "the evaluation has no sample at all, and every dataset of args.eval_datasets has rows",
                hint="generate for the rows of args.eval_datasets, or raise ConfigError if it makes training rollouts only",
            )
        for name, data in output.data.items():
            odd = next((value for value in data["truncated"] if not isinstance(value, bool | int)), None)
            if odd is not None:
                fail(f"dataset {name!r}: truncated holds {odd!r}; expected True or False for each sample")

    _if_evaluated(bench, look)


def eval_data(bench: Bench) -> None:
    """An evaluation takes nothing out of the training data."""

    def look(stage: Stage, output: Any) -> None:
        state = getattr(stage.source, "sample_group_index", 0)
        if state:
            fail(
                f"the evaluation took {state} groups out of the training data",
                hint="evaluate the rows of args.eval_datasets; data_source is for training",
            )

    _if_evaluated(bench, look)


def groups(bench: Bench) -> None:
    """The samples of a group answer one prompt: they keep their index, and share a group_index that no other group has."""
    with Stage(bench, **working_options(bench)) as stage:
        result = stage.train()
        from_data = getattr(stage.source, "sample_index", 0) > 0
    if from_data and any(sample.index is None for group in result.groups for sample in group):
        fail("samples come back without the index that the data source gave them", hint="fill the samples of data_source.get_samples")
    seen: dict[int, int] = {}
    for position, group in enumerate(result.groups):
        indices = {sample.group_index for sample in group}
        if len(indices) > 1:
            fail(
                f"group {position} mixes samples of the groups {', '.join(sorted(map(str, indices)))}",
                hint="keep the groups that data_source.get_samples gives: rewards are compared within a group",
            )
        index = indices.pop()
        if index in seen:
            fail(f"groups {seen[index]} and {position} both have the group_index {index}", hint="every group has a group_index of its own")
        if index is not None:
            seen[index] = position


def fresh(bench: Bench) -> None:
    """Every rollout has samples of its own."""
    with Stage(bench, **working_options(bench)) as stage:
        first = stage.train(0)
        second = stage.train(1)
    old = {id(sample) for group in first.groups for sample in group}
    if all(id(sample) in old for group in second.groups for sample in group):
        fail("rollout 1 returned the samples of rollout 0 again", hint="fetch new groups for each rollout; keep no batch between calls")


def response(bench: Bench) -> None:
    """A response has its text too, which rewards, filters and logs read."""
    for sample, stage in _samples(bench):
        text = stage.engine.tokenizer.decode(sample.tokens[len(sample.tokens) - sample.response_length :], skip_special_tokens=True)
        if text and not sample.response:
            fail(
                f"sample {sample.index} has {sample.response_length} response tokens and no text in sample.response",
                hint="pass text=generation.text to append_response_tokens",
            )


def tokens(bench: Bench) -> None:
    """Trained tokens are those that the engine generated, and never text that was tokenised again."""
    generated = False
    for sample, stage in _samples(bench):
        if stage.engine.answers:
            generated = True
            check_tokens(sample, stage.engine)
    if not generated:
        skip("it asks nothing of the engine")


def log_probs(bench: Bench) -> None:
    """Log-probs are the engine's, each with the token that it belongs to."""
    found = [check_log_probs(sample, stage.engine) for sample, stage in _samples(bench) if stage.engine.answers]
    if not any(found):
        skip("no sample has log-probs that the engine gave")


def status(bench: Bench) -> None:
    """A response that was cut off at the length limit is TRUNCATED."""
    looked = False
    for sample, stage in _samples(bench, endless=True):
        cut = [answer for answer in stage.engine.answers if answer.generation.finish_reason == "length"]
        mine = [answer for answer in cut if answer.prompt + answer.generation.token_ids == sample.tokens]
        looked = looked or bool(mine)
        if mine and sample.status is Status.COMPLETED:
            fail(
                f"sample {sample.index} is COMPLETED, and its last tokens ended with finish_reason 'length'",
                hint="sample.status = Status.TRUNCATED if generation.finish_reason == 'length' else Status.COMPLETED",
            )
    if not looked:
        skip("no response ended at a length limit")


def length(bench: Bench) -> None:
    """No response has more than rollout_max_response_len generated tokens."""
    for sample, stage in _samples(bench, endless=True):
        count, limit = sample.effective_response_length, stage.config.rollout_max_response_len
        if stage.engine.answers and count > limit:
            fail(
                f"sample {sample.index} has {count} trained tokens, more than rollout_max_response_len ({limit})",
                hint="max_new_tokens = args.rollout_max_response_len - sample.response_length",
            )


def _samples(bench: Bench, *, endless: bool = False) -> list[tuple[Sample, Stage]]:
    """The samples of one training rollout on an engine that spells numbers digit by digit."""
    options = working_options(bench)
    try:
        with Stage(bench, policy=SpelledDigits(endless=endless), **options) as stage:
            result = stage.train()
    except (Exception, CheckFailed):  # noqa: BLE001 - reported by the check whose subject it is
        skip("there is no training rollout to look at: it fails for other responses than random ones")
    return [(sample, stage) for group in result.groups for sample in group]


def arguments(bench: Bench) -> None:
    """The configuration stays as it is."""
    with Stage(bench, **working_options(bench)) as stage:
        before = Snapshot([], stage.config)
        stage.train()
        changed = before.changes("custom_rm")
    if changed:
        fail(f"it changed its args: {changed[0]}", hint="args is shared by the whole run: work on a copy")


def deterministic(bench: Bench) -> None:
    """The same data, engine and seed give the same rollout."""
    if not bench.deterministic:
        skip("declared as not deterministic")
    options, seen = working_options(bench), list[list[tuple[Any, ...]]]()
    for seed in (1, 5):
        random.seed(seed)  # what it takes from the global generator shows: these two shuffle even two items differently
        with Stage(bench, **options) as stage:
            result = stage.train()
        seen.append([(sample.index, sample.tokens, sample.reward) for group in result.groups for sample in group])
    for place, (one, other) in enumerate(zip(*seen, strict=False)):
        if one != other:
            what = "order of the samples" if one[0] != other[0] else "tokens" if one[1] != other[1] else "reward"
            fail(
                f"two rollouts from the same state differ: {what} of sample {one[0]} (place {place})",
                hint="seed from args.rollout_seed and rollout_id, and return groups in the order of their indices",
            )


def data_ends(bench: Bench) -> None:
    """Where the data source has ended, it raises an error or returns fewer groups, and does not ask for ever."""
    options = working_options(bench)
    with Stage(bench, **options) as stage:
        asked, real = _Asked(), stage.source.get_samples

        def few(num_samples: int) -> list[list[Sample]]:
            asked.times += 1
            if asked.times > 200:
                raise _StillAskingError
            given = real(min(num_samples, asked.left))
            asked.left -= len(given)
            return given

        stage.source.get_samples = few
        try:
            result = drive(stage.runner.train(0), 5.0)
        except _StillAskingError:
            fail(
                "it asked an empty data source 200 times for more",
                hint="stop when get_samples returns fewer groups than were asked for: raise DataError, or return what there is",
            )
        except Exception:  # noqa: BLE001 - any error will do
            return
        if not asked.times:
            skip("it takes nothing from the data source")
        ids = [group[0].group_index for group in result.groups]
        if len(set(ids)) < len(ids):
            fail(f"the data source had 1 group left, and the rollout has {len(ids)}: it used the same prompt twice")


class _Asked:
    times = 0
    left = 1


class _StillAskingError(Exception):
    """Raised out of get_samples to end a loop."""


def data_lost(bench: Bench) -> None:
    """Groups that it takes from the data source are generated, returned or given back."""
    with Stage(bench, **working_options(bench)) as stage:
        taken, back, real_get, real_add = list[list[Sample]](), list[list[Sample]](), stage.source.get_samples, stage.source.add_samples

        def get_samples(num_samples: int) -> list[list[Sample]]:
            given = real_get(num_samples)
            taken.extend(given)
            return given

        def add_samples(samples: list[list[Sample]]) -> None:
            back.extend(samples)
            real_add(samples)

        stage.source.get_samples, stage.source.add_samples = get_samples, add_samples
        result = stage.train()
        kept = {sample.group_index for group in [*result.groups, *back] for sample in group}
        if None in kept:
            skip("its samples have no group_index to follow them by")
        lost = [group for group in taken if group[0].group_index not in kept and all(_untouched(sample) for sample in group)]
    if lost:
        fail(
            f"{len(lost)} of {len(taken)} groups were taken from the data source and neither generated, returned nor given back",
            hint="get_samples counts groups, not samples; give back with data_source.add_samples what is not used",
        )


def _untouched(sample: Sample) -> bool:
    return sample.status is Status.PENDING and not sample.response_length and sample.reward is None


def engine_failure(bench: Bench) -> None:
    """Where every request fails, it raises the error and returns no batch."""
    with Stage(bench, **working_options(bench)) as stage:
        stage.engine.failure = EngineDeadError("the engine is gone")
        try:
            stage.train()
        except (Exception, CheckFailed):  # noqa: BLE001 - any error will do
            return
        if not stage.engine.requests:
            skip("it asks nothing of the engine")
        fail(
            f"all {len(stage.engine.requests)} requests failed, and the rollout returned a batch all the same",
            hint="let EngineError through, or set Status.FAILED under --on-reward-error drop",
        )


def blocking(bench: Bench) -> None:
    """An async rollout function lets the event loop turn."""
    with Stage(bench, **working_options(bench)) as stage:
        if not stage.function.is_async:
            skip("it is synchronous, and so runs in a thread of its own")
        drive(stage.runner.train(0))  # imports and caches of the first call
        turns = Turns()

        async def watched() -> None:
            async with turns:
                await stage.runner.train(1)

        drive(watched())
    turns.check()


def cancellation(bench: Bench) -> None:
    """When the run is interrupted, it ends at once and leaves no request and no task behind."""
    with Stage(bench, **working_options(bench)) as stage:
        if not stage.function.is_async:
            skip("it is synchronous: it runs in a thread, which cannot be cancelled")
        stage.engine.latency = 60.0
        if not drive(cancelled(stage.runner.train(0), lambda: stage.engine.in_flight, "the rollout")):
            skip("it asks nothing of the engine")


CHECKS: tuple[Check, ...] = (
    Check("rollout-train", HOOK, train),
    Check("rollout-evaluation", HOOK, evaluation),
    Check("rollout-eval-datasets", HOOK, eval_datasets),
    Check("rollout-eval-data", HOOK, eval_data),
    Check("rollout-groups", HOOK, groups),
    Check("rollout-fresh", HOOK, fresh),
    Check("rollout-response", HOOK, response),
    Check("rollout-tokens", HOOK, tokens),
    Check("rollout-log-probs", HOOK, log_probs),
    Check("rollout-status", HOOK, status),
    Check("rollout-length", HOOK, length),
    Check("rollout-args", HOOK, arguments),
    Check("rollout-deterministic", HOOK, deterministic),
    Check("rollout-data-ends", HOOK, data_ends),
    Check("rollout-data-lost", HOOK, data_lost),
    Check("rollout-engine-failure", HOOK, engine_failure),
    Check("rollout-blocking", HOOK, blocking),
    Check("rollout-cancellation", HOOK, cancellation),
)
