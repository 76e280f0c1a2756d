"""The Ray that a run uses: one of its own on this machine, or a cluster that is there already."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vime.errors import ConfigError
from vime.runtime.ray.guardian import Guardian

WATCH_SECONDS = 1.0
"""Seconds between two looks at Ray's own processes."""
LOST_AFTER = 5
"""Looks in a row that find the head of a cluster unreachable before it counts as lost; for one of our own a dead process is enough."""
LOOPBACK = "127.0.0.1"


class Cluster:
    """A connection to Ray, from `open` to `close`. `is_own`: started here for this run, on the loopback interface only."""

    def __init__(self, address: str | None) -> None:
        self.address, self.is_own = address, address is None
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None
        self._guardian: Guardian | None = None

    def open(self, on_loss: Callable[[str], object]) -> None:
        """Start Ray or connect to it. `on_loss` is called in another thread, with what died, when it can no longer be reached.

        Raises ConfigError where there is no cluster at the address.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if "ray" not in sys.modules:  # it reads this once
            os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray's default, which it announces where it is not set
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        logging.getLogger("ray").setLevel(logging.ERROR)
        import ray
        from ray._private import ray_constants

        # Under `uv run` Ray would start every worker by `uv run` too, in a copy of the current folder: another environment.
        ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False

        if self.address is not None:
            _require_head(self.address)
        options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": "error", "namespace": "vime"}
        if self.is_own:
            self._guardian = Guardian()
        with _signals_held(), _signal_handlers_kept():
            try:
                if self.is_own:
                    with _on_loopback():
                        # "local": not the cluster of RAY_ADDRESS, nor one that somebody else has started on this machine.
                        ray.init(address="local", include_dashboard=False, _node_ip_address=LOOPBACK, **options)
                else:
                    ray.init(address=self.address, **options)
            except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
                where = "on this machine" if self.is_own else f"at --ray-address {self.address}"
                raise ConfigError(
                    f"Ray could not be {'started' if self.is_own else 'reached'} {where}: {str(error).splitlines()[0]}",
                    hint="leave --ray-address out to start Ray here" if not self.is_own else "is another Ray of this user in a bad state?",
                ) from error
        if os.environ.get("VIME_VERBOSE") != "1":
            _keep_quiet()
        self._watcher = threading.Thread(target=self._watch, args=(on_loss,), name="vime-ray-watch", daemon=True)
        self._watcher.start()

    def _watch(self, on_loss: Callable[[str], object]) -> None:
        failures = 0
        while not self._stop.wait(WATCH_SECONDS):
            died = _dead_processes() if self.is_own else None
            if died is None and not _answers(_gcs_address()):
                failures += 1
                if failures >= (1 if self.is_own else LOST_AFTER):
                    died = f"the head of the cluster at {_gcs_address()}"
            elif died is None:
                failures = 0
            if died is not None and not self._stop.is_set():
                on_loss(died)
                return

    def end_all(self) -> None:
        """End the processes of a Ray of our own at once, as far as they are still there: actors end with their node manager."""
        from ray._private import worker

        node: Any = worker._global_node
        if self.is_own and node is not None:
            with contextlib.suppress(Exception):
                node.kill_all_processes(check_alive=False, allow_graceful=False)

    def make_folder(self) -> Path:
        """A folder of this node that ends with the run."""
        if self._guardian is None:
            self._folder = tempfile.TemporaryDirectory(prefix="vime-ranks-")
            return Path(self._folder.name)
        self._guardian.folder.mkdir(mode=0o700)
        return self._guardian.folder

    def close(self) -> None:
        """Disconnect; a Ray of our own ends, with everything in it."""
        import ray

        self._stop.set()
        with _signal_handlers_kept(), contextlib.suppress(Exception):
            ray.shutdown()
        if self._guardian is not None:
            self._guardian.close()


def _require_head(address: str) -> None:
    """Raise ConfigError where no head of a cluster can be found or reached: Ray would try for minutes, and print as long."""
    from ray._private import services

    hint = "start one with ray start --head, or leave --ray-address out to start Ray here for the run"
    try:
        head = services.canonicalize_bootstrap_address_or_die(address)
    except (ConnectionError, ValueError, OSError) as error:
        raise ConfigError(f"--ray-address {address}: {str(error).splitlines()[0]}", hint=hint) from error
    if not _answers(head):
        where = "there" if head == address else f"at {head}"
        raise ConfigError(f"--ray-address {address}: no cluster answers {where}", hint=hint)


def _gcs_address() -> str:
    import ray

    return ray.get_runtime_context().gcs_address


def _answers(address: str) -> bool:
    """Whether something accepts connections there."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5.0):
            return True
    except OSError:
        return False


def _dead_processes() -> str | None:
    """The part of a Ray of our own that has died."""
    from ray._private import worker

    node: Any = worker._global_node
    if node is None:
        return None
    for kind, what in (("gcs_server", "the Ray head (gcs_server)"), ("raylet", "Ray's node manager (raylet)")):
        for started in node.all_processes.get(kind, []):
            if started.process.poll() is not None:
                return f"{what}, process {started.process.pid},"
    return None


def _keep_quiet() -> None:
    """Keep Ray from printing a paragraph about each process that died; the run says in its own words which it was."""
    from ray._private import worker

    worker.print_to_stdstream = lambda *_, **__: None


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Have Ray listen on the loopback interface: it replaces 127.0.0.1, where that is given, by the machine's outer address."""
    from ray._private import services

    asked, services.get_node_ip_address = services.get_node_ip_address, lambda *_: LOOPBACK
    try:
        yield
    finally:
        services.get_node_ip_address = asked


@contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Ray sets a handler of its own for SIGTERM, which would end the run without saving."""
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Let the first signal wait until Ray is there: Ray crashes where it is ended half started. A second one ends the process."""
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    came: list[int] = []

    def hold(signum: int, _: object) -> None:
        came.append(signum)
        if len(came) > 1:
            os._exit(128 + signum)

    for signum in handlers:
        signal.signal(signum, hold)
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        for signum in came:
            signal.raise_signal(signum)
