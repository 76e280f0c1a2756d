"""Scores samples: hooks before and after, single and group mode, the error policy, and the counters."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

from vime.rollout.hook_guards import Place, check_looked_at
from vime.rollout.reward_failures import RewardFailures
from vime.rollout.reward_guard import (
    BadRewardError,
    RewardShape,
    RewardTimeoutError,
    check_key,
    check_number,
    check_reward,
    check_rewards,
    check_siblings,
    discard,
    last_boxed,
    where,
)
from vime.rollout.reward_resolver import ResolvedReward, RewardResolver
from vime.rollout.reward_sum import ScoreSheet, part_value
from vime.rollout.reward_worker import BusyTime, RewardRunner, RewardSetupError, carry_back, takes_group
from vime.rollout.unchanged import ChangedError, watched
from vime.sample import SCORED, TOTAL, Sample, Status, note_verdict
from vime.track.trace import Tracer

if TYPE_CHECKING:
    from vime.config.eval import EvalDatasetConfig
    from vime.config.run_config import RunConfig
    from vime.plugins.manager import PluginManager


class RewardScorer:
    """Gives samples their rewards. One object serves training and evaluation, from any event loop.

    A sample is scored once: `rollout_sample_hook`, then its reward (or the one that custom_generate set), then
    `shape_reward`. Calling `score` or `score_group` again with samples that have their final reward leaves these alone,
    so a whole group may be passed again after one of its samples was generated anew. ABORTED and FAILED samples are
    passed over. The list that is passed in is updated in place where `rollout_sample_hook` returns another Sample.

    Raises ConfigError at construction where nobody could score the run's samples.
    """

    def __init__(self, config: RunConfig, plugins: PluginManager) -> None:
        self.config = config
        self.plugins = plugins
        self.resolver = RewardResolver(config, plugins)
        self.resolver.check_at_start()
        self._runner = RewardRunner(config, plugins)
        self._shape = RewardShape()
        self.failures = RewardFailures(config.on_reward_error)
        self._busy = BusyTime()
        self._sample_hooks = plugins.implementations("rollout_sample_hook")
        self._shapers = plugins.implementations("shape_reward")

    async def score(
        self,
        samples: list[Sample],
        *,
        evaluation: bool = False,
        dataset: EvalDatasetConfig | None = None,
        rollout_id: int | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Score every sample on its own."""
        scope = _Scope(self.config, evaluation, dataset, tracer)
        fresh = await self._open(samples, scope, rollout_id)
        calls = [
            _Call(reward, [sample], sheets) for sample in fresh if _unscored(sample) for reward, sheets in self._resolve(sample, dataset)
        ]
        await self._make(calls, scope)
        await self._finish(samples, fresh, scope)

    async def score_group(
        self,
        group: list[Sample],
        *,
        evaluation: bool = False,
        dataset: EvalDatasetConfig | None = None,
        rollout_id: int | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Score one group: sample by sample, or, under `--group-rm` and once it is complete, as a whole.

        Samples whose data names different rewards go to the function of each; a function that takes `sample` only is
        gathered over its samples.
        """
        if not self.config.group_rm:
            await self.score(group, evaluation=evaluation, dataset=dataset, rollout_id=rollout_id, tracer=tracer)
            return
        if any(sample.status is Status.ABORTED for sample in group):
            return
        scope = _Scope(self.config, evaluation, dataset, tracer)
        fresh = await self._open(group, scope, rollout_id)
        parts: dict[tuple[Any, ...], _Call] = {}
        for sample in group if any(map(_unscored, fresh)) else ():
            if sample.status is not Status.FAILED:
                for reward, sheets in self._resolve(sample, dataset):
                    part = parts.setdefault((id(reward.function), reward.boxed, reward.part), _Call(reward, [], {}, group=True))
                    part.members.append(sample)
                    part.sheets |= sheets
        calls: list[_Call] = []
        for part in parts.values():
            if takes_group(part.reward.function) and any(map(_unscored, part.members)):
                calls.append(part)
            else:
                calls += [_Call(part.reward, [member], part.sheets) for member in part.members if _unscored(member)]
        await self._make(calls, scope)
        await self._finish(group, fresh, scope)

    def take_metrics(self, *, evaluation: bool = False) -> dict[str, float]:
        """What happened in training, or in evaluations, since the last call.

        Failed rewards by plugin and kind, `reward_errors/<plugin>/<timeout|bad_value|exception>`, and `reward_time`, the
        seconds in which at least one reward was under way, where there was one.
        """
        counts = self.failures.take_counts(evaluation=evaluation)
        seconds = self._busy.take()
        return {**counts, "reward_time": seconds} if seconds else counts

    def close(self) -> None:
        """End the worker processes."""
        self._runner.close()

    async def _open(self, samples: list[Sample], scope: _Scope, rollout_id: int | None) -> list[Sample]:
        """Call rollout_sample_hook on what has not been scored yet, and check rewards that custom_generate set. Returns these samples."""
        fresh: list[Sample] = []
        for position, sample in enumerate(samples):
            if sample.status in (Status.ABORTED, Status.FAILED) or (sample.reward is not None and getattr(sample, SCORED, False)):
                continue
            for hook in self._sample_hooks:
                place = Place.of(sample)
                with watched(self.config, hook), scope.tracer.of_samples([sample], f"{hook.plugin}/{hook.hook}"):
                    returned = await hook.acall(args=self.config, sample=sample, rollout_id=rollout_id, evaluation=scope.evaluation)
                replaced = returned is not None and returned is not sample
                sample = sample if returned is None else returned
                check_looked_at(hook.label, place, sample)
                note_verdict([sample], hook.hook, hook.plugin, "replaced" if replaced else "seen")
                samples[position] = sample
            if sample.reward is not None:
                self._accept(sample.reward, "custom_generate", "custom_generate", sample, scope)
            fresh.append(sample)
        return fresh

    def _resolve(self, sample: Sample, dataset: EvalDatasetConfig | None) -> Iterator[tuple[ResolvedReward, dict[int, ScoreSheet]]]:
        """Who scores a sample; where several do, each with the sheet that collects what they give."""
        rewards = self.resolver.resolve(sample, dataset)
        parts = [reward.part for reward in rewards if reward.part is not None]
        sheets = {id(sample): ScoreSheet(sample, parts)} if parts else {}
        yield from ((reward, sheets) for reward in rewards)

    async def _make(self, calls: list[_Call], scope: _Scope) -> None:
        """Make all calls at once. What the parts of a sum wrote is in the samples afterwards, in the order of the parts."""
        await _all([self._score_call(call, scope) for call in calls])
        for sheet in {id(sheet): sheet for call in calls for sheet in call.sheets.values()}.values():
            sheet.carry_back()

    async def _score_call(self, call: _Call, scope: _Scope) -> None:
        """One call of a reward function, checked; its failure is dealt with as `--on-reward-error` says."""
        reward, members = call.reward, call.members
        shown = call.shown()
        who = f"{reward.function.label}: custom_rm"
        unscored = call.unscored()
        try:
            try:
                of_samples = scope.tracer.of_samples(members, "reward", plugin=reward.function.plugin)
                with self._busy, watched(self.config, reward.function, shown), of_samples:
                    value = await self._runner.run(reward, shown, group=call.group)
                discard(value)
            finally:
                if reward.boxed and reward.part is None:
                    carry_back(shown, members)
            values = check_rewards(value, who, members) if call.group else [value]
        except (RewardSetupError, ChangedError):
            raise
        except Exception as error:  # noqa: BLE001 - counted, and raised where the error policy says so
            for member in compress(members, unscored):
                member.reward = None  # the function may have set it before it failed
                self._fail(error, reward.function.plugin, member, scope, call.sheets.get(id(member)))
            return
        for member, value in compress(zip(members, values, strict=True), unscored):
            if reward.part is None:
                self._accept(value, who, reward.function.plugin, member, scope)
            else:
                self._accept_part(value, who, reward, call.sheets[id(member)], scope)

    def _accept_part(self, value: object, who: str, reward: ResolvedReward, sheet: ScoreSheet, scope: _Scope) -> None:
        """Take in one part of a sum, and with the last of them accept the sum."""
        assert reward.part is not None
        try:
            number = part_value(value, reward.part, who, sheet.sample)
        except BadRewardError as error:
            self._fail(error, reward.function.plugin, sheet.sample, scope, sheet)
        else:
            note_verdict([sheet.sample], "custom_rm", reward.function.plugin, _shown(number))
            total = sheet.add(reward.part, number)
            if total is not None:
                self._accept(total, f"rm_type {sheet.name}", sheet.name, sheet.sample, scope, sheet)

    def _accept(self, value: object, who: str, plugin: str, sample: Sample, scope: _Scope, sheet: ScoreSheet | None = None) -> None:
        try:
            reward = check_reward(value, who, sample, scope.keys)
            check_key(reward, scope.key, who, sample, scope.flag)
            self._shape.check(scope.name, reward, who, sample)
        except BadRewardError as error:
            sample.reward = None
            self._fail(error, plugin, sample, scope, sheet)
        else:
            sample.reward = reward
            if sheet is None and plugin != "custom_generate":
                note_verdict([sample], "custom_rm", plugin, _shown(reward))

    def _fail(self, error: Exception, plugin: str, sample: Sample, scope: _Scope, sheet: ScoreSheet | None = None) -> None:
        """Count a failed reward, then raise, drop the sample, or give it a zero."""
        self.failures.add(plugin, error, sample, evaluation=scope.evaluation)
        if self.config.on_reward_error == "raise":
            if not isinstance(error, RewardTimeoutError | BadRewardError):
                error.add_note(f"while scoring {where(sample)}; --on-reward-error drop|zero goes on without this reward")
            raise error
        if self.config.on_reward_error == "drop":
            sample.status = Status.FAILED
        else:
            sample.reward = sheet.zero() if sheet is not None else self._shape.zero(scope.name, scope.keys)

    async def _finish(self, samples: list[Sample], fresh: list[Sample], scope: _Scope) -> None:
        """Add what shape_reward returns, and mark the rewards as final."""
        for sample in fresh:
            if sample.reward is not None and sample.status is not Status.FAILED:
                await self._add_shaping(sample, scope)
                setattr(sample, SCORED, True)
        check_siblings([sample for sample in samples if sample.status not in (Status.ABORTED, Status.FAILED)])

    async def _add_shaping(self, sample: Sample, scope: _Scope) -> None:
        for shaper in self._shapers:
            with watched(self.config, shaper, [sample]), scope.tracer.of_samples([sample], f"{shaper.plugin}/{shaper.hook}"):
                bonus = await shaper.acall(args=self.config, sample=sample)
            if bonus is None or sample.reward is None:
                continue
            added = check_number(bonus, f"{shaper.label}: shape_reward", "as an addition to the reward", sample)
            note_verdict([sample], shaper.hook, shaper.plugin, f"{added:+.6g}")
            if isinstance(sample.reward, dict):
                key = scope.key or TOTAL
                sample.reward = {**sample.reward, key: sample.reward[key] + added}
            else:
                sample.reward += added


class _Scope:
    """What a call of the scorer is for: training, or one evaluation data set, with its reward key."""

    def __init__(self, config: RunConfig, evaluation: bool, dataset: EvalDatasetConfig | None, tracer: Tracer | None) -> None:
        self.evaluation = evaluation
        self.tracer = tracer or Tracer()
        self.name = f"eval/{dataset.name if dataset else ''}" if evaluation else "train"
        own = evaluation and config.eval_reward_key
        self.key = config.eval_reward_key if own else config.reward_key
        self.flag = "--eval-reward-key" if own else "--reward-key"
        self.keys = tuple(dict.fromkeys(key for key in (self.key, config.reward_key, config.eval_reward_key) if key)) or (TOTAL,)


@dataclass
class _Call:
    """One call of a reward function that is to be made, for one sample or for a group, with the sheets of samples that have parts."""

    reward: ResolvedReward
    members: list[Sample]
    sheets: dict[int, ScoreSheet]
    group: bool = False

    def shown(self) -> list[Sample]:
        """What the function gets: the samples themselves, or copies where they differ from these or others look at them too."""
        if self.reward.part is not None:
            return [self.sheets[id(member)].show(self.reward.part) for member in self.members]
        return [_boxed(member) for member in self.members] if self.reward.boxed else list(self.members)

    def unscored(self) -> list[bool]:
        """For each sample whether it waits for this reward, or is there for its group only."""
        if self.reward.part is not None:
            return [self.sheets[id(member)].unscored for member in self.members]
        return [member.reward is None for member in self.members]


def _shown(reward: float | dict[str, Any]) -> str:
    return json.dumps(reward, default=str) if isinstance(reward, dict) else f"{reward:.6g}"


def _unscored(sample: Sample) -> bool:
    return sample.reward is None and sample.status is not Status.FAILED


def _boxed(sample: Sample) -> Sample:
    shown = copy.copy(sample)
    shown.response = last_boxed(sample.response)
    return shown


async def _all(calls: list[Awaitable[None]]) -> None:
    """Await all; on the first exception cancel the others, and raise that of the earliest among those that failed."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    if not tasks:
        return
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        pending = [task for task in tasks if not task.done()]
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)
    errors = [error for task in tasks if task in done and (error := task.exception()) is not None]  # every one is looked at
    if errors:
        raise errors[0]
