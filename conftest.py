"""The whole suite runs in a process for each core; tests that are asked for by file or folder run in the one that was started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vime.doctor.machine import look_at_machine

GIB_EACH = 5.0
"""Memory of a run on Ray with its engines and ranks, the largest thing that a test starts."""
MOST = 8
LONGEST_FIRST = (
    "tests/ray/test_trainer_faults.py",
    "tests/ray/test_rank_errors.py",
    "tests/test_wheels.py",
    "tests/e2e/test_train.py",
    "tests/ray",
    "tests/e2e",
    "core/tests/train/test_ranks.py",
    "tests/plugin_contracts",
    "core/tests/train",
    "core/tests/runtime",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many as there are cores and there is memory for. 0: no process but this one."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return 0
    machine = look_at_machine(os.environ)
    workers = min(MOST, int(machine.cpus), int(machine.memory_free_gib / GIB_EACH))
    return 0 if workers < 2 else workers


def pytest_configure(config: pytest.Config) -> None:
    """Each process keeps to its share of the cores: thread pools that spin on the same ones slow each other down many times."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None and hasattr(os, "sched_setaffinity"):
        number, cores = int(worker["workerid"].removeprefix("gw")), sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[number :: worker["workercount"]] or cores)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files that take long come first, so that no process is left alone with one at the end."""

    def rank(item: pytest.Item) -> int:
        path = item.path.relative_to(config.rootpath).as_posix()
        return next((number for number, start in enumerate(LONGEST_FIRST) if path.startswith(start)), len(LONGEST_FIRST))

    if hasattr(config, "workerinput"):
        items.sort(key=rank)


@pytest.fixture(autouse=True)
def stays_in_its_folder() -> Iterator[None]:
    """A plugin under test that changes the working directory changes it for its own test only."""
    folder = Path.cwd()
    yield
    os.chdir(folder)
