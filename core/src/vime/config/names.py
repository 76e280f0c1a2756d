"""Names of flags and keys: spelling, aliases, and the nearest right name for a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

ALIASES = {
    "model": "hf_checkpoint",
    "seed": "rollout_seed",
    "plugins": "plugin",
    "use_wandb": "wandb",
    "use_tensorboard": "tensorboard",
    "wandb_project": "track_project",
    "log_probs_chunk_size": "logprob_chunk_size",
}
"""Other names of a field, as a flag and in the file."""
NEGATIONS = {"disable_rewards_normalization": "rewards_normalization"}
"""Upstream flags that switch a field off."""


def flag_of(field: str) -> str:
    """`rollout_batch_size` -> `--rollout-batch-size`."""
    return "--" + field.replace("_", "-")


def field_of(name: str) -> str:
    """The field that a flag (without its dashes) or a key of the file names; a name that is unknown comes back as it is."""
    snake = name.replace("-", "_")
    return ALIASES.get(snake, snake)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like `name`, where one does."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None
