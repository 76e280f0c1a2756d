"""What a dead driver leaves behind is ended by its guardian."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

NUM_GPUS = 0

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")

DRIVER = """
import subprocess, sys, time
from vime.runtime.ray.guardian import Guardian

guardian = Guardian()
left = subprocess.Popen(["sleep", "60"], start_new_session=True)
guardian.folder.mkdir()
(guardian.folder / "store").touch()
print(left.pid, guardian._process.pid, guardian.folder, flush=True)
time.sleep(60) if sys.argv[1] == "killed" else guardian.close()
"""


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_what_is_left_ends_even_where_it_was_stopped(how: str) -> None:
    stranger = subprocess.Popen(["sleep", "60"])
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, how], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    *processes, folder = driver.stdout.readline().split()
    left, guardian = map(int, processes)
    assert (Path(folder) / "store").exists()
    try:
        if how == "killed":
            os.kill(left, signal.SIGSTOP)
            driver.kill()
        driver.wait(timeout=30)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and (is_alive(left) or is_alive(guardian)):
            time.sleep(0.05)
        assert not is_alive(left) and not is_alive(guardian) and not Path(folder).exists()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        driver.kill()
        stranger.wait()
        driver.stdout.close()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
