"""Functions in processes of their own: what comes back, and what is ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vime.errors import ConfigError, PluginError
from vime.plugins import child
from vime.plugins.child import Call, ChildTraceback, call_in_child, call_in_children

NUM_GPUS = 0

FUNCTIONS = """
import os, subprocess, sys, time
from vime.errors import ConfigError

def double(argument, announce):
    return [argument, argument]

def refuse(argument, announce):
    announce("plugin 'x'")
    error = ConfigError("no", hint="yes")
    error.add_note("noted")
    raise error from ModuleNotFoundError("gone", name=argument)

def stumble(argument, announce):
    announce("plugin 'x'")
    return 1 / 0

def die(argument, announce):
    announce("plugin 'x'")
    print("last words", flush=True)
    os._exit(argument)

def linger(argument, announce):
    announce("plugin 'x'")
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    with open(argument, "w") as file:
        file.write(str(helper.pid))
    time.sleep(100)

def leave_behind(argument, announce):
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]).pid

def odd_answer(argument, announce):
    return object()
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "zoo_functions.py").write_text(FUNCTIONS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    return "zoo_functions"


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or only waits to be collected."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_values_come_back_in_the_order_of_the_calls(functions):
    outcomes = call_in_children([Call(f"{functions}:double", number, "x") for number in range(6)])
    assert [(outcome.value, outcome.error) for outcome in outcomes] == [([number, number], None) for number in range(6)]


def test_errors_keep_their_kind(functions):
    error = call_in_child(Call(f"{functions}:refuse", "torch.nn", "x")).error
    assert type(error) is ConfigError and (error.message, error.hint, error.__notes__) == ("no", "yes", ["noted"])
    assert isinstance(error.__cause__, ChildTraceback) and error.__cause__.missing_module == "torch.nn"
    assert "zoo_functions.py" in str(error.__cause__) and "ConfigError" in str(error.__cause__)


@pytest.mark.parametrize(
    ("function", "argument", "message"),
    [
        ("stumble", None, "plugin 'x': importing it raised ZeroDivisionError: division by zero"),
        ("die", 3, "plugin 'x': importing it ended the process: exit code 3; it printed: last words"),
        ("odd_answer", None, "the caller: importing it ended the process: exit code 1"),
    ],
)
def test_other_ends_name_who_was_announced(functions, function, argument, message):
    outcome = call_in_child(Call(f"{functions}:{function}", argument, "the caller"))
    assert type(outcome.error) is PluginError and outcome.error.message.startswith(message)
    assert outcome.error.hint


def test_a_call_that_is_late_is_ended_with_what_it_started(functions, tmp_path):
    outcome = call_in_child(Call(f"{functions}:linger", str(tmp_path / "pid"), "the caller"), timeout=3)
    assert outcome.error is not None and outcome.error.message == "plugin 'x': importing it takes longer than 3 s"
    assert has_ended(int((tmp_path / "pid").read_text()))


def test_what_a_call_leaves_behind_is_ended(functions):
    pid = call_in_child(Call(f"{functions}:leave_behind", None, "x")).value
    assert has_ended(pid)


def test_an_interrupt_ends_the_child_and_slow_calls_are_named(functions, tmp_path, monkeypatch):
    monkeypatch.setattr(child, "NOTICE_AFTER", 0.2)
    told: list[list[str]] = []

    def interrupt(labels: list[str]) -> None:
        told.append(labels)
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_in_child(Call(f"{functions}:linger", str(tmp_path / "pid"), "the caller"), on_wait=interrupt)
    assert told[-1] == ["plugin 'x'"]
    assert has_ended(int((tmp_path / "pid").read_text()))


def test_a_parent_that_is_killed_takes_the_child_with_it(functions, tmp_path):
    source = "import os, time\ndef wait(file, announce):\n    open(file, 'w').write(str(os.getpid()))\n    time.sleep(100)\n"
    (tmp_path / "zoo_wait.py").write_text(source)
    script = f"from vime.plugins.child import *; call_in_child(Call('zoo_wait:wait', {str(tmp_path / 'pid')!r}, 'x'))"
    parent = subprocess.Popen([sys.executable, "-c", script])
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):
        assert parent.poll() is None
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    assert has_ended(int((tmp_path / "pid").read_text()))


def test_nothing_is_imported_here(functions):
    call_in_child(Call(f"{functions}:double", 1, "x"))
    assert functions not in sys.modules


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
