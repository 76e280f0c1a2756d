"""During a run under Ray nothing of it listens on anything but the loopback interface."""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

NUM_GPUS = 0

pytestmark = [pytest.mark.ray, pytest.mark.e2e, pytest.mark.timeout(900)]

LISTEN = "0A"
"""State of a TCP socket in /proc/net."""
DASHBOARD = 8265
ADDRESS = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True)
class Listener:
    """A socket that waits for others, and the process that holds it."""

    protocol: str
    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int
    command: str

    @property
    def is_on_loopback(self) -> bool:
        mapped = getattr(self.address, "ipv4_mapped", None)
        return (mapped or self.address).is_loopback


def read_address(text: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    """`0100007F:1F90` of /proc/net: words of 4 bytes, each in the byte order of the machine, and a port."""
    words, _, port = text.partition(":")
    raw = b"".join(bytes.fromhex(words[start : start + 8])[:: -1 if sys.byteorder == "little" else 1] for start in range(0, len(words), 8))
    return ipaddress.ip_address(raw), int(port, 16)


def open_sockets() -> dict[str, tuple[str, str]]:
    """Protocol and local address of every socket of this machine that listens, by inode."""
    found: dict[str, tuple[str, str]] = {}
    for protocol in ("tcp", "tcp6"):
        for line in Path("/proc/net", protocol).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN:
                found[fields[9]] = protocol, fields[1]
    return found


def processes_below(root: int) -> list[int]:
    """`root` and all that it started, also those that a session of their own was made for."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    tree = [root]
    for parent in tree:
        tree += [pid for pid, of in parents.items() if of == parent]
    return tree


def listeners(processes: list[int]) -> set[Listener]:
    """What these processes listen on."""
    sockets = open_sockets()
    found: set[Listener] = set()
    for pid in processes:
        with suppress(OSError):  # it has ended
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            for path in list(Path(f"/proc/{pid}/fd").iterdir()):
                with suppress(OSError):  # closed since
                    match = ADDRESS.fullmatch(str(path.readlink()))
                    if match and match[1] in sockets:
                        protocol, text = sockets[match[1]]
                        found.add(Listener(protocol, *read_address(text), command))
    return found


@contextmanager
def started(folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The run, and the file that it writes to. It and what it started is ended at the end."""
    said = folder / "said.txt"
    words = ["train", "--plugin", "math", "--run-dir", str(folder / "run"), *flags]
    command = [sys.executable, "-m", "vime", *words]
    with said.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            yield process, said
        finally:
            left = processes_below(process.pid)
            if process.poll() is None:
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            process.wait()


def test_the_reading_of_addresses_and_of_sockets() -> None:
    import socket

    assert read_address("0100007F:1F90") == (ipaddress.ip_address("127.0.0.1"), 8080)
    assert read_address("0000000000000000FFFF00000100007F:0050") == (ipaddress.ip_address("::ffff:127.0.0.1"), 80)
    with socket.create_server(("127.0.0.1", 0)) as inner:
        (found,) = [one for one in listeners([os.getpid()]) if one.port == inner.getsockname()[1]]
        assert found.is_on_loopback and found.protocol == "tcp"
    for text in ("00000000:1F90", "0200C0A8:1F90", "0" * 32 + ":1F90"):
        assert not Listener("tcp", *read_address(text), "").is_on_loopback


def test_a_run_listens_on_loopback_only_and_has_no_dashboard(tmp_path: Path) -> None:
    seen: set[Listener] = set()
    looks = 0
    with started(tmp_path, "--runtime", "ray", "--trainer-ranks", "2", "--engines", "2", "--num-rollout", "1") as (process, said):
        while process.poll() is None:
            seen |= listeners(processes_below(process.pid))
            looks += 1
            time.sleep(0.2)
        assert process.returncode == 0, said.read_text()[-4000:]
    commands = {listener.command for listener in seen}
    assert looks > 10 and any("gcs_server" in command for command in commands) and any("raylet" in command for command in commands), (
        commands
    )
    outside = sorted(f"{one.protocol} {one.address}:{one.port} {one.command[:100]}" for one in seen if not one.is_on_loopback)
    assert outside == []
    assert not any("dashboard.py" in command for command in commands) and DASHBOARD not in {listener.port for listener in seen}


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
