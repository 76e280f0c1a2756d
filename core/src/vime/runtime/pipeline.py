"""When rollouts are made: before the step that trains on them (sync), during the one before (async), or all the time (continuous).

The loop is the same for the three: `take` the rollout of a step, train, `settle` what must not see a change of weights,
sync, `weights_changed`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from vime.errors import ConfigError
from vime.rollout.data_source import RolloutDataSource
from vime.rollout.runner import BUILT_IN_PATHS, RolloutRunner
from vime.rollout.stream import GroupStream
from vime.runtime.interrupts import Interrupted

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.engine.base import TrainableEngine
    from vime.plugins.manager import PluginManager
    from vime.rollout.data_source import DataSource
    from vime.rollout.debug_data import SavedRollouts
    from vime.rollout.dynamic_sampling import Collected
    from vime.rollout.runner import Rollout
    from vime.runtime.event_loop import RunLoop
    from vime.track.console import Console, RolloutProgress


@dataclass(frozen=True)
class Made:
    """A rollout, the seconds from its begin to its end, and what the engine counted meanwhile."""

    rollout: Rollout
    seconds: float
    stats: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class Position:
    """What a resumed run needs to make the rollouts again that no step has trained on."""

    data_source: dict[str, Any] | None
    plugins: dict[str, Any]
    in_flight: list[list[dict[str, Any]]] = field(default_factory=list[list[dict[str, Any]]])
    """Groups that the data source has handed out and that are not in its state."""


class Pipeline(Protocol):
    """Called by the main thread. Whatever a rollout raises comes out of `take` or `settle`, an interrupt out of `take` only."""

    def take(self, rollout_id: int) -> Made:
        """The rollout of the step that begins."""
        ...

    def settle(self) -> None:
        """Wait for what must be over before the weights change."""
        ...

    def weights_changed(self) -> None: ...

    def position(self) -> Position:
        """Where a run that is resumed at this moment, between two steps, goes on."""
        ...

    def stop(self) -> None:
        """End what is under way; it is not taken any more."""
        ...


class Workshop:
    """What rollouts are made with, and what the console shows of them."""

    def __init__(
        self,
        config: RunConfig,
        loop: RunLoop,
        console: Console,
        plugins: PluginManager,
        runner: RolloutRunner | SavedRollouts,
        source: DataSource | None,
        engine: TrainableEngine | None,
    ) -> None:
        self.config, self.loop, self.console, self.plugins = config, loop, console, plugins
        self.runner, self.source, self.engine = runner, source, engine
        self._shown: RolloutProgress | None = None
        self._since = self._stats_since = time.perf_counter()

    async def make(self, rollout_id: int) -> Made:
        """Make one rollout, without the engine's counters."""
        self._since = started = time.perf_counter()
        rollout = await self.runner.train(rollout_id, self._show)
        return Made(rollout, time.perf_counter() - started)

    def prepare(self, rollout_id: int, *, ahead: int = 0) -> None:
        """Tell the data source what is made next, and the version of the weights that will be trained on it."""
        if isinstance(self.source, RolloutDataSource):
            self.source.rollout_id = rollout_id
            self.source.weight_version = None if self.engine is None else self.engine.weight_version + ahead

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Show the progress of the rollout that is made, while the main thread waits for it."""
        with self.console.rollout_progress(self.config.rollout_batch_size) as self._shown:
            try:
                yield
            finally:
                self._shown = None

    def stats(self) -> dict[str, float]:
        """The engine's counters since the last call, and `seconds` since then."""
        now = time.perf_counter()
        seconds, self._stats_since = now - self._stats_since, now
        return {} if self.engine is None else {"seconds": seconds, **self.engine.stats()}

    def position(self) -> Position:
        state = getattr(self.source, "state_dict", None)
        return Position(None if state is None else state(), self.plugins.state_dict())

    def _show(self, collected: Collected) -> None:
        if (shown := self._shown) is not None:  # the main thread may stop showing at any moment
            shown.update(len(collected.kept), collected.drop_reasons, collected.tokens / (time.perf_counter() - self._since))


class Sync:
    """A rollout is made when its step begins, by the weights of that step."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    def take(self, rollout_id: int) -> Made:
        workshop = self._workshop
        workshop.prepare(rollout_id)
        with workshop.showing():
            made = workshop.loop.run(workshop.make(rollout_id))
        return Made(made.rollout, made.seconds, {**workshop.stats(), "seconds": made.seconds})

    def settle(self) -> None:
        pass

    def weights_changed(self) -> None:
        pass

    def position(self) -> Position:
        return self._workshop.position()

    def stop(self) -> None:
        self._workshop.loop.settle()


class Overlapped:
    """Rollout k+1 is made while step k trains, by the weights that step k began with. The weights change between two rollouts."""

    def __init__(self, workshop: Workshop, num_rollout: int) -> None:
        self._workshop, self._num_rollout = workshop, num_rollout
        self._under_way: asyncio.Task[Made] | None = None
        self._ready: Made | None = None
        self._before: Position | None = None
        """Where the rollout began that is ready or under way."""
        workshop.loop.in_background()

    def take(self, rollout_id: int) -> Made:
        if self._ready is None:
            self._begin(rollout_id, ahead=0)
            self._finish()
        made, self._ready, self._before = self._ready, None, None
        assert made is not None
        if rollout_id + 1 < self._num_rollout:
            self._begin(rollout_id + 1, ahead=1)
        return made

    def _begin(self, rollout_id: int, *, ahead: int) -> None:
        workshop = self._workshop
        self._before = workshop.position()
        workshop.prepare(rollout_id, ahead=ahead)
        workshop.stats()
        self._under_way = workshop.loop.start(workshop.make(rollout_id))

    def settle(self) -> None:
        # The step has trained, so that it ends as a whole; the run stops before the next one, and this rollout is made anew.
        with contextlib.suppress(Interrupted):
            self._finish()

    def _finish(self) -> None:
        """Wait for what is under way."""
        task, self._under_way = self._under_way, None
        if task is None:
            return
        workshop = self._workshop
        with workshop.showing():
            made = workshop.loop.run(_outcome(task))
        self._ready = Made(made.rollout, made.seconds, {**workshop.stats(), "seconds": made.seconds})

    def weights_changed(self) -> None:
        pass

    def position(self) -> Position:
        """That of the rollout ahead, which a resumed run makes again.

        Of plugins that no rollout calls, the state is that of now.
        """
        if self._before is None:
            return self._workshop.position()
        plugins = self._workshop.plugins
        before = {name: state for name, state in self._before.plugins.items() if _sees_rollouts(plugins, name)}
        return Position(self._before.data_source, plugins.state_dict() | before)

    def stop(self) -> None:
        self._workshop.loop.settle()


class Continuous:
    """Groups are generated all the time, through changes of the weights; a step takes the oldest that are finished."""

    def __init__(self, workshop: Workshop, first: int, last: int) -> None:
        self._workshop = workshop
        assert isinstance(workshop.runner, RolloutRunner) and workshop.source is not None, "the rules refuse saved rollouts"
        workshop.loop.in_background()
        built_in = workshop.runner.built_in
        self._stream = workshop.loop.call(lambda: GroupStream(built_in.context, built_in.source, first=first, last=last))  # type: ignore[arg-type]
        built_in.stream = self._stream
        self._taken_at = time.perf_counter()

    def take(self, rollout_id: int) -> Made:
        workshop = self._workshop
        with workshop.showing():
            made = workshop.loop.run(workshop.make(rollout_id))
        began, self._taken_at = self._taken_at, time.perf_counter()
        return Made(made.rollout, self._taken_at - began, workshop.stats())

    def settle(self) -> None:
        self._stream.check()

    def weights_changed(self) -> None:
        self._workshop.loop.call(self._stream.weights_changed)

    def position(self) -> Position:
        def look() -> Position:
            now = self._workshop.position()
            return Position(now.data_source, now.plugins, self._stream.unfinished())

        return self._workshop.loop.call(look)

    def stop(self) -> None:
        self._workshop.loop.complete(self._stream.stop())
        self._workshop.loop.settle()


async def _outcome(task: asyncio.Task[Made]) -> Made:
    return await task


_NOT_OF_ROLLOUTS = frozenset(
    {
        "post_process_rewards",
        "convert_samples_to_train_data",
        "rollout_data_postprocess",
        "compute_advantages",
        "policy_loss",
        "importance_weights",
        "pg_loss_reducer",
        "log_eval_rollout_data",
    }
)
"""Hooks that no rollout calls, but training and evaluations."""


def _sees_rollouts(plugins: PluginManager, name: str) -> bool:
    plugin = plugins.get(name)
    return plugin is not None and not plugin.hooks.keys() <= _NOT_OF_ROLLOUTS


def pipeline_of(workshop: Workshop, first: int, num_rollout: int) -> Pipeline:
    """The pipeline that `--pipeline` names, for the rollouts `first` to `num_rollout` - 1."""
    if first >= num_rollout or workshop.config.pipeline == "sync":
        return Sync(workshop)
    if workshop.config.pipeline == "async":
        return Overlapped(workshop, num_rollout)
    return Continuous(workshop, first, num_rollout)


def refuse_rollout_functions(config: RunConfig, plugins: PluginManager) -> None:
    """Raise ConfigError, naming the plugin, where another than the built-in rollout would have to be continuous."""
    if config.pipeline != "continuous" or config.rollout_function_path in BUILT_IN_PATHS:
        return
    claimed = plugins.claimed("generate_rollout")
    if claimed is not None:
        raise ConfigError(
            f"--pipeline continuous takes groups out of a stream, and {claimed.label} makes whole rollouts (generate_rollout)",
            hint="use --pipeline async, or write a custom_generate, which the stream calls for each sample",
        )


def refuse_data_source(config: RunConfig, source: DataSource | None) -> None:
    """Raise ConfigError for a data source whose prompts a pipeline would lose: drawn ahead, and not drawn again after a resume."""
    if config.pipeline == "sync" or source is None:
        return
    name = type(source).__name__
    if not all(callable(getattr(source, method, None)) for method in ("state_dict", "load_state_dict")):
        raise ConfigError(
            f"--pipeline {config.pipeline} draws prompts ahead, and the data source {name} has no state_dict and load_state_dict "
            "to go back to where a checkpoint belongs",
            hint="add the two methods (docs/data.md), derive it from RolloutDataSourceWithBuffer, or use --pipeline sync",
        )
    if config.pipeline == "continuous" and type(source).add_samples is RolloutDataSource.add_samples:
        raise ConfigError(
            f"--pipeline continuous puts unfinished groups back after a resume, and the data source {name} takes none",
            hint="derive it from RolloutDataSourceWithBuffer",
        )
