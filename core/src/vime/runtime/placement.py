"""Where the engine and the trainer of a run live: in this process, or elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vime.engine.base import TrainableEngine
from vime.runtime.build import engine_dtype
from vime.train.base import Trainer

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.plugins.manager import PluginManager


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a run asks of its placement. `concurrency` is the number of requests that it has in flight at most."""

    config: RunConfig
    model_path: str
    plugins: PluginManager
    warn: Callable[[str], object]
    say: Callable[[str], object]
    phase: Callable[[str], AbstractContextManager[Any]] = lambda _: nullcontext()
    """Says what is being done, for as long as the context lasts."""
    logs: Path = Path("logs")
    """The folder for what other processes print."""
    deterministic: bool
    concurrency: int
    trainer: bool
    engine: bool


class Placement(Protocol):
    """Starts the engine and the trainer and hands out what the run talks to. Called from the main thread, in this order."""

    def open(self, needs: Needs) -> None:
        """Reserve what the run needs. Raises ConfigError where it is not to be had."""
        ...

    def start_trainer(self) -> Trainer: ...

    def start_engine(self) -> TrainableEngine: ...

    def before_training(self) -> None:
        """Called before the trainer takes over: engines that share its devices go to sleep."""
        ...

    def push_weights(self, version: int) -> None:
        """Give the engine the trainer's weights; they have arrived when this returns. Raises EngineError where they have not.

        Requests in flight go on (`keep_requests` of update_weights) where `keeps_requests(config)`.
        """
        ...

    def close(self) -> None:
        """Release what `open` reserved, after engine and trainer were closed."""
        ...


def keeps_requests(config: RunConfig) -> bool:
    """Whether requests are in flight while the weights change, and go on under the new ones."""
    return config.pipeline == "continuous"


def placement_of(config: RunConfig) -> Placement:
    """The placement that `--runtime` names."""
    if config.runtime == "ray":
        from vime.runtime.ray.placement import RayPlacement

        return RayPlacement(config.ray_address)
    return InProcess()


class InProcess:
    """Engine and trainer beside the loop, in one process (`--runtime local`)."""

    def __init__(self) -> None:
        self._trainer: Trainer | None = None
        self._engine: TrainableEngine | None = None

    def open(self, needs: Needs) -> None:
        self._needs = needs

    def start_trainer(self) -> Trainer:
        from vime.train.deepspeed_trainer import DeepSpeedTrainer

        needs = self._needs
        self._trainer = DeepSpeedTrainer(needs.config, needs.model_path, plugins=needs.plugins, warn=needs.warn)
        return self._trainer

    def start_engine(self) -> TrainableEngine:
        import torch

        from vime.engine.local import LocalEngine, SteppedEngine

        needs = self._needs
        kind = SteppedEngine if needs.config.pipeline == "sync" else LocalEngine  # engine and trainer take turns, or work side by side
        self._engine = kind(
            needs.config,
            needs.model_path,
            dtype=engine_dtype(needs.config, needs.model_path, on_cpu=not torch.cuda.is_available()),
            deterministic=needs.deterministic,
            concurrency=needs.concurrency,
        )
        return self._engine

    def before_training(self) -> None:
        pass

    def push_weights(self, version: int) -> None:
        assert self._trainer is not None and self._engine is not None, "a run that syncs has both"
        self._engine.update_weights(self._trainer.named_weights(), version, keep_requests=keeps_requests(self._needs.config))

    def close(self) -> None:
        pass
