"""Whether a hook left alone what it was shown: the samples, field by field, and the configuration.

O(tokens) a call, so a run does this under `--check-hooks` only; the contract kit always does.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from vime.errors import ContractError
from vime.rollout.reward_guard import where
from vime.sample import VERDICTS, Sample

if TYPE_CHECKING:
    from vime.plugins.manager import HookFunction

MAY_CHANGE: dict[str, frozenset[str]] = {
    "custom_rm": frozenset({"metadata", "train_metadata"}),
    "shape_reward": frozenset(),
    "dynamic_sampling_filter": frozenset(),
    "buffer_filter": frozenset(),
    "rollout_sample_filter": frozenset({"remove_sample"}),
    "process_all_samples": frozenset({"metadata", "train_metadata"}),
    "log_rollout_data": frozenset({"metadata"}),
    "log_eval_rollout_data": frozenset({"metadata"}),
    "post_process_rewards": frozenset(),
    "convert_samples_to_train_data": frozenset(),
}
"""The fields of a sample that each hook may write.

Hooks that are not listed are there to change samples: of theirs only the configuration is watched."""

_HINTS = {
    "custom_rm": "return the reward; what else is worth keeping goes into a dict reward or into sample.metadata",
    "dynamic_sampling_filter": "return a verdict only; single samples are taken out by rollout_sample_filter",
    "rollout_sample_filter": "set sample.remove_sample = True and nothing else",
    "process_all_samples": "look, count and log; rewards, tokens and masks are fixed here",
}


class ChangedError(ContractError):
    """A hook changed what it may only read. Ends the run whatever `--on-reward-error` says."""


def watched(args: Any, function: HookFunction, samples: Iterable[Sample] = ()) -> AbstractContextManager[None]:
    """Around a call of `function`: under `--check-hooks` raise ChangedError where it changes what it may only read.

    A reward that runs in a worker process gets copies: it is watched there, where a change can be seen, and once more
    here for what it hands back.
    """
    return _compared(args, function, samples) if getattr(args, "check_hooks", False) else _UNWATCHED


_UNWATCHED: AbstractContextManager[None] = nullcontext()
"""A context that does nothing: made once, since most calls need it."""


@contextmanager
def _compared(args: Any, function: HookFunction, samples: Iterable[Sample]) -> Iterator[None]:
    before = Snapshot(samples, args)
    yield
    before.check(function.label, function.hook)


class Snapshot:
    """The samples and the configuration as they were before a call."""

    def __init__(self, samples: Iterable[Sample], args: Any = None) -> None:
        self._samples = [(sample, _copy(vars(sample))) for sample in samples]
        self._args = args
        self._settings = _settings(args)

    def changes(self, hook: str) -> list[str]:
        """What `hook` changed and may not, as `sample 3 (group 1): response 'a' -> 'b'`."""
        allowed = MAY_CHANGE.get(hook, frozenset())
        found: list[str] = []
        for sample, before in self._samples if hook in MAY_CHANGE else ():
            now = vars(sample)
            found += [
                f"{where(sample)}: {name} {before.get(name)!r:.60} -> {now.get(name)!r:.60}"
                for name in dict.fromkeys([*before, *now])
                if name not in allowed and name != VERDICTS and not same(before.get(name), now.get(name))  # which the core writes
            ]
        settings = _settings(self._args)
        found += [
            f"args.{name} {self._settings.get(name)!r:.60} -> {value!r:.60}"
            for name, value in settings.items()
            if not same(self._settings.get(name), value)
        ]
        return found

    def check(self, who: str, hook: str) -> None:
        """Raise ChangedError, naming the first change, where `hook` changed what it may only read."""
        found = self.changes(hook)
        if found:
            more = f" (and {len(found) - 1} more changes)" if len(found) > 1 else ""
            raise ChangedError(
                f"{who}: {hook} changed what it was shown: {found[0]}{more}",
                hint=_HINTS.get(hook, "work on a copy: copy.deepcopy(sample)"),
            )


def _settings(args: Any) -> dict[str, Any]:
    return {} if args is None else _copy(vars(args))


def _copy(values: dict[str, Any]) -> dict[str, Any]:
    """A deep copy; a value that cannot be copied is kept as it is, and only its replacement is noticed."""
    copied: dict[str, Any] = {}
    for name, value in values.items():
        try:
            copied[name] = copy.deepcopy(value)
        except Exception:  # noqa: BLE001 - whatever a user's object raises when it is copied
            copied[name] = value
    return copied


def same(before: Any, now: Any) -> bool:
    """Equality that holds for NaN too, and that arrays answer with one verdict."""
    if before is now:
        return True
    try:
        equal = bool(before == now)
    except Exception:  # noqa: BLE001 - arrays and tensors have no single truth value
        equal = False
    return equal or (type(before) is type(now) and repr(before) == repr(now))
