"""The stream of finished groups of `--pipeline continuous`: generation that never stops, with back-pressure.

Legend: B groups of a batch (rollout_batch_size), r the number of the batch that is taken next, v the rollouts whose
weights the engine has, d the largest staleness (max_staleness).

The rule of AReaL's staleness control (Fu et al. 2025, arXiv:2505.24298): a new group is begun as long as

    r B + groups in flight + groups that wait <= (v + d + 1) B

Refused and failed groups do not count, so each is replaced. The rule alone does not bound the age of what is trained: a
slow group may be overtaken by younger ones again and again. A group begun at v has to be in the batch v + d at the
latest, so a batch takes the oldest groups, and waits for those in flight as long as those that are left would not fit into
the batches that they have to be in. The rule sees to it that they fit before a batch is taken, so nothing has to be
thrown away for its age but what comes so old out of the buffer.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vime.errors import EngineError
from vime.rollout.data_source import RolloutDataSource, plain_sample
from vime.rollout.dynamic_sampling import Collected, fetch, judge, when_exhausted
from vime.rollout.ending import RolloutEnd
from vime.rollout.generate import GroupResult, generate_group, train_sampling_params
from vime.sample import KEPT, Sample, Status

if TYPE_CHECKING:
    from vime.rollout.context import RolloutContext
    from vime.rollout.data_source import DataSource


@dataclass(eq=False)
class Flight:
    """One group from the data source until a batch takes it, or it is refused."""

    number: int
    """In the order of submission."""
    age: int
    """The rollouts that were finished when its oldest token was made, or could be."""
    members: list[Sample]
    """The samples as they were handed out; hooks may put others into their places."""
    plain: list[dict[str, Any]]
    """What they were then, for a checkpoint."""
    from_buffer: int
    result: GroupResult | None = None


class GroupStream:
    """Collects groups for one batch after another. All methods run in the event loop of the run.

    `progress(collected)` is called whenever a group has been judged; `kept` has those that wait.
    """

    def __init__(self, context: RolloutContext, source: DataSource, *, first: int, last: int) -> None:
        """The batches are those of the rollouts `first` to `last` - 1."""
        config = context.config
        assert config.max_staleness is not None, "the rules give a pipeline one"
        self.context = replace(context, end=RolloutEnd())
        self.source, self.last = source, last
        self.progress: Callable[[Collected], object] = lambda _: None
        self.filters = context.plugins.implementations("dynamic_sampling_filter")
        self.params = train_sampling_params(config)
        self.target, self.staleness = config.rollout_batch_size, config.max_staleness
        self.bound = config.dynamic_sampling_max_rounds * max(self.target, config.over_sampling_batch_size or 0)
        self.batch = first
        """The batch that is taken next (r)."""
        self.version = first
        """The rollouts whose weights the engine has (v)."""
        self.collected = Collected()
        """Where the groups ended that were refused or failed since the last batch was taken."""
        self.running: dict[asyncio.Task[GroupResult], Flight] = {}
        self.waiting: list[Flight] = []
        """The oldest first."""
        self._ended: list[Flight] = []
        """Those of `collected`: a run that goes on from a checkpoint begins them anew, since their batch was not made."""
        self._running_ages: Counter[int] = Counter()
        self._completed: list[asyncio.Task[GroupResult]] = []
        self._seen: dict[int, Sample] = {}
        self._submitted = 0
        self._is_dry = False
        self._wake, self._changed = asyncio.Event(), asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    # --- what the pipeline calls --------------------------------------------------------------------------------

    async def take(self) -> Collected:
        """The next batch, as soon as it is there: the oldest groups, sorted by sample index. Raises what generation raised."""
        if self._worker is None:
            self._worker = asyncio.ensure_future(self._work())
            self._worker.add_done_callback(lambda _: self._changed.set())
        self._is_dry = False
        self._wake.set()
        while not self._is_full() and not self._is_stuck():
            self._changed.clear()
            await self._changed.wait()
            self.check()
        collected, taken = self.collected, self.waiting[: self.target]
        for flight in taken:
            assert flight.result is not None
            self._count(flight, flight.result)
            collected.kept.append(flight.result.group)
            self._forget(flight)
        del self.waiting[: self.target]
        if len(collected.kept) < self.target:
            when_exhausted(collected, self.context.config, self.bound)
        self.collected, self._ended = Collected(), []
        self.batch += 1
        self._drop_stale()
        self._wake.set()
        collected.kept.sort(key=lambda group: min(sample.index or 0 for sample in group))
        return collected

    def check(self) -> None:
        """Raise what ended the stream, if anything did."""
        if self._worker is not None and self._worker.done() and not self._worker.cancelled():
            self._worker.result()

    def weights_changed(self) -> None:
        """The engine has the weights that were trained on all batches that were taken."""
        self.version = self.batch
        self._wake.set()

    def unfinished(self) -> list[list[dict[str, Any]]]:
        """Every group that no batch has taken, as plain data.

        What waits keeps its tokens and rewards and comes first, so that it does not grow older than it may. All else is as
        it was handed out, in the order of submission, and so are the groups that ended since the last batch.
        """
        unfinished = sorted([*self.running.values(), *self._ended], key=lambda flight: flight.number)
        waiting = [_kept(flight.result.group) for flight in self.waiting if flight.result is not None]
        return waiting + [flight.plain for flight in unfinished]

    async def stop(self) -> None:
        """End all that is under way; nothing is judged any more."""
        await self._end([*self.running, *([self._worker] if self._worker is not None else [])])
        self.running.clear()

    # --- the worker ---------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Submit what the rule allows, put where it belongs what has ended, again and again."""
        try:
            while True:
                self._submit()
                self._changed.set()
                await self._wake.wait()
                self._wake.clear()
                completed, self._completed = self._completed, []
                for task in completed:
                    flight = self.running[task]
                    await self._settle(flight, task.result())
                    del self.running[task]
                    self._running_ages[flight.age] -= 1
        except Exception:
            await self._end(self.running)
            raise

    async def _end(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Stop what generates and these tasks."""
        self.context.end.reached = True
        tasks = list(tasks)
        if self.running:
            with contextlib.suppress(EngineError):
                await self.context.engine.abort_all()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _room(self) -> int:
        """Groups that may be begun now."""
        outstanding = len(self.running) + len(self.waiting)
        ahead = (self.version + self.staleness + 1 - self.batch) * self.target
        left = (self.last - self.batch) * self.target
        return min(ahead, left) - outstanding

    def _submit(self) -> None:
        while not self._is_dry and (count := min(self._room(), self.bound - self.collected.fetched_groups)) > 0:
            if isinstance(self.source, RolloutDataSource):
                self.source.rollout_id, self.source.weight_version = self.batch, self.context.engine.weight_version
            groups = fetch(self.context, self.source, count, self._seen)
            self._is_dry = not groups
            self.collected.fetch_rounds += bool(groups)
            self.collected.fetched_groups += len(groups)
            for group in groups:
                self._begin(group)

    def _begin(self, group: list[Sample]) -> None:
        from_buffer = sum(sample.status is not Status.PENDING for sample in group)
        flight = Flight(self._submitted, self._age(group), list(group), [plain_sample(sample) for sample in group], from_buffer)
        self._submitted += 1
        if flight.age + self.staleness < self.batch:
            self._drop_as_stale(flight, samples=len(group), from_buffer=from_buffer)
            return
        task = asyncio.ensure_future(generate_group(self.context, group, self.params, rollout_id=self.batch))
        self.running[task] = flight
        self._running_ages[flight.age] += 1
        task.add_done_callback(self._note_completed)

    def _age(self, group: list[Sample]) -> int:
        """The rollouts that were finished when the oldest token of a group was made; for one without tokens, those that are now."""
        now = self.context.engine.weight_version
        oldest = min((version for sample in group for version in sample.weight_versions), default=now)
        return self.version - max(0, now - oldest)

    def _note_completed(self, task: asyncio.Task[GroupResult]) -> None:
        if not task.cancelled():
            self._completed.append(task)
            self._wake.set()

    async def _settle(self, flight: Flight, result: GroupResult) -> None:
        collected = self.collected
        collected.retries += result.retries
        collected.tokens += result.tokens
        if result.failed:
            self._count(flight, result)
            collected.failed.append(result.group)
            collected.failure_reasons.update(result.failure_reasons)
            self._refuse(flight)
        elif any(slot.is_unfinished for slot in result.slots):  # a custom generate gave up on its own account
            self._count(flight, result)
            collected.samples_aborted += len(result.group)
            collected.aborted.append(result.requeued(partial=False))
            self.source.add_samples([collected.aborted[-1]])
            self._is_dry = False
            self._forget(flight)
        else:
            verdict = await judge(self.filters, self.context.config, result.group)
            coming, missing = len(self.running) - 1, self.target - len(self.waiting)
            if verdict.keep or (verdict.keep_when_insufficient and coming < missing):
                flight.result = result
                bisect.insort(self.waiting, flight, key=_oldest_first)
            else:
                self._count(flight, result)
                self.collected.drop(result.group, verdict.reason or "refused")
                self._refuse(flight)
        self.progress(replace(self.collected, kept=[waits.result.group for waits in self.waiting if waits.result is not None]))

    def _count(self, flight: Flight, result: GroupResult) -> None:
        """The samples of a group count in the rollout in which it ends, or whose batch takes it."""
        self.collected.samples_generated += result.generated
        self.collected.samples_from_buffer += flight.from_buffer

    def _refuse(self, flight: Flight) -> None:
        self._ended.append(flight)
        self._forget(flight)

    def _forget(self, flight: Flight) -> None:
        for sample in flight.members:
            self._seen.pop(id(sample), None)

    def _drop_stale(self) -> None:
        """Leave out what waits and is too old for the next batch: only a buffer that was full of old groups brings that about."""
        for flight in [flight for flight in self.waiting if flight.age + self.staleness < self.batch]:
            self.waiting.remove(flight)
            assert flight.result is not None
            samples, generated = len(flight.result.group), flight.result.generated
            self.collected.samples_generated += generated
            self._drop_as_stale(flight, samples=samples, from_buffer=samples - generated)

    def _drop_as_stale(self, flight: Flight, *, samples: int, from_buffer: int) -> None:
        self.collected.samples_from_buffer += from_buffer
        self.collected.samples_stale += samples
        self._forget(flight)

    # --- when a batch is there ----------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        """Whether there is a batch, and those that it leaves fit into the batches that they have to be in."""
        if len(self.waiting) < self.target:
            return False
        running = 0
        for age in range(self.batch - self.staleness, self.version + 1):
            running += self._running_ages[age]
            waiting = bisect.bisect_right(self.waiting, age, key=lambda flight: flight.age)
            left = running + max(0, waiting - self.target)
            if running and left > (age + self.staleness - self.batch) * self.target:
                return False
        return True

    def _is_stuck(self) -> bool:
        """Nothing is under way, and nothing more may be fetched for this batch."""
        may_fetch = not self._is_dry and self.collected.fetched_groups < self.bound
        return len(self.waiting) < self.target and not self.running and not may_fetch


def _oldest_first(flight: Flight) -> tuple[int, int]:
    return flight.age, flight.number


def _kept(group: list[Sample]) -> list[dict[str, Any]]:
    return [{**plain_sample(sample), KEPT: True} for sample in group]
