"""The contract of custom_rm, with a service that runs while the checks do."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from vime.testing import RewardCase
from vime.testing.contracts import RewardContract

NUM_GPUS = 0


class Judge(BaseHTTPRequestHandler):
    """1.0 where the last word of a response is the label."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = [score(one) for one in asked] if isinstance(asked, list) else score(asked)
        body = json.dumps(found).encode()
        if found is None or (isinstance(found, list) and None in found):
            self.send_response(422)
            body = b"a label is missing"
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def score(sample: dict[str, str]) -> float | None:
    if sample["label"] is None:
        return None
    return float(sample["response"].split()[-1:] == [str(sample["label"])])


SERVER = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
SERVER.daemon_threads = True
threading.Thread(target=SERVER.serve_forever, daemon=True).start()


class TestRemote(RewardContract):
    plugin = "remote"
    args: ClassVar[dict[str, Any]] = {"rm_url": f"http://127.0.0.1:{SERVER.server_port}/score"}
    cases = (
        RewardCase("2 + 2?", "it is 4", "4", 1.0),
        RewardCase("2 + 2?", "it is 5", "4", 0.0),
    )


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
