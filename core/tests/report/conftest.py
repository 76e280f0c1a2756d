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

    def __init__(self, socket: Any) -> None:
        self._socket = socket
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
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        reason = "no browser: the page is tested in Chromium (Debian: apt-get install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    from websockets.sync.client import connect

    profile = tmp_path_factory.mktemp("chromium")
    process = subprocess.Popen(
        [chromium, *FLAGS, f"--user-data-dir={profile}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        with connect(_tab_address(profile / "DevToolsActivePort", process), max_size=None) as socket:
            tab = Browser(socket)
            yield tab
            tab.call("Browser.close")
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


# Runs


HOSTILE = "</script><script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\"> & \u2028 end"

TEXTS = {10: "one", 11: "\n<b>", 12: " two"}


@pytest.fixture(scope="session")
def second_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shorter run, most of whose responses are cut off."""
    return make_run(tmp_path_factory.mktemp("runs") / "second", rollouts=4, truncated=0.75)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 6 rollouts with everything in it: drops, failures, a removed sample, an evaluation, a hostile response."""
    return make_run(tmp_path_factory.mktemp("runs") / "first")


def make_run(folder: Path, *, rollouts: int = 6, truncated: float = 0.0) -> Path:
    from vime.sample import Sample, Status
    from vime.track.jsonl import JsonlWriter
    from vime.track.samples import TokenValues, write_samples

    folder.mkdir()
    (folder / "config.yaml").write_text("hf_checkpoint: /home/somebody/models/org/tiny\nlr: 0.0001\nrm_url: http://***@host\n")
    (folder / "plugins.lock.json").write_text('{"plugins": [{"name": "math", "version": "0.1.0", "settings": {"key": "s3cret"}}]}')
    metrics = JsonlWriter(folder / "metrics.jsonl")
    for step in range(rollouts):
        if step % 3 == 0:
            metrics.write(step, {"eval/held": 0.25 + 0.1 * step, "eval/held-pass@1": 0.25, "eval/held-truncated_ratio": 0.0})
        reward = 0.25 + 0.05 * step
        counts = {"samples_generated": 20, "samples_trained": 11, "removed_samples": 1, "samples_filtered": 4, "samples_failed": 4}
        ends = {f"rollout/{key}": value for key, value in counts.items()}
        groups = {"rollout/groups_kept": 3, "rollout/groups_dropped": 1, "rollout/dynamic_filter/drop_zero_std_0.0": 1}
        rewards = {"rollout/raw_reward": reward, "rollout/reward_kept": reward, "rollout/reward_all": reward - 0.1}
        metrics.write(step, {**ends, **groups, **rewards, "rollout/response_len/mean": 3.0, "rollout/truncated_ratio": truncated})
        policy = {"train/entropy_loss": 0.5 - 0.01 * step, "train/train_rollout_logprob_abs_diff": 1e-6, "train/loss": 1e-9}
        metrics.write(step, policy)
        metrics.write(step, {"perf/step_time": 1.0, "perf/rollout_time": 0.5, "perf/train_time": 0.25, "perf/sync_time": 0.125})
        metrics.write(step, {"hooks/math/custom_rm_ms": 50.0})

        def sample(group: int, place: int, text: str, reward: float | None, step: int = step, **fields: Any) -> Sample:
            index = 100 * step + 4 * group + place
            known = {"label": "4", "response_length": 3, "tokens": [1, 2, 10, 11, 12], "rollout_log_probs": [-0.1, -1.0, -3.0]}
            known |= {"status": Status.COMPLETED, "weight_versions": [step]}
            return Sample(group_index=10 * step + group, index=index, prompt="2+2?", response=text, reward=reward, **known | fields)

        kept = [[sample(group, place, f"the {place}", float(place == 1)) for place in range(4)] for group in range(3)]
        kept[0][3].response, kept[0][2].remove_sample = HOSTILE, True
        kept[1][0].status = Status.TRUNCATED
        dropped = [sample(3, place, "the same", 0.0) for place in range(4)]
        failed = [sample(4, place, "no reward", None, status=Status.FAILED) for place in range(4)]
        trained = {place: TokenValues([-0.1, -1.5, -2.5], [0.5 if place % 4 == 1 else -0.25] * 3) for place in range(12)}
        write_samples(
            folder / "samples",
            step,
            "train",
            kept,
            [(dropped, "zero_std_0.0"), (failed, "failed")],
            trained=trained,
            text_of=lambda ids: [TEXTS[token] for token in ids],
        )
        if step % 3 == 0:
            answers = [[Sample(index=place, prompt="1+1?", response=str(place), reward=0.5, status=Status.COMPLETED)] for place in range(2)]
            write_samples(folder / "samples", step, "eval_held", answers)
    metrics.close()
    return folder
