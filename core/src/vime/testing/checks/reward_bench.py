"""A reward on the bench: called as a run would call it, with what it can score."""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, cast

from vime.config.run_config import RunConfig
from vime.plugins.loading import describe
from vime.plugins.manager import HookFunction, PluginManager
from vime.plugins.validation import is_marked
from vime.rollout.reward_guard import BadRewardError, Reward, check_reward, check_rewards, discard
from vime.rollout.reward_worker import call_arguments
from vime.sample import Sample
from vime.testing.checks.base import Bench, fail, skip
from vime.testing.checks.reward_inputs import NEED_CASE, WRONG_RESPONSES, Input, from_cases, plausible

SEARCH_SECONDS = 6.0
"""How long samples are looked for that the reward can score."""
CALL_SECONDS = 20.0
"""How long a check goes on to call a reward; a slower one is not called often enough to tell."""
USUAL_KEYS = ("reward", "score", "acc", "accuracy", "total")
"""Names under which dict rewards keep the value to train on; looked for where no reward key is configured."""


class MisshapenError(BadRewardError):
    """A group reward did not return a list with one entry per sample."""


@dataclass
class Findings:
    """What the reward made of the samples that were tried."""

    valid: list[tuple[Input, Reward]] = field(default_factory=list[tuple[Input, Reward]])
    bad: list[BadRewardError] = field(default_factory=list[BadRewardError])
    """Values that are no rewards."""
    misshapen: list[MisshapenError] = field(default_factory=list["MisshapenError"])
    """Answers of a group reward that are no list with one entry per sample."""
    errors: list[Exception] = field(default_factory=list[Exception])
    gold: Input | None = None
    """A sample with a right answer, where one was found that scores higher than a wrong one."""
    wrong: Input | None = None
    """The same prompt with a worse answer."""


ALONE: dict[str, Any] = {"rm_type": None, "reward_weights": None}
"""A reward is checked by itself, also where the author's `args` name a sum that it is a part of."""


class RewardBench:
    """One freshly loaded reward, and one event loop for all calls of a check: `with RewardBench(bench) as reward`."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.grouped = _scores_groups_only(bench)
        """Whether it is called with groups only."""
        options = {"group_rm": True, "n_samples_per_prompt": 2} if self.grouped else {"group_rm": False}
        self.config: RunConfig = bench.config(**options, **ALONE)
        self.manager: PluginManager = bench.load(self.config)
        self.function: HookFunction = bench.function(self.manager)
        self.who = f"{self.function.label}: custom_rm"
        self._key: str | None = self.config.reward_key
        self._next = 0
        self._patience = time.monotonic() + CALL_SECONDS
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._runner.close()

    @property
    def takes_groups(self) -> bool:
        """Whether it can be called with a group."""
        return self.grouped or (not _positional(self.function) and "samples" in self.function.params)

    @property
    def key(self) -> str | None:
        """The key of dict rewards to train on: the configured one, else a guess from the first dict; None for numbers."""
        return self._key

    def still(self) -> None:
        """Skip the check where the calls so far have taken too long for more of them."""
        if time.monotonic() > self._patience:
            skip("one call takes so long that there was no time for enough of them")

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something in this bench's event loop."""
        return self._runner.run(work)

    def fresh(self, one: Input, *, group_index: int | None = None) -> Sample:
        """A sample with an index that no other has."""
        self._next += 1
        return one.sample(self._next, group_index=self._next if group_index is None else group_index)

    def shown(self, sample: Sample) -> list[Sample]:
        """What a call for this sample is given: it alone, or for a reward of groups a group with it in front."""
        if not self.grouped:
            return [sample]
        fields: dict[str, Any] = object.__getattribute__(sample, "__dict__")  # unnoticed by a sample that notes what is read
        other = Sample(**copy.deepcopy({name: value for name, value in fields.items() if name in Sample.__dataclass_fields__}))
        other.index, other.response = -(sample.index or 0), WRONG_RESPONSES[0]
        return [sample, other]

    def call(self, samples: list[Sample], *, group: bool, function: HookFunction | None = None) -> Any:
        """What the function itself returns, in this process."""
        function = function or self.function
        config = self.bench.config(group_rm=True, n_samples_per_prompt=len(samples), **ALONE) if group else self.config
        value = self.run(function.acall(**call_arguments(config, function, samples, group)))
        discard(value)
        return value

    def score(self, sample: Sample, *, function: HookFunction | None = None) -> Reward:
        """The reward of one sample, checked. Raises what the function raises, and BadRewardError."""
        if not self.grouped:
            return self.checked(self.call([sample], group=False, function=function), sample)
        group = self.shown(sample)
        answer = self.call(group, group=True, function=function)
        try:
            value = check_rewards(answer, self.who, group)[0]
        except BadRewardError as error:
            raise MisshapenError(error.message, hint=error.hint) from None
        return self.checked(value, sample)

    def value(self, one: Input, *, function: HookFunction | None = None) -> float:
        """The number that a sample of this kind is trained on."""
        return self.number(self.score(self.fresh(one), function=function))

    def group_values(self, samples: list[Sample]) -> list[float]:
        """The numbers of a whole group, checked."""
        values = check_rewards(self.call(samples, group=True), self.who, samples)
        return [self.number(self.checked(value, sample)) for value, sample in zip(values, samples, strict=True)]

    def checked(self, value: Any, sample: Sample) -> Reward:
        """`value` as a reward. Raises BadRewardError with the core's message."""
        if asyncio.iscoroutine(value):
            raise BadRewardError(f"{self.who} returned a coroutine in the place of a reward", hint="await it: asyncio.gather(*coroutines)")
        if self._key is None and isinstance(value, dict) and value:
            self._key = _key_of(cast("dict[str, Any]", value))
        value = cast("Any", value)
        return check_reward(value, self.who, sample, (self._key,) if self._key else ())

    def number(self, reward: Reward) -> float:
        """The part of a reward that is trained on."""
        if not isinstance(reward, dict):
            return reward
        if self._key not in reward:
            raise BadRewardError(
                f"{self.who} returned a dict without {self._key!r}; it has {sorted(map(str, reward))}",
                hint="return the same keys for every sample",
            )
        return reward[self._key]

    def survey(self) -> Findings:
        """Look for samples that it can score, first a right one and a wrong one: the author's cases, else plausible ones."""
        found = Findings()
        started = time.monotonic()
        cases = from_cases(self.bench.cases)
        for one in cases or plausible():
            value = self._try(one, found)
            if value is not None and not cases:
                self._try_wrong(one, value, found)
            if (found.gold is not None and not cases) or time.monotonic() - started > SEARCH_SECONDS:
                break
        if cases and found.valid:
            self._order_cases(found)
        return found

    def pair(self) -> tuple[Input, Input]:
        """A right answer and a wrong one whose rewards differ. Skips the check where none was found."""
        found = self.survey()
        _refuse_bad(found)
        if found.gold is None or found.wrong is None:
            skip(f"no two responses were found that get different rewards; {NEED_CASE}")
        return found.gold, found.wrong

    def steady(self, one: Input) -> float:
        """The reward of a sample, called twice. Skips the check where the two differ, which reward-deterministic reports."""
        value = self.value(one)
        if not same(value, self.value(one)):
            skip("the same sample gets different rewards")
        return value

    def one(self) -> Input:
        """A sample that it can score, right where one was found. Skips the check where there is none."""
        found = self.survey()
        _refuse_bad(found)
        if not found.valid:
            skip(f"no sample was found that this reward can score; {NEED_CASE}")
        return found.gold or found.valid[0][0]

    def _try(self, one: Input, found: Findings) -> float | None:
        try:
            reward = self.score(self.fresh(one))
            value = self.number(reward)
        except MisshapenError as error:
            found.misshapen.append(error)
            return None
        except BadRewardError as error:
            found.bad.append(error)
            return None
        except Exception as error:  # noqa: BLE001 - whatever a reward raises for what it cannot score
            found.errors.append(error)
            return None
        found.valid.append((one, reward))
        return value

    def _try_wrong(self, one: Input, value: float, found: Findings) -> None:
        """Look for a worse answer to the same prompt."""
        for response in WRONG_RESPONSES:
            apart = f"{one.prompt} Think." if isinstance(one.prompt, str) and not self.bench.cases else one.prompt
            wrong = one.but(response=response, prompt=apart)  # a prompt of its own: no reward may go by it
            worse = self._try(wrong, found)
            if worse is not None and not same(worse, value):
                found.gold, found.wrong = (one, wrong) if value > worse else (wrong, one)
                return
            if worse is None:
                return

    def _order_cases(self, found: Findings) -> None:
        ranked = sorted(found.valid, key=lambda pair: self.number(pair[1]))
        (low, least), (high, most) = ranked[0], ranked[-1]
        if same(self.number(least), self.number(most)):
            self._try_wrong(high, self.number(most), found)
        else:
            found.gold, found.wrong = high, low


def _refuse_bad(found: Findings) -> None:
    if found.bad or found.misshapen:
        skip("it returned something that is no reward")


def same(one: float, other: float) -> bool:
    """Whether two rewards are equal, but for rounding."""
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)


def raised(error: BaseException) -> str:
    """An exception as a message names it."""
    return f"raised {describe(error)}"


def short(text: Any) -> str:
    """A response or a label as a message shows it."""
    shown = repr(text)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def require_groups(reward: RewardBench) -> None:
    """Skip a check of group rewards for a reward that scores single samples."""
    if not reward.takes_groups:
        skip("it scores single samples only")


def require_deterministic(bench: Bench) -> None:
    """Skip a check that compares two calls, where the author declares that these may differ."""
    if not bench.deterministic:
        skip("declared as not deterministic")


def compare(got: Sequence[float], expected: Sequence[float], message: str, hint: str) -> None:
    """Fail where two lists of rewards differ; `message` has {got} and {expected}."""
    for one, other in zip(got, expected, strict=True):
        if not same(one, other):
            fail(message.format(got=one, expected=other), hint)


def _key_of(reward: dict[str, Any]) -> str:
    """The key to train on, guessed: a usual name, else the first number."""
    usual = [key for key in USUAL_KEYS if key in reward]
    numeric = [key for key, value in reward.items() if isinstance(value, int | float)]
    return (usual or numeric or list(reward))[0]


def _positional(function: HookFunction) -> bool:
    """A path function in upstream's style, which gets the sample or the group in the same place."""
    return function.by_path and not is_marked(function.function)


def _scores_groups_only(bench: Bench) -> bool:
    """Whether it takes groups only: as configured for a path function, or as its parameters say."""
    function = bench.function(bench.load(bench.config(group_rm=True)))
    if not _positional(function):
        return "samples" in function.params and "sample" not in function.params
    if bench.config().group_rm:
        return True
    try:
        names = list(inspect.signature(function.function).parameters)
    except (TypeError, ValueError):  # some builtins have no signature to look at
        return False
    return names[1:2] in (["samples"], ["group"])
