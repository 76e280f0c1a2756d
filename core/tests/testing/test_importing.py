"""What importing a plugin in a process of its own shows, and what it does not mistake for the plugin's doing."""

from __future__ import annotations

import pytest

from vime.testing.importing import import_alone

NUM_GPUS = 0


@pytest.fixture
def imported(site):
    def run(source: str, **others: str):
        for name, text in {"kit_module": source, **others}.items():
            (site / f"{name}.py").write_text(text)
        return import_alone("kit_module", "plugin 'x'", is_path=False, timeout=60)

    return run


def test_a_module_that_only_defines_things_shows_nothing(imported) -> None:
    found = imported("def f():\n    import torch\n")
    assert (found.error, found.heavy, found.effects, found.printed) == (None, (), (), "")


def test_a_library_that_imports_a_heavy_one_is_shown_with_the_line_of_the_plugin(imported) -> None:
    found = imported("import json\nimport other_library\n", other_library="try:\n    import ray\nexcept ImportError:\n    pass\n")
    assert found.heavy == ("ray in kit_module.py:2",)


def test_asking_whether_a_heavy_library_is_there_does_not_load_it(imported) -> None:
    assert imported("import importlib.util\nTHERE = importlib.util.find_spec('ray') is not None\n").heavy == ()


def test_what_a_library_does_with_random_numbers_is_not_the_plugins(imported) -> None:
    library = "import random\nrandom.seed(1)\nrandom.random()\n"
    assert imported("import other_library\n", other_library=library).effects == ()
    assert imported("from random import seed\nseed(1)\n").effects == ("seeds the random numbers of the module `random`",)


@pytest.mark.parametrize(
    ("source", "effect"),
    [
        ("import os\nos.environ['A'] = 'b'\n", "sets the environment variable A"),
        ("import os\nos.chdir('/')\n", "changes the working directory to /"),
        ("import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\n", "replaces the handler of SIGTERM"),
        ("import builtins\nbuiltins.print = None\n", "replaces the builtin print"),
        ("import sys\nsys.excepthook = None\n", "replaces sys.stdout, sys.stderr or sys.excepthook"),
        ("import socket\nsocket.setdefaulttimeout(3)\n", "sets the default timeout of sockets to 3.0"),
        ("import asyncio\nasyncio.run = None\n", "replaces asyncio.run"),
        ("import sys\nsys.setrecursionlimit(5000)\n", "sets the recursion limit to 5000"),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), name='mine', daemon=True).start()\n",
            "starts the thread mine",
        ),
    ],
)
def test_each_effect_has_its_words(imported, source, effect) -> None:
    assert imported(source).effects == (effect,)


@pytest.mark.parametrize(
    ("source", "message", "unknown"),
    [
        ("1 / 0\n", "plugin 'x': importing kit_module raised ZeroDivisionError: division by zero", False),
        ("import os\nos._exit(0)\n", "plugin 'x': importing it ended the process: exit code 0", False),
        ("import os\nos.kill(os.getpid(), 9)\n", "plugin 'x': importing it ended the process: signal SIGKILL", False),
    ],
)
def test_an_import_that_fails_is_an_error_with_its_cause(imported, source, message, unknown) -> None:
    found = imported(source)
    assert (found.error.message, found.unknown) == (message, unknown)


def test_a_module_that_is_not_there_is_unknown(site) -> None:
    found = import_alone("kit_nowhere", "plugin 'x'", is_path=False, timeout=60)
    assert (found.error.message, found.unknown) == ("plugin 'x': there is no module 'kit_nowhere'", True)


def test_an_import_that_does_not_end_is_given_up(site) -> None:
    (site / "kit_module.py").write_text("import time\ntime.sleep(3600)\n")
    found = import_alone("kit_module", "plugin 'x'", is_path=False, timeout=3)
    assert found.error.message == "plugin 'x': importing it takes longer than 3 s"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
