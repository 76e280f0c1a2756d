"""What one rollout works with: handles that have an owner elsewhere and are passed, not found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vime.rollout.ending import RolloutEnd
from vime.track.trace import Tracer

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.engine.base import HttpSessions, TrainableEngine
    from vime.plugins.manager import PluginManager
    from vime.rollout.rewards import RewardScorer


@dataclass(frozen=True)
class RolloutContext:
    """The configuration and the handles of a rollout.

    `deterministic` admits whole waves of requests and judges groups in the order of submission, so that a run can be
    repeated; without it groups are judged as they complete.
    """

    config: RunConfig
    engine: TrainableEngine
    plugins: PluginManager
    scorer: RewardScorer
    deterministic: bool
    endpoint: HttpSessions | None = None
    """The HTTP endpoint in front of the engine, under --serve-engine."""
    tracer: Tracer = field(default_factory=Tracer)
    """Told where the time of each sample goes, under --trace-step."""
    end: RolloutEnd = field(default_factory=RolloutEnd)
    """Reached when what still generates is to stop; every training rollout has its own."""
