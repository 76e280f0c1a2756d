"""The checks of rollout_sample_hook: a Sample or None, still aligned, in training and in evaluation."""

from __future__ import annotations

import asyncio
from typing import Any

from vime.plugins.loading import describe
from vime.sample import Sample, Status
from vime.testing.checks.base import Bench, Check, fail, skip
from vime.testing.factories import finished_sample

IDENTITY = ("index", "group_index", "rollout_id")


class SampleHookBench:
    """A freshly loaded sample hook, called as the scorer calls it."""

    def __init__(self, bench: Bench) -> None:
        self.config = bench.config()
        self.function = bench.function(bench.load(self.config))
        self.who = f"{self.function.label}: rollout_sample_hook"

    def pass_on(self, sample: Sample, *, evaluation: bool = False) -> Any:
        """What the hook returns, or the sample where that is None."""
        returned = asyncio.run(self.function.acall(args=self.config, sample=sample, rollout_id=2, evaluation=evaluation))
        return sample if returned is None else returned

    def usable(self) -> SampleHookBench:
        """Skip the check where an ordinary sample is not passed on, which sample-hook-returns-sample reports."""
        try:
            passed = [self.pass_on(sample) for sample in _samples()]
        except Exception:  # noqa: BLE001 - whatever a hook raises
            skip("it raises for an ordinary sample")
        if not all(isinstance(one, Sample) for one in passed):
            skip("it does not return a Sample")
        return self


def returns_sample(bench: Bench) -> None:
    """The hook returns a Sample to go on with, or None."""
    hook = SampleHookBench(bench)
    for sample in _samples():
        try:
            passed = hook.pass_on(sample)
        except Exception as error:  # noqa: BLE001 - whatever a hook raises
            fail(
                f"{hook.who} raised {describe(error)} for the response {sample.response[:20]!r}",
                "every generated sample passes through here",
            )
        if not isinstance(passed, Sample):
            where = f"sample {sample.index} (group {sample.group_index})"
            fail(
                f"{hook.who} returned {type(passed).__name__} for {where}; expected a Sample or None",
                "change the sample in place and return nothing",
            )


def aligned(bench: Bench) -> None:
    """Tokens, loss mask and log-probs still fit together afterwards."""
    hook = SampleHookBench(bench).usable()
    for sample in _samples():
        prompt = sample.tokens[: len(sample.tokens) - sample.response_length]
        passed = hook.pass_on(sample)
        length = passed.response_length
        if not 0 <= length <= len(passed.tokens):
            fail(f"{hook.who} left a sample with {len(passed.tokens)} tokens and response_length {length}", _ALIGN)
        for name in ("loss_mask", "rollout_log_probs"):
            values = getattr(passed, name)
            if values is not None and len(values) != length:
                fail(f"{hook.who} left a sample whose {name} has {len(values)} entries for a response of {length} tokens", _ALIGN)
        if passed.tokens[: len(passed.tokens) - length] != prompt:
            fail(
                f"{hook.who} left a sample with {len(passed.tokens) - length} tokens before its response; its prompt has {len(prompt)}",
                _ALIGN,
            )


_ALIGN = "response tokens are added by sample.append_response_tokens, and taken away from all of these fields together"


def keeps_identity(bench: Bench) -> None:
    """The sample keeps its index, its group and its rollout."""
    hook = SampleHookBench(bench).usable()
    for sample in _samples():
        before = {name: getattr(sample, name) for name in IDENTITY}
        passed = hook.pass_on(sample)
        for name, value in before.items():
            if getattr(passed, name) != value:
                fail(
                    f"{hook.who} changed {name} from {value!r} to {getattr(passed, name)!r}",
                    "a sample that is made anew needs these: copy.copy(sample)",
                )


def keeps_status(bench: Bench) -> None:
    """The status is still a final one: completed, truncated or failed."""
    hook = SampleHookBench(bench).usable()
    for sample in _samples():
        status: object = hook.pass_on(sample).status
        if status not in (Status.COMPLETED, Status.TRUNCATED, Status.FAILED):
            name = status.value if isinstance(status, Status) else repr(status)
            fail(f"{hook.who} left a sample with the status {name}", "a sample of another status is neither scored nor trained on")


def in_evaluation(bench: Bench) -> None:
    """The hook takes samples of an evaluation too, whose group and label may be missing."""
    hook = SampleHookBench(bench).usable()
    sample = finished_sample(0, "4", label=None)
    sample.group_index = None
    try:
        hook.pass_on(sample, evaluation=True)
    except Exception as error:  # noqa: BLE001 - whatever a hook raises
        fail(f"{hook.who} raised {describe(error)} for a sample of an evaluation", "it is called for evaluation samples as well")


def _samples() -> list[Sample]:
    empty = finished_sample(3, "", status=Status.TRUNCATED, group_index=1)
    masked = finished_sample(4, "call", group_index=1)
    masked.append_response_tokens(tokens=[5, 6, 7], trainable=False, text="4 4")
    return [
        finished_sample(1, "<think>2 + 2</think>4", group_index=0),
        finished_sample(2, "so we " * 20, status=Status.TRUNCATED, group_index=0),
        empty,
        masked,
    ]


HOOK = "rollout_sample_hook"
CHECKS: tuple[Check, ...] = (
    Check("sample-hook-returns-sample", HOOK, returns_sample),
    Check("sample-hook-aligned", HOOK, aligned),
    Check("sample-hook-keeps-identity", HOOK, keeps_identity),
    Check("sample-hook-keeps-status", HOOK, keeps_status),
    Check("sample-hook-in-evaluation", HOOK, in_evaluation),
)
