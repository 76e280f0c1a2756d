"""The loop that fills a training batch: fetch groups, generate, judge, replace what was refused, within a bound."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from vime.errors import ContractError, DataError, EngineError, VimeError
from vime.outputs import DynamicFilterOutput
from vime.rollout.ending import RolloutEnd
from vime.rollout.generate import GroupResult, generate_group, train_sampling_params
from vime.rollout.hook_guards import check_verdict
from vime.rollout.source_guards import check_fetched
from vime.rollout.unchanged import watched
from vime.sample import KEPT, Sample, Status, note_verdict
from vime.track.trace import Tracer

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.plugins.manager import HookFunction
    from vime.rollout.context import RolloutContext
    from vime.rollout.data_source import DataSource


@dataclass
class Collected:
    """Where every group of one rollout ended."""

    kept: list[list[Sample]] = field(default_factory=list)
    dropped: list[tuple[list[Sample], str]] = field(default_factory=list)
    """Refused groups with the reason."""
    failed: list[list[Sample]] = field(default_factory=list)
    surplus: list[list[Sample]] = field(default_factory=list)
    """Complete groups beyond the batch, returned to the buffer with their rewards."""
    aborted: list[list[Sample]] = field(default_factory=list)
    """Unfinished groups, returned to the buffer from scratch, or with their tokens under --partial-rollout."""
    samples_aborted: int = 0
    failure_reasons: Counter[str] = field(default_factory=Counter)
    fetch_rounds: int = 0
    fetched_groups: int = 0
    samples_generated: int = 0
    samples_from_buffer: int = 0
    samples_stale: int = 0
    """Samples that came out of the buffer too old to be trained; a data source may count others."""
    tokens: int = 0
    """Response tokens of the groups that have ended, without those that came out of the buffer."""
    retries: int = 0
    drop_reasons: Counter[str] = field(default_factory=Counter)

    def drop(self, group: list[Sample], reason: str) -> None:
        self.dropped.append((group, reason))
        self.drop_reasons[reason] += 1


async def judge(filters: list[HookFunction], config: RunConfig, group: list[Sample], tracer: Tracer | None = None) -> DynamicFilterOutput:
    """Ask every filter, in the user's order; the first refusal gives the verdict and its reason. A group is judged once."""
    if group and all(getattr(sample, KEPT, False) for sample in group):
        return DynamicFilterOutput(keep=True)
    before = [id(sample) for sample in group]
    for function in filters:
        of_samples = (tracer or Tracer()).of_samples(group, f"{function.plugin}/{function.hook}")
        with watched(config, function, group), of_samples:
            verdict = await function.acall(args=config, samples=group)
        if [id(sample) for sample in group] != before:
            order = sorted(map(id, group)) == sorted(before)
            change = "put them in another order" if order else f"left {len(group)} in it"
            raise ContractError(
                f"{function.label}: dynamic_sampling_filter was shown a group of {len(before)} samples and {change}",
                hint="return a verdict only; to leave single samples out, set sample.remove_sample in rollout_sample_filter",
            )
        output = check_verdict(function.label, function.plugin, verdict, group)
        note_verdict(group, function.hook, function.plugin, "keep" if output.keep else f"drop: {output.reason}")
        if not output.keep:
            return output
    return DynamicFilterOutput(keep=True)


def fetch(context: RolloutContext, source: DataSource, count: int, seen: dict[int, Sample]) -> list[list[Sample]]:
    """At most `count` groups of the data source, checked; `seen` is as for `check_fetched`."""
    maker = context.plugins.claimed("make_data_source")
    who = f"the data source {type(source).__name__}" + (f" of {maker.label}" if maker is not None else "")
    try:
        groups = source.get_samples(count)
    except VimeError:
        raise
    except Exception as error:
        error.add_note(f"in get_samples of {who}")
        raise
    check_fetched(who, groups, count, context.config.n_samples_per_prompt, seen)
    return list(groups)


class DynamicSampling:
    """One rollout's worth of collecting. Used once.

    `progress(collected)` is called whenever a group has been judged.
    """

    def __init__(
        self, context: RolloutContext, source: DataSource, rollout_id: int, progress: Callable[[Collected], None] | None = None
    ) -> None:
        config = context.config
        self.context = replace(context, end=RolloutEnd())
        self.source, self.rollout_id = source, rollout_id
        self.progress = progress or (lambda _: None)
        self.filters = context.plugins.implementations("dynamic_sampling_filter")
        self.params = train_sampling_params(config)
        self.target = config.rollout_batch_size
        self.wave = config.over_sampling_batch_size or config.rollout_batch_size
        self.bound = config.dynamic_sampling_max_rounds * max(self.target, self.wave)
        self.collected = Collected()
        self.running: dict[asyncio.Task[GroupResult], int] = {}
        """What is in flight, with its number in the order of submission."""
        self.completed: list[asyncio.Task[GroupResult]] = []
        """Those of `running` that are complete, in that order; `wake` is set when there is another one."""
        self.wake = asyncio.Event()
        self.seen: dict[int, Sample] = {}
        """Every sample that was fetched, by identity; the groups above keep them alive."""
        self.submitted = 0
        self.exhausted = False

    async def collect(self) -> Collected:
        """Fill the batch, then return what is left over to the source. Kept groups are sorted by sample index."""
        try:
            while len(self.collected.kept) < self.target:
                self._fetch_while_short()
                if not self.running:
                    break
                completed = await self._next_completed()
                for position, task in enumerate(completed, start=1):
                    await self._settle(task.result(), coming=len(completed) - position + len(self.running))
            await self._stop_running()
        except BaseException:
            await self._abandon()
            raise
        if len(self.collected.kept) < self.target:
            when_exhausted(self.collected, self.context.config, self.bound)
        self.collected.kept.sort(key=lambda group: min(sample.index or 0 for sample in group))
        return self.collected

    def _missing(self) -> int:
        return self.target - len(self.collected.kept)

    def _fetch_while_short(self) -> None:
        """Submit another wave whenever fewer groups are in flight than are missing, until the bound."""
        while not self.exhausted and len(self.running) < self._missing():
            count = min(self.wave, self.bound - self.collected.fetched_groups)
            groups = fetch(self.context, self.source, count, self.seen) if count > 0 else []
            if not groups:
                self.exhausted = True
                return
            self.collected.fetch_rounds += 1
            self.collected.fetched_groups += len(groups)
            for group in groups:
                self.collected.samples_from_buffer += sum(sample.status is not Status.PENDING for sample in group)
                task = asyncio.ensure_future(generate_group(self.context, group, self.params, rollout_id=self.rollout_id))
                self.running[task] = self.submitted = self.submitted + 1
                task.add_done_callback(self._note_completed)

    def _note_completed(self, task: asyncio.Task[GroupResult]) -> None:
        self.completed.append(task)
        failed = task.cancelled() or task.exception() is not None
        if failed or not self.context.deterministic or len(self.completed) == len(self.running):
            self.wake.set()

    async def _next_completed(self) -> list[asyncio.Task[GroupResult]]:
        """In deterministic mode all that was submitted, in that order; else what is complete, in that order.

        The cost is that of what is complete, whatever the number in flight.
        """
        await self.wake.wait()
        self.wake.clear()
        completed = sorted(self.completed, key=self.running.__getitem__)
        self.completed = []
        for task in completed:
            task.result()  # raises what the first of them raised
        for task in completed:
            del self.running[task]
        return completed

    async def _settle(self, result: GroupResult, coming: int) -> None:
        """Put one finished group where it belongs: kept, dropped, failed, surplus. `coming` groups are still to be judged."""
        collected = self.collected
        collected.retries += result.retries
        collected.samples_generated += result.generated
        collected.tokens += result.tokens
        if result.failed:
            collected.failed.append(result.group)
            collected.failure_reasons.update(result.failure_reasons)
        elif any(slot.is_unfinished for slot in result.slots):
            collected.samples_aborted += len(result.group)
            collected.aborted.append(result.requeued(partial=self.context.config.partial_rollout))
        elif self._missing() <= 0:
            collected.surplus.append(result.group)
        else:
            verdict = await judge(self.filters, self.context.config, result.group, self.context.tracer)
            if verdict.keep or (verdict.keep_when_insufficient and coming < self._missing()):
                collected.kept.append(result.group)
            else:
                collected.drop(result.group, verdict.reason or "refused")
        self.progress(collected)

    async def _stop_running(self) -> None:
        """Abort what is in flight; unfinished groups go back to the buffer, complete ones too, with their rewards."""
        self.context.end.reached = True
        if self.running:
            await self.context.engine.abort_all()
            await asyncio.wait(self.running)
            tasks = list(self.running)
            self.running.clear()
            for task in tasks:
                await self._settle(task.result(), coming=0)
        returned = self.collected.aborted + self.collected.surplus
        if returned:
            self.source.add_samples(returned)

    async def _abandon(self) -> None:
        """After an error or an interrupt: stop everything and judge nothing; the run goes back to its last boundary."""
        self.context.end.reached = True
        tasks = list(self.running)
        if tasks:
            with contextlib.suppress(EngineError):
                await self.context.engine.abort_all()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def when_exhausted(collected: Collected, config: RunConfig, bound: int) -> None:
    """The batch is not full and nothing more may be fetched: error, fill up, or go on with less."""
    policy, target = config.on_exhausted, config.rollout_batch_size
    if policy == "fallback":
        missing = target - len(collected.kept)
        filling, collected.dropped = collected.dropped[:missing], collected.dropped[missing:]
        collected.kept += [group for group, _ in filling]
        collected.drop_reasons = Counter(reason for _, reason in collected.dropped)
    if len(collected.kept) >= target or (policy == "underfill" and collected.kept):
        return
    reasons = ", ".join(f"{reason} {count}" for reason, count in collected.drop_reasons.most_common()) or "none"
    counts = f"{len(collected.kept)} of {target} groups kept, "
    counts += f"{len(collected.dropped)} dropped ({reasons}), {len(collected.failed)} failed"
    counts += "".join(f"; {count} x {reason}" for reason, count in collected.failure_reasons.most_common(3))
    if collected.fetched_groups < bound:
        raise DataError(
            f"the data source ran out after {collected.fetched_groups} groups: {counts}",
            hint="add prompts, lower --rollout-batch-size, or use --on-exhausted underfill",
        )
    loosen = "loosen the filter" if collected.dropped else "see to what fails (--on-reward-error raise shows the first error)"
    raise ContractError(
        f"dynamic sampling gave up after {collected.fetch_rounds} fetches of {collected.fetched_groups} groups: {counts}",
        hint=f"{loosen}, raise --dynamic-sampling-max-rounds, or choose --on-exhausted fallback|underfill",
    )
