"""Signals that come at a bad moment."""

import io
import signal
import sys

import pytest

from vime.runtime.interrupts import Interrupted, Interrupts

NUM_GPUS = 0


class SignalsOnWrite(io.RawIOBase):
    """A stream whose first write is interrupted by Ctrl-C."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self.written.append(bytes(data))
        if len(self.written) == 1:
            signal.raise_signal(signal.SIGINT)
        return len(data)


def test_a_signal_in_the_middle_of_a_write_to_stderr_is_one_that_waits(monkeypatch):
    raw = SignalsOnWrite()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(raw), line_buffering=True))
    with Interrupts() as interrupts, interrupts.deferred():
        sys.stderr.write("step 3/6\n")
        with pytest.raises(Interrupted) as caught:
            interrupts.check()
    assert caught.value.exit_code == 130
    assert b"".join(raw.written) == b"step 3/6\n"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
