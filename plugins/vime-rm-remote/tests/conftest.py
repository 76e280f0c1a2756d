"""A real HTTP server that answers as a test scripts it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

Answer = Callable[["Handler", Any], None]


@dataclass
class Service:
    """The server. `script` has the answers of the next requests in turn, the last of which stays."""

    script: list[Answer] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    """The bodies that came, parsed."""
    headers: list[dict[str, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)
    at_once: int = 0
    most_at_once: int = 0
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self) -> Answer:
        return self.script[0] if len(self.script) == 1 else self.script.pop(0)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: Service

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        service = self.service
        with service.lock:
            service.requests.append(asked)
            service.headers.append(dict(self.headers))
            service.times.append(time.monotonic())
            service.connections.add(self.client_address)
            service.at_once += 1
            service.most_at_once = max(service.most_at_once, service.at_once)
            answer = service.next()
        try:
            answer(self, asked)
        finally:
            with service.lock:
                service.at_once -= 1

    def do_GET(self) -> None:
        raise AssertionError("nothing is fetched with GET")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    server = Server(("127.0.0.1", 0), type("Scripted", (Handler,), {"service": found}))
    found.url = f"http://127.0.0.1:{server.server_port}/score"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()
