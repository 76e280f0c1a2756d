"""Several rewards of one sample: what each part is shown, what of its answer counts, and their weighted sum."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vime.errors import ContractError
from vime.rollout.reward_guard import BadRewardError, check_number, last_boxed, where
from vime.rollout.reward_worker import HEAVY_FIELDS
from vime.rollout.unchanged import same
from vime.sample import TOTAL, Sample

if TYPE_CHECKING:
    from vime.config.reward_sum import RewardPart

SCORE = "score"
"""The key of a part's dict reward that counts where none is named."""
_NOT_CARRIED = HEAVY_FIELDS | {"metadata", "response", "status"}
"""Fields of a part's copy that are not carried back whole."""


def part_value(value: object, part: RewardPart, who: str, sample: Sample) -> float:
    """The number that a part gives: the value itself, or of a dict what `part.key` names, else its `score`, else its only value.

    Raises BadRewardError for what is no finite number, and ContractError for a dict that does not say which value counts:
    that is a matter of configuration.
    """
    if not isinstance(value, dict):
        if part.key is not None:
            raise ContractError(
                f"{who} returned {value!r:.80} for {where(sample)}, and rm_type asks for its {part.key!r}",
                hint=f"leave out ':{part.key}', or return a dict",
            )
        return check_number(value, who, "as the reward", sample)
    if not value:
        raise BadRewardError(f"{who} returned an empty dict for {where(sample)}", hint="return a number, or a dict with a number")
    key = part.key
    if key is None:
        key = SCORE if SCORE in value else next(iter(value)) if len(value) == 1 else None
    if key is None or key not in value:
        missing = "nothing says which value counts" if key is None else f"there is no {key!r}"
        raise ContractError(
            f"{who} returned a dict with the keys {sorted(map(str, value))} for {where(sample)}, and {missing}",
            hint=f"name it in rm_type, as in {part.name}:{next(iter(value))}+...",
        )
    return check_number(value[key], who, f"under {key!r}", sample)


class ScoreSheet:
    """The parts of one sample's reward, until all of them are there."""

    def __init__(self, sample: Sample, parts: Iterable[RewardPart]) -> None:
        self.sample = sample
        self.unscored = sample.reward is None
        """Before any part was called: the failure of one may give the sample a zero while others are still to be counted."""
        self.parts = {part.name: part for part in parts}
        self._values: dict[str, float] = {}
        self._shown: dict[str, tuple[dict[str, Any], Sample]] = {}

    @property
    def name(self) -> str:
        """Who gave the reward, for messages: `math+format`."""
        return "+".join(self.parts)

    def show(self, part: RewardPart) -> Sample:
        """A copy of the sample for one part, which runs beside the others: with metadata of its own."""
        shown = copy.copy(self.sample)
        shown.metadata = dict(shown.metadata)
        if self.unscored:
            shown.reward = None  # the zero that a part which failed already has left
        if part.boxed:
            shown.response = last_boxed(shown.response)
        self._shown[part.name] = ({**vars(shown), "metadata": dict(shown.metadata)}, shown)
        return shown

    def add(self, part: RewardPart, value: float) -> dict[str, float] | None:
        """Take in the value of a part. The reward, once all parts are there; None as long as one is missing or failed."""
        self._values[part.name] = value
        if len(self._values) < len(self.parts):
            return None
        total = sum(part.weight * self._values[name] for name, part in self.parts.items())
        return {**{name: self._values[name] for name in self.parts}, TOTAL: total}

    def zero(self) -> dict[str, float]:
        """The reward of a sample of which a part failed, under `--on-reward-error zero`."""
        return dict.fromkeys([*self.parts, TOTAL], 0.0)

    def carry_back(self) -> None:
        """Give the sample what its parts wrote, in their order: entries of the metadata one by one, other attributes whole.

        Raises ContractError where a part left something else than a dict as the metadata.
        """
        for name, (before, shown) in ((name, self._shown[name]) for name in self.parts if name in self._shown):
            if not isinstance(shown.metadata, dict):
                raise ContractError(
                    f"the reward {name!r} set the metadata of {where(self.sample)} to a {type(shown.metadata).__name__}; expected a dict",
                    hint="write entries: sample.metadata[key] = value",
                )
            _merge(before["metadata"], shown.metadata, self.sample.metadata)
            after = {name: value for name, value in vars(shown).items() if name not in _NOT_CARRIED}
            _merge({name: before[name] for name in after if name in before}, after, vars(self.sample))


def _merge(before: dict[str, Any], after: dict[str, Any], into: dict[str, Any]) -> None:
    """Make in `into` the changes that led from `before` to `after`."""
    into.update({name: value for name, value in after.items() if name not in before or not same(before[name], value)})
    for name in before.keys() - after.keys():
        into.pop(name, None)
