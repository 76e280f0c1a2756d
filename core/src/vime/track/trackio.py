"""trackio: local files below TRACKIO_DIR, or the Space or server that its own variables name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vime.track.services import ServiceRun


class TrackioService:
    """One run there. `trackio show --project vime` opens its page."""

    def __init__(self, run: ServiceRun) -> None:
        import trackio

        project = run.project or os.environ.get("TRACKIO_PROJECT") or "vime"
        self._run: Any = trackio.init(
            project=project,
            name=run.identity or run.name,
            resume="never" if run.identity is None else "allow",
            config=run.config,
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self.identity = str(self._run.name)
        self.where = f"trackio show --project {project}"

    def log(self, namespace: str, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, *, failed: bool) -> None:
        self._run.finish()
