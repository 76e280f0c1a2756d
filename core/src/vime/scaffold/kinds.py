"""What `vime plugin new --kind` takes, and what differs between the kinds. The code itself is under templates/KIND."""

from __future__ import annotations

from dataclasses import dataclass

from vime.config.names import nearest
from vime.errors import ConfigError


@dataclass(frozen=True)
class Kind:
    """One kind of plugin."""

    name: str
    """As `--kind` takes it; also the folder of its templates."""
    hook: str
    contract: str
    """Its class in vime.testing.contracts."""
    description: str
    """What the package says it is, without a full stop; `{name}` is the plugin's name."""
    about: str
    """A sentence or two for the README: what the plugin does as it is written."""
    setting: str = ""
    """An example for `--set`, where the plugin has settings: `truncated=-0.5`."""
    train: str = "--plugin math --plugin {name}"
    """The flags of `vime train` with which the plugin takes part in a run of the quickstart model."""

    @property
    def companions(self) -> list[str]:
        """Distributions that `train` needs beside the plugin's own."""
        return ["vime-rm-math"] if "--plugin math" in self.train else []

    @property
    def module(self) -> str:
        """The module of the package that holds the plugin."""
        return self.name.replace("-", "_")

    @property
    def suffix(self) -> str:
        """What the names of its classes end with."""
        return "".join(part.capitalize() for part in self.name.split("-"))


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "reward",
            "custom_rm",
            "RewardContract",
            "The reward {name} for vime",
            "A response is worth 1.0 where its answer is the label, else 0.0. "
            "The answer is the content of the last `\\boxed{}`, or the whole response where there is none.",
            setting="truncated=-0.5",
            train="--plugin {name}",
        ),
        Kind(
            "filter",
            "dynamic_sampling_filter",
            "FilterContract",
            "The group filter {name} for vime",
            "Groups whose rewards are all the same are dropped, and other prompts take their place.",
            setting="min_spread=0.1",
        ),
        Kind(
            "buffer-filter",
            "buffer_filter",
            "BufferFilterContract",
            "The buffer filter {name} for vime",
            "Of the groups that wait in the buffer, those with the most tokens go first. "
            "With `--over-sampling-batch-size` there are surplus groups for it.",
            train="--plugin math --plugin {name} --over-sampling-batch-size 24",
        ),
        Kind(
            "sample-filter",
            "rollout_sample_filter",
            "SampleFilterContract",
            "The sample filter {name} for vime",
            "Empty and very long responses are left out of the loss; they stay in their groups.",
            setting="max_tokens=1024",
        ),
        Kind(
            "rollout",
            "generate_rollout",
            "RolloutContract",
            "The rollout {name} for vime",
            "The built-in rollout, with the metric `rollout/different_responses`: how many different responses a group has.",
        ),
        Kind(
            "generate",
            "custom_generate",
            "GenerateContract",
            "The generation {name} for vime",
            "One response to each prompt, and the place where a tool call would go.",
        ),
        Kind(
            "post-process",
            "post_process_rewards",
            "PostProcessContract",
            "The reward shaping {name} for vime",
            "Rewards are trained as their distance from the mean of their group.",
        ),
    )
}
"""All kinds by name."""


def find_kind(name: str | None) -> Kind:
    """The kind of this name. Raises ConfigError, with the nearest one, where there is none."""
    kinds = ", ".join(KINDS)
    if name is None:
        raise ConfigError("which kind of plugin? --kind is missing", hint=f"--kind takes one of: {kinds}")
    if name not in KINDS:
        close = next((kind.name for kind in KINDS.values() if kind.hook == name), None) or nearest(name, KINDS)
        raise ConfigError(
            f"there is no kind of plugin {name!r}", hint=f"did you mean --kind {close}?" if close else f"--kind takes one of: {kinds}"
        )
    return KINDS[name]
