"""What the core checks at the hooks inside a rollout: pure functions over values, which raise ContractError.

`who` is the label of the plugin or path function. Each check costs O(1) a sample, or O(metrics) a batch; that nothing
was changed beyond what these see is a matter of `vime.rollout.unchanged`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from vime.errors import ContractError
from vime.outputs import DynamicFilterOutput
from vime.rollout.reward_guard import where
from vime.sample import Sample, Status

MAX_REASON = 64
"""Characters of a drop reason, which becomes a part of a metric's name."""

Shape = list[list[int]]


def is_bool(value: object) -> bool:
    """A bool, a numpy bool, or an array or tensor without dimensions: what a comparison gives."""
    return isinstance(value, bool) or (getattr(value, "shape", None) == () and hasattr(value, "item"))


# Groups and samples


def shape_of(groups: Sequence[Sequence[Any]]) -> Shape:
    """The identity of every sample, group by group."""
    return [[id(sample) for sample in group] for group in groups]


def check_shape(who: str, hook: str, before: Shape, groups: Any) -> None:
    """The same groups with the same samples in the same order are there after a call."""
    try:
        is_same = shape_of(groups) == before
    except TypeError:  # something that is no group was put into the list
        is_same = False
    if not is_same:
        raise ContractError(
            f"{who}: {hook} changed the batch: the same groups, samples and order are expected afterwards",
            hint="set sample.remove_sample = True in rollout_sample_filter instead of deleting a sample",
        )


def check_returns_nothing(who: str, hook: str, result: Any, shown: Any, hint: str) -> None:
    """A hook that works in place returns None; the very object that it was shown is as good."""
    if result is not None and result is not shown:
        size = f" of {len(result)}" if isinstance(result, list | tuple | dict) else ""
        raise ContractError(f"{who}: {hook} returned a {type(result).__name__}{size}, which nothing uses; expected None", hint=hint)


def check_aligned(who: str, sample: Sample) -> None:
    """Tokens, response length, mask and log-probs fit together, and the other fields have their types. O(1)."""
    tokens, length, mask, log_probs = sample.tokens, sample.response_length, sample.loss_mask, sample.rollout_log_probs
    fits = isinstance(tokens, list) and isinstance(length, int) and tokens and 0 <= length <= len(tokens)
    is_typed = isinstance(sample.response, str) and isinstance(sample.metadata, dict)
    if not (fits and is_typed and (mask is None or _size(mask) == length) and (log_probs is None or _size(log_probs) == length)):
        _refuse_misaligned(who, sample)


def _size(values: Any) -> int:
    return len(values) if hasattr(values, "__len__") else -1


def _refuse_misaligned(who: str, sample: Sample) -> NoReturn:
    """Say which field it is that check_aligned has found."""
    for name, kind in (("tokens", list), ("response", str), ("metadata", dict)):
        value = getattr(sample, name)
        if not isinstance(value, kind):
            hint = f"sample.{name} = values.tolist()" if hasattr(value, "tolist") else f"set sample.{name} to a {kind.__name__}"
            raise ContractError(f"{who}: {name} of {where(sample)} is a {type(value).__name__}; expected a {kind.__name__}", hint=hint)
    length = sample.response_length
    if not isinstance(length, int) or not sample.tokens or not 0 <= length <= len(sample.tokens):
        raise ContractError(
            f"{who}: {where(sample)} has {len(sample.tokens)} tokens and response_length {length!r}",
            hint="tokens are the prompt and then the response: add response tokens with sample.append_response_tokens",
        )
    mask = sample.loss_mask
    name, values = ("rollout_log_probs", sample.rollout_log_probs) if mask is None or _size(mask) == length else ("loss_mask", mask)
    got = type(values).__name__ if values is None or _size(values) < 0 else f"{_size(values)} entries"
    raise ContractError(
        f"{who}: {name} of {where(sample)} has {got} for a response of {length} tokens",
        hint="add response tokens with sample.append_response_tokens, which keeps them aligned",
    )


# custom_generate and rollout_sample_hook


class Place(NamedTuple):
    """Where a sample belongs, as it was before a hook saw it."""

    index: int | None
    group_index: int | None
    rollout_id: int | None

    @classmethod
    def of(cls, sample: Sample) -> Place:
        return cls(sample.index, sample.group_index, sample.rollout_id)

    def __str__(self) -> str:
        return where(Sample(index=self.index, group_index=self.group_index))


def check_generated(who: str, place: Place, result: Any) -> list[Sample]:
    """What a custom_generate returned for the sample at `place`: one Sample, or the siblings of one rollout.

    Nested lists are flattened. Fields that say where a sample belongs are filled in where they are None, and must fit
    where they are not.
    """
    name = f"{who}: custom_generate"
    entries = result if isinstance(result, list | tuple) else [result]
    siblings = [item for entry in entries for item in (entry if isinstance(entry, list | tuple) else [entry])]
    if not siblings:
        raise ContractError(f"{name} returned an empty list for {place}; expected a Sample or a list of Samples", hint=_GENERATED)
    for item in siblings:
        if not isinstance(item, Sample):
            got = "None" if item is None else type(item).__name__
            got = got if item is result else f"a list with {got} in it"
            raise ContractError(f"{name} returned {got} for {place}; expected a Sample or a list of Samples", hint=_GENERATED)
    if len(siblings) > 1:
        _check_siblings(name, place, siblings)
    elif siblings[0].index not in (None, place.index):
        raise ContractError(
            f"{name} returned sample {siblings[0].index} for {place}", hint="return the sample it was given, and leave its index"
        )
    for sibling in siblings:
        sibling.index = place.index if sibling.index is None else sibling.index
        sibling.group_index = place.group_index if sibling.group_index is None else sibling.group_index
        if sibling.group_index != place.group_index:
            raise ContractError(
                f"{name} returned a sample of group {sibling.group_index} for {place}",
                hint="return the sample it was given, or copies of it; leave group_index as it is",
            )
        _check_status(name, sibling)
    return siblings


def _check_status(name: str, sample: Sample) -> None:
    if sample.status is Status.PENDING or not isinstance(sample.status, Status):
        got = sample.status.value if isinstance(sample.status, Status) else repr(sample.status)
        raise ContractError(
            f"{name} left sample {sample.index} with status {got}; expected completed or truncated",
            hint="set sample.status after generating: Status.COMPLETED, or Status.TRUNCATED at the length limit",
        )
    if sample.status in (Status.COMPLETED, Status.TRUNCATED):
        check_aligned(name, sample)


_GENERATED = "add tokens with sample.append_response_tokens, set sample.status, and return the sample"


def _check_siblings(name: str, place: Place, siblings: list[Sample]) -> None:
    if len({id(sibling) for sibling in siblings}) < len(siblings):
        raise ContractError(f"{name} returned one Sample object several times for {place}", hint="return each once: copy.deepcopy(sample)")
    given = {sibling.rollout_id for sibling in siblings}
    if given == {None}:
        for sibling in siblings:
            sibling.rollout_id = place.index
    elif len(given) > 1:
        listing = ", ".join(str(sibling.rollout_id) for sibling in siblings)
        raise ContractError(
            f"{name} returned {len(siblings)} samples with the rollout_ids {listing} for {place}; expected one for all of them",
            hint="the samples of one rollout share its rollout_id: leave it None, and it is filled in",
        )


def check_distinct(who: str, group: list[Sample], rollouts_expected: int, rollouts_found: int) -> None:
    """The rollouts of a generated group stayed apart: no Sample object is in two of them, no rollout_id joins two."""
    if len({id(sample) for sample in group}) < len(group):
        raise ContractError(
            f"{who}: custom_generate returned one Sample object for several samples of group {group[0].group_index}",
            hint="return the sample it was given, or a copy of it",
        )
    if rollouts_found != rollouts_expected:
        raise ContractError(
            f"{who}: custom_generate gave several rollouts of group {group[0].group_index} the same rollout_id: "
            f"{rollouts_expected} rollouts became {rollouts_found}",
            hint="leave rollout_id None, or give each rollout its own: sample.index",
        )


def check_looked_at(who: str, place: Place, sample: Any) -> None:
    """A sample after a rollout_sample_hook: the one that was shown, or another in its place, where None is filled in."""
    hint = "change the sample in place and return nothing"
    if not isinstance(sample, Sample):
        got = type(sample).__name__
        raise ContractError(f"{who}: rollout_sample_hook returned {got} for {place}; expected a Sample or None", hint=hint)
    for name in ("index", "group_index", "rollout_id"):
        now, expected = getattr(sample, name), getattr(place, name)
        if now is None:
            setattr(sample, name, expected)
        elif now != expected:
            raise ContractError(
                f"{who}: rollout_sample_hook returned a Sample with {name} {now} for {place}; expected {expected}",
                hint="return a copy of the sample, copy.copy(sample), or " + hint,
            )
    if sample.tokens != []:  # some that never saw an engine are scored too
        check_aligned(f"{who}: rollout_sample_hook", sample)


# Filters


def check_verdict(who: str, plugin: str, verdict: Any, group: list[Sample]) -> DynamicFilterOutput:
    """A filter's verdict with a plain bool and, for a refusal, a reason that can be a part of a metric's name.

    Without a reason it is the plugin, or the name of the path function; characters that a metric's name cannot have become `_`.
    """
    name = f"{who}: dynamic_sampling_filter"
    about = f"group {group[0].group_index}" if group else "a group"
    if is_bool(verdict):
        verdict = DynamicFilterOutput(keep=verdict)
    if not isinstance(verdict, DynamicFilterOutput):
        got = "None" if verdict is None else f"{type(verdict).__name__} {verdict!r:.60}"
        hint = "return DynamicFilterOutput(keep=..., reason=...)"
        if isinstance(verdict, list | tuple):
            hint = "it judges one group and returns a verdict; single samples are taken out by rollout_sample_filter"
        raise ContractError(f"{name} returned {got} for {about}; expected DynamicFilterOutput or bool", hint=hint)
    for field in ("keep", "keep_when_insufficient"):
        if not is_bool(getattr(verdict, field)):
            raise ContractError(
                f"{name} returned DynamicFilterOutput({field}={getattr(verdict, field)!r:.60}) for {about}; expected a bool",
                hint=f"{field}=bool(...)",
            )
    reason = verdict.reason
    if reason is not None and not isinstance(reason, str):
        raise ContractError(
            f"{name} gave {type(reason).__name__} {reason!r:.60} as the reason for {about}; expected a str or None",
            hint='a short word that is counted: reason="too_long"',
        )
    if verdict.keep:
        return DynamicFilterOutput(keep=True)
    return DynamicFilterOutput(
        False,
        metric_word(reason) if reason else metric_word(plugin.rpartition(":")[2], keep_end=True),
        bool(verdict.keep_when_insufficient),
    )


def metric_word(text: str, *, keep_end: bool = False) -> str:
    """A part of a metric's name. Of a path that is too long the end is kept, which is the function's name."""
    word = re.sub(r"[^\w.:+-]+", "_", text, flags=re.ASCII)
    return word[-MAX_REASON:] if keep_end else word[:MAX_REASON]


def flags_of(groups: Sequence[Sequence[Sample]]) -> list[bool]:
    """`remove_sample` of every sample."""
    return [sample.remove_sample for group in groups for sample in group]


def check_flags(who: str, before: list[bool], groups: Sequence[Sequence[Sample]]) -> None:
    """After rollout_sample_filter every `remove_sample` is a bool, and none that was set is unset. numpy bools become bools."""
    samples = [sample for group in groups for sample in group]
    for was_removed, sample in zip(before, samples, strict=True):
        flag = sample.remove_sample
        if not isinstance(flag, bool):
            if not is_bool(flag):
                raise ContractError(
                    f"{who}: rollout_sample_filter set remove_sample of {where(sample)} to {flag!r:.60}; expected a bool",
                    hint="sample.remove_sample = True",
                )
            sample.remove_sample = flag = bool(flag)
        if was_removed and not flag:
            raise ContractError(
                f"{who}: rollout_sample_filter put {where(sample)} back, which was removed before it",
                hint="only set the flag: sample.remove_sample |= condition",
            )


class Fixed:
    """What process_all_samples may not change in the kept samples, remembered by identity and length."""

    def __init__(self, kept: Sequence[Sequence[Sample]]) -> None:
        self._kept = [sample for group in kept for sample in group]
        self._before = [_fixed(sample) for sample in self._kept]

    def check(self, who: str, hook: str = "process_all_samples") -> None:
        """Raise ContractError, naming the sample and the field, where one was replaced, or changed its length or its value."""
        for sample, before in zip(self._kept, self._before, strict=True):
            now = _fixed(sample)
            if now != before:
                name = next(name for name, old, new in zip(_FIXED, before, now, strict=True) if old != new)
                raise ContractError(
                    f"{who}: {hook} changed {name} of {where(sample)}, which is kept for training",
                    hint="look, count and log; rewards, tokens and masks are fixed here",
                )


_FIXED = ("reward", "tokens", "loss_mask", "rollout_log_probs", "response_length", "remove_sample", "status")


def _fixed(sample: Sample) -> tuple[Any, ...]:
    reward: Any = sample.reward
    if isinstance(reward, dict):
        reward = {key: part if isinstance(part, int | float | str) else id(part) for key, part in reward.items()}
    tokens, mask, log_probs = sample.tokens, sample.loss_mask, sample.rollout_log_probs
    return (
        reward,
        (id(tokens), len(tokens)),
        None if mask is None else (id(mask), len(mask)),
        None if log_probs is None else (id(log_probs), len(log_probs)),
        sample.response_length,
        sample.remove_sample,
        sample.status,
    )


# Metrics and logs


def check_metrics(who: str, hook: str, metrics: Any, before: dict[str, Any] | None = None) -> None:
    """`metrics` is a dict of finite numbers by name; the keys of `before` are still there, and its counts unchanged."""
    if not isinstance(metrics, dict):
        raise ContractError(f"{who}: {hook} returned {type(metrics).__name__} as metrics; expected a dict of numbers", hint="metrics={}")
    for key, value in metrics.items():
        if before is not None and key in before and value is before[key]:
            continue
        try:
            ok = isinstance(key, str) and not isinstance(value, str) and math.isfinite(value)
        except (TypeError, ValueError, RuntimeError):  # what float() of a foreign object raises
            ok = False
        if not ok:
            raise ContractError(
                f"{who}: {hook} has the metric {key!r} = {type(value).__name__} {value!r:.60}; expected a name and a finite number",
                hint="leave out what has no value, and give a plain number: value.item(), sum(values) / len(values)",
            )
    for key in before or ():
        if key not in metrics or (_is_count(key) and metrics[key] != before[key]):  # type: ignore[index]
            raise ContractError(
                f"{who}: {hook} {'changed' if key in metrics else 'removed'} the metric {key!r}, which is not its own",
                hint="add metrics under other names; return True to skip the built-in log",
            )


def _is_count(key: str) -> bool:
    return key.startswith(("samples_", "groups_")) or key == "removed_samples"


def check_log_answer(who: str, hook: str, answer: Any) -> bool:
    """Whether a log hook asked to skip the built-in log: True; False and None keep it."""
    if answer is None:
        return False
    if is_bool(answer):
        return bool(answer)
    raise ContractError(
        f"{who}: {hook} returned a {type(answer).__name__}; expected True (to skip the built-in log), False or None",
        hint="put numbers into the dict of metrics that it is given; what is added there is logged",
    )
