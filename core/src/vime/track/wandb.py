"""Weights & Biases: online where its key is known, else offline into the run folder."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vime.track.services import ServiceRun


class WandbService:
    """One run there. Every namespace has a step of its own, `<namespace>/step`, which its charts are drawn over.

    WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY, WANDB_RUN_GROUP and wandb's other variables are honoured.
    """

    def __init__(self, run: ServiceRun) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        # Command line, environment, source code and console may hold secrets: none of it is recorded.
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        # Without a key wandb would ask for one on the terminal.
        mode: Any = os.environ.get("WANDB_MODE") or ("online" if wandb.login(prompt=False) else "offline")
        self._run: Any = wandb.init(
            project=run.project or os.environ.get("WANDB_PROJECT") or "vime",
            name=os.environ.get("WANDB_NAME") or run.name,
            id=run.identity or uuid.uuid4().hex[:12],
            resume="allow",
            dir=str(run.folder),
            config=run.config,
            mode=mode,
            settings=settings,
        )
        self.identity = str(self._run.id)
        kept = str(self._run.dir).removesuffix("/files")
        self.where = str(self._run.url) if mode == "online" else f"kept in {kept}; wandb sync {kept} sends it"
        self._namespaces: set[str] = set()

    def log(self, namespace: str, step: int, metrics: Mapping[str, float]) -> None:
        if namespace not in self._namespaces:
            self._namespaces.add(namespace)
            self._run.define_metric(f"{namespace}/step", hidden=True)
            self._run.define_metric(f"{namespace}/*", step_metric=f"{namespace}/step")
        self._run.log({**metrics, f"{namespace}/step": step})

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
