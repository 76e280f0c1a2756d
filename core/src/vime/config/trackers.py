"""Where metrics go: --track, --tensorboard and --wandb, read together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BeforeValidator

from vime.errors import ConfigError

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio"}
"""What each of them imports."""


def _split(value: Any) -> Any:
    """`["tensorboard,wandb"]` -> `["tensorboard", "wandb"]`, each once."""
    if not isinstance(value, list):
        return value
    words = [word.strip() if isinstance(word, str) else word for item in cast("list[Any]", value) for word in _words(item)]
    return list(dict.fromkeys(words)) if all(isinstance(word, str) for word in words) else words


def _words(item: Any) -> list[Any]:
    return [word for word in item.split(",") if word.strip()] if isinstance(item, str) else [item]


TrackerNames = Annotated[list[Literal["tensorboard", "wandb", "mlflow", "trackio"]], BeforeValidator(_split)]


def derived_trackers(config: RunConfig) -> dict[str, Any]:
    """`track` with what --tensorboard and --wandb add to it, and these two as `track` has it. Raises ConfigError where they disagree."""
    names: list[str] = list(config.track) if config.track is not None else ["tensorboard"] if config.tensorboard else []
    for name in ("tensorboard", "wandb"):
        if name not in config.model_fields_set:
            continue
        wanted = getattr(config, name)
        if config.track is not None and not wanted and name in config.track:
            raise ConfigError(f"--track names {name}, and --no-{name} leaves it out", hint="keep one of them")
        if wanted and name not in names:
            names.append(name)
    return {"track": names, "tensorboard": "tensorboard" in names, "wandb": "wandb" in names}
