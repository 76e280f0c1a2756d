"""MLflow: on the server of MLFLOW_TRACKING_URI, else in a database in the run folder."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vime.track.services import ServiceRun

_BATCH = 100
"""Parameters of one request; MLflow takes no more."""
_LONGEST_VALUE = 500


class MlflowService:
    """One run there, through MLflow's client: nothing about the machine, the source code or the command line is recorded."""

    def __init__(self, run: ServiceRun) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # its 7 take minutes, until which nobody is told why
        import logging

        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        for logger in ("mlflow", "alembic"):  # after the import, which sets the level of the first
            logging.getLogger(logger).setLevel(logging.ERROR)

        self._metric: Any = Metric
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(run.folder / 'mlflow.db').resolve()}"
        self._client: Any = MlflowClient(tracking_uri=uri)
        name = run.project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "vime"
        if run.identity is None:
            experiment = self._client.get_experiment_by_name(name)
            number = experiment.experiment_id if experiment is not None else self._client.create_experiment(name)
            self.identity = str(self._client.create_run(number, run_name=run.name).info.run_id)
            params = [Param(key, value[:_LONGEST_VALUE]) for key, value in _flat(run.config)]
            for start in range(0, len(params), _BATCH):
                self._client.log_batch(self.identity, params=params[start : start + _BATCH])
        else:
            self.identity = run.identity
            self._client.update_run(self.identity, status="RUNNING")
        self.where = f"experiment {name}, run {self.identity} at {uri}"

    def log(self, namespace: str, step: int, metrics: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(self.identity, metrics=[self._metric(_allowed(key), value, now, step) for key, value in metrics.items()])

    def close(self, *, failed: bool) -> None:
        self._client.set_terminated(self.identity, "FAILED" if failed else "FINISHED")


def _allowed(key: str) -> str:
    """MLflow's names have letters, digits and `_-./: ` only: `eval/sums-pass@4` is `eval/sums-pass_4` there."""
    return re.sub(r"[^\w./: -]", "_", key, flags=re.ASCII)


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """The settings of a configuration under dotted names; those that are not set are left out."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _flat(part, f"{key}.{name}" if key else str(name))
    elif value is not None and value != []:
        yield _allowed(key), str(value)
