"""A real browser for the report's page: Debian's Chromium, driven over its debugging protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
    "about:blank",
]
WAIT = 30.0
"""Seconds until an answer of the browser counts as missing."""


class Browser:
    """One tab. Everything that its pages complain of, or ask the network for, is in `complaints`."""

    def __init__(self, address: str) -> None:
        from websockets.sync.client import connect

        self._socket = connect(address, max_size=None)
        self._number = 0
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        return self._until(lambda message: message.get("id") == self._number)["result"]

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.complaints.clear()
        self.call("Page.navigate", url=page.as_uri())
        self._until(lambda message: message.get("method") == "Page.loadEventFired")

    def run(self, script: str) -> Any:
        """The value of an expression, awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys one after the other, as a keyboard does: names like Tab, or characters."""
        codes = {"Tab": 9, "Enter": 13, "ArrowDown": 40}
        for key in keys:
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            common = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, 0)}
            self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
            self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))

    def close(self) -> None:
        self._socket.close()

    def _until(self, is_wanted: Any) -> dict[str, Any]:
        while True:
            message = json.loads(self._socket.recv(timeout=WAIT))
            self._note(message)
            if is_wanted(message):
                assert "error" not in message, message["error"]
                return message

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(parameters["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled" | "Page.javascriptDialogOpening":
                self.complaints.append(json.dumps(parameters)[:500])
            case "Log.entryAdded":
                self.complaints.append(json.dumps(parameters["entry"])[:500])
            case "Network.requestWillBeSent" if not parameters["request"]["url"].startswith(("file:", "about:")):
                self.complaints.append(f"asked for {parameters['request']['url']}")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        reason = "no browser: the page is tested in Chromium (Debian: apt-get install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    profile = tmp_path_factory.mktemp("chromium")
    process = subprocess.Popen(
        [chromium, *FLAGS, f"--user-data-dir={profile}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        tab = Browser(_tab_address(profile / "DevToolsActivePort", process))
        yield tab
        tab.call("Browser.close")
        tab.close()
    finally:
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def _tab_address(file: Path, process: subprocess.Popen[bytes]) -> str:
    """The address of the first tab's debugger, once the browser has written where it listens."""
    import http.client

    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        assert process.poll() is None, f"chromium ended with {process.returncode}"
        lines = file.read_text().split() if file.is_file() else []
        if lines:
            connection = http.client.HTTPConnection("127.0.0.1", int(lines[0]), timeout=WAIT)
            connection.request("GET", "/json/list")
            tabs = json.loads(connection.getresponse().read())
            connection.close()
            pages = [tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"]
            if pages:
                return pages[0]
        time.sleep(0.1)
    raise AssertionError("chromium did not start")
