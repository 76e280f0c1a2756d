"""Several rewards at once: `--rm-type math+format` and `--reward-weights math=1,format=0.2`, read and checked.

Only what the words themselves tell; whether an enabled plugin answers to a part is asked by vime.rollout.reward_resolver.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

from packaging.utils import canonicalize_name
from pydantic import BeforeValidator

from vime.config.kinds import FromText
from vime.config.names import nearest
from vime.config.upstream import REWARD_ALIASES
from vime.errors import ConfigError
from vime.sample import TOTAL

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig

_EXPECTED = "NAME=NUMBER,NAME=NUMBER"
_EXAMPLE = "--reward-weights math=1,format=0.2"


@dataclass(frozen=True)
class RewardPart:
    """One part of a sum: `boxed_math`, or `dapo:acc` for what a plugin's dict rewards have under one key."""

    name: str
    """As it was written, without the key: its key in the sample's reward, in metrics, and in the weights."""
    plugin: str
    """The plugin's name as PEP 503 compares it, without `boxed_`."""
    boxed: bool
    key: str | None = None
    weight: float = 1.0

    @property
    def identity(self) -> tuple[bool, str]:
        """Equal for two spellings of one part, upstream's names among them."""
        return self.boxed, REWARD_ALIASES.get(self.plugin, self.plugin)


def is_sum(rm_type: object) -> bool:
    """Whether an rm_type names several rewards."""
    return isinstance(rm_type, str) and "+" in rm_type


def parts_of(rm_type: str, weights: Mapping[str, float] | None, what: str) -> tuple[RewardPart, ...]:
    """The parts of an rm_type with a "+", in order, with their weights: 1 where none is given.

    Raises ConfigError, beginning with `what`, for an empty part, one that is named twice, and one named `total`.
    """
    given = {_part(name).identity: weight for name, weight in (weights or {}).items()}
    parts: list[RewardPart] = []
    for word in rm_type.split("+"):
        if not word.strip():
            raise ConfigError(f"{what} {rm_type!r}: there is nothing on one side of a '+'", hint="write it as in --rm-type math+format")
        part = _part(word.strip(), given)
        if not part.plugin or part.key == "":
            raise ConfigError(f"{what} {rm_type!r}: {word.strip()!r} is no part of a sum", hint="NAME, boxed_NAME, or NAME:KEY")
        if part.plugin == TOTAL:
            raise ConfigError(f"{what} {rm_type!r}: no part can be named {TOTAL!r}, the key of the sum", hint="rename the plugin")
        twin = next((other for other in parts if other.identity == part.identity), None)
        if twin is not None:
            hint = f"name it once; --reward-weights {part.name}=2 counts it twice"
            raise ConfigError(f"{what} {rm_type!r}: {twin.name!r} and {part.name!r} are one reward", hint=hint)
        parts.append(part)
    return tuple(parts)


def _part(word: str, weights: Mapping[tuple[bool, str], float] | None = None) -> RewardPart:
    name, colon, key = (piece.strip() for piece in word.partition(":"))
    boxed = name.startswith("boxed_")
    part = RewardPart(name, canonicalize_name(name.removeprefix("boxed_")), boxed, key if colon else None)
    return RewardPart(part.name, part.plugin, part.boxed, part.key, (weights or {}).get(part.identity, 1.0))


def sums_of(config: RunConfig) -> dict[str, str]:
    """The sums that score samples, by who names them: `--rm-type`, and evaluation datasets. None where a path function scores all."""
    if config.custom_rm_path is not None:
        return {}
    named: dict[str, Any] = {"--rm-type": config.rm_type}
    for dataset in config.eval_datasets:
        if dataset.custom_rm_path is None:
            own = dataset.rm_type if dataset.sets("rm_type") else None
            named[f"evaluation dataset {dataset.name!r}: rm_type"] = dataset.metadata_overrides.get("rm_type") or own
    return {what: rm_type for what, rm_type in named.items() if is_sum(rm_type)}


def derived_keys(config: RunConfig) -> dict[str, str]:
    """reward_key and eval_reward_key as they follow from sums: `total`, where the user set none."""
    sums = sums_of(config)
    derived: dict[str, str] = {}
    if config.reward_key is None and "--rm-type" in sums:
        derived["reward_key"] = TOTAL
    if config.eval_reward_key is None and config.reward_key is None and sums:
        derived["eval_reward_key"] = TOTAL
    return derived


def refuse_bad_sums(config: RunConfig) -> None:
    """Raise ConfigError for sums that cannot be, for weights of nothing, and for a reward key that a sum does not have."""
    weights = config.reward_weights
    sums = {what: parts_of(rm_type, weights, what) for what, rm_type in sums_of(config).items()}
    _refuse_keys(config, sums)
    if weights is None:
        return
    if config.custom_rm_path is not None:
        raise ConfigError("--reward-weights has no effect with --custom-rm-path, which scores every sample", hint="keep one of them")
    if not sums:
        only = f"--rm-type {config.rm_type} is one reward" if config.rm_type else "no --rm-type names several rewards"
        names = list(dict.fromkeys(name for name in (config.rm_type, *weights) if name))
        shown = "+".join(names) if len(names) > 1 else "math+format"
        raise ConfigError(f"--reward-weights is set, but {only}", hint=f"name the parts of the sum, as in --rm-type {shown}")
    known = {part.identity: part for parts in sums.values() for part in parts}
    seen: dict[tuple[bool, str], str] = {}
    for name in weights:
        identity = _part(name).identity
        if identity not in known or ":" in name:
            names = list(dict.fromkeys(part.name for part in known.values()))
            close = nearest(name.partition(":")[0], names)
            hint = f"did you mean {close!r}?" if close else "the parts are " + ", ".join(names)
            raise ConfigError(f"--reward-weights: {name!r} is no part of {' or '.join(sums_of(config).values())}", hint=hint)
        if identity in seen:
            raise ConfigError(f"--reward-weights: {seen[identity]!r} and {name!r} are one reward", hint="give it one weight")
        seen[identity] = name


def _refuse_keys(config: RunConfig, sums: Mapping[str, tuple[RewardPart, ...]]) -> None:
    """A sum has the keys of its parts and `total`: another reward key would fail at the first sample."""
    inherited = any(dataset.custom_rm_path is None and not dataset.sets("rm_type") for dataset in config.eval_datasets)
    for what, parts in sums.items():
        training = what == "--rm-type"
        named = {"--reward-key": config.reward_key} if training else {}
        if (inherited or not training) and config.eval_reward_key != config.reward_key:
            named["--eval-reward-key"] = config.eval_reward_key
        elif not training:
            named["--reward-key"] = config.reward_key
        keys = [*(part.name for part in parts), TOTAL]
        for flag, key in named.items():
            if key is not None and key not in keys:
                hint = f"leave it out, which takes {TOTAL!r}" if training else f"--eval-reward-key {TOTAL}"
                raise ConfigError(f"{flag} is {key!r}, but the rewards of {what} have the keys {', '.join(keys)}", hint=hint)


def read_weights(value: Any) -> Any:
    """`math=1,format=0.2`, or a mapping, as a dict of finite numbers. Raises ConfigError, naming the part, for anything else."""
    if value is None:
        return None
    if isinstance(value, str):
        value = _from_text(value)
    if not isinstance(value, Mapping) or not value:
        raise ConfigError(f"--reward-weights: expected {_EXPECTED} or a mapping of names to numbers, got {value!r}", hint=_EXAMPLE)
    weights: dict[str, float] = {}
    for name, weight in cast("Mapping[Any, Any]", value).items():
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"--reward-weights: expected the name of a reward, got {name!r}", hint=_EXAMPLE)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not _finite(weight):
            raise ConfigError(f"--reward-weights: expected a finite number for {name!r}, got {weight!r}", hint=_EXAMPLE)
        weights[name.strip()] = float(weight)
    return weights


def _from_text(text: str) -> dict[str, Any]:
    weights: dict[str, Any] = {}
    for pair in text.split(","):
        name, equals, number = (piece.strip() for piece in pair.partition("="))
        if not (name and equals and number):
            raise ConfigError(f"--reward-weights: expected {_EXPECTED}, got {pair.strip()!r} in {text!r}", hint=_EXAMPLE)
        if name in weights:
            raise ConfigError(f"--reward-weights: {name!r} has two weights in {text!r}", hint="keep one of them")
        try:
            weights[name] = float(number)
        except ValueError:
            weights[name] = number
    return weights


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number that no float can hold
        return False


RewardWeights = Annotated[dict[str, float], BeforeValidator(read_weights), FromText(_EXPECTED)]
"""Weights by part. Kept as a dict, so that `config.yaml` and `args` show each."""
