"""The services that metrics also go to (Weights & Biases, MLflow, trackio), each behind a thread of its own.

A service may fail or hang at any moment: it is warned of once and left out, and training goes on at its own speed.
"""

from __future__ import annotations

import contextlib
import io
import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

SERVICES = {
    "wandb": ("Weights & Biases", "vime.track.wandb:WandbService"),
    "mlflow": ("MLflow", "vime.track.mlflow:MlflowService"),
    "trackio": ("trackio", "vime.track.trackio:TrackioService"),
}
"""By the name in --track: what it is called, and what is imported when it is asked for."""
PATIENCE = 60.0
"""Seconds that one call of a service may take before it counts as hanging."""
START_WAIT = 30.0
"""Seconds that a run waits for the start of a service; after that it goes on, and the service may still come."""
CLOSE_WAIT = 30.0
"""Seconds that the end of a run waits for what has not been sent yet."""


@dataclass(frozen=True)
class ServiceRun:
    """What a service is told about a run."""

    name: str
    """That of the run folder."""
    folder: Path
    project: str | None
    """As --track-project has it; None leaves it to the service's own environment variable, or `vime`."""
    config: dict[str, Any]
    """Plain data without secrets."""
    identity: str | None = None
    """Of the run in the service, where this one continues it."""


class Service(Protocol):
    """A run in a service. Made with a ServiceRun; whatever is raised switches it off."""

    identity: str
    """How the service finds this run again."""
    where: str
    """Where a person finds it."""

    def log(self, namespace: str, step: int, metrics: Mapping[str, float]) -> None:
        """Finite numbers under their full names. Steps of a namespace increase strictly."""
        ...

    def close(self, *, failed: bool) -> None: ...


class Services:
    """All services of a run. `trackers.json` in the run folder says how to find them again, and what each one has got."""

    def __init__(
        self,
        names: list[str],
        run: ServiceRun,
        *,
        logged: Mapping[str, int],
        say: Callable[[str], None],
        warn: Callable[[str], None],
        load: Callable[[str], Callable[[ServiceRun], Service]] | None = None,
    ) -> None:
        """`logged` has the last step of each namespace that metrics.jsonl holds. `load` finds the class of a service."""
        self._file = run.folder / "trackers.json"
        self._known = _read(self._file)
        self._threads: dict[str, ServiceThread] = {}
        load = load or load_service
        starts: dict[str, Callable[[], Service]] = {}
        for name in names:
            before = self._known.get(name) or {}
            sent = dict(before.get("sent") or {})
            if before:
                sent |= {namespace: max(step, sent.get(namespace, step)) for namespace, step in logged.items()}
            self._known[name] = {"run": before.get("run"), "sent": sent}
            own = ServiceRun(run.name, run.folder, run.project, run.config, before.get("run"))

            def start(name: str = name, own: ServiceRun = own) -> Service:
                service = load(name)(own)
                self._known[name]["run"] = service.identity
                say(f"{SERVICES[name][0]}: {service.where}")
                return service

            starts[name] = start
        deadline = time.monotonic() + START_WAIT
        with contextlib.redirect_stdout(io.StringIO()):  # stdout is for the results of commands
            self._threads |= {name: ServiceThread(SERVICES[name][0], start, warn) for name, start in starts.items()}
            for thread in self._threads.values():
                thread.started.wait(max(0.0, deadline - time.monotonic()))
        if names:
            self.remember()

    def log(self, namespace: str, step: int, metrics: Mapping[str, float]) -> None:
        """Hand a line to every service that has not got this step yet: a resumed run may come by it a second time."""
        for name, thread in self._threads.items():
            sent = self._known[name]["sent"]
            if step > sent.get(namespace, -1):
                sent[namespace] = step
                thread.put(lambda service: service.log(namespace, step, metrics))

    def remember(self) -> None:
        """Write trackers.json."""
        aside = self._file.with_suffix(".tmp")
        with contextlib.suppress(OSError):
            aside.write_text(json.dumps(self._known, indent=1) + "\n", encoding="utf-8")
            aside.replace(self._file)

    def close(self, *, failed: bool) -> None:
        """Send what is left, and end the runs in the services."""
        if not self._threads:
            return
        for thread in self._threads.values():
            thread.put(lambda service: service.close(failed=failed), last=True)
        deadline = time.monotonic() + CLOSE_WAIT
        with contextlib.redirect_stdout(io.StringIO()):
            for thread in self._threads.values():
                thread.join(max(0.0, deadline - time.monotonic()))
        self.remember()


Job = Callable[[Service], object]


class ServiceThread:
    """Starts a service and makes its calls, one after another. The first failure is told, and the last thing that is done."""

    def __init__(self, label: str, start: Callable[[], Service], warn: Callable[[str], None]) -> None:
        self._label, self._start, self._warn = label, start, warn
        self._jobs: queue.SimpleQueue[tuple[Job, bool]] = queue.SimpleQueue()
        self._busy_since: float | None = time.monotonic()
        self._is_off = False
        self.started = threading.Event()
        """Set when the service is there, or has failed."""
        self._thread = threading.Thread(target=self._run, name=f"vime-track-{label}", daemon=True)
        self._thread.start()

    def put(self, job: Job, *, last: bool = False) -> None:
        """Have a call made when its turn comes; never waits. A service that hangs is given up here."""
        if self._is_off:
            return
        since = self._busy_since
        if since is not None and time.monotonic() - since > PATIENCE:
            self._give_up(f"it has not answered for {PATIENCE:.0f} s")
        else:
            self._jobs.put((job, last))

    def join(self, seconds: float) -> None:
        """Wait for the last job."""
        if not self._is_off:
            self._thread.join(seconds)
            if self._thread.is_alive():
                self._give_up("it does not come to its end; what it has not sent yet is in metrics.jsonl")

    def _run(self) -> None:
        service = self._guarded(self._start)
        self.started.set()
        is_last = False
        while service is not None and not is_last:
            self._busy_since = None
            job, is_last = self._jobs.get()
            self._busy_since = time.monotonic()
            if self._is_off:
                return
            if self._guarded(lambda job=job: (job(service),)) is None:
                if not is_last:
                    with contextlib.suppress(BaseException):
                        service.close(failed=True)
                return

    def _guarded(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except BaseException as error:  # noqa: BLE001 - SystemExit too: whatever a service raises, training goes on
            text = str(error).strip()
            self._give_up(type(error).__name__ + (f": {text.splitlines()[0]}" if text else ""))
            return None

    def _give_up(self, why: str) -> None:
        if not self._is_off:
            self._is_off = True
            self._warn(f"{self._label} is switched off: {why}; the run goes on without it")


def load_service(name: str) -> Callable[[ServiceRun], Service]:
    """The class of a service of --track. Imports its module, which imports the service's own package when it is built."""
    module, _, attribute = SERVICES[name][1].partition(":")
    return getattr(import_module(module), attribute)


def _read(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: entry for name, entry in known.items() if isinstance(entry, dict)} if isinstance(known, dict) else {}
