"""Every wrong package of the zoo is refused by the check that is for it, with its message, and by a run where that can tell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vime.config.run_config import RunConfig
from vime.errors import VimeError
from vime.plugins.discovery import discover
from vime.plugins.manager import PluginManager
from vime.testing import check
from vime.testing.checks import packaging
from zoo.base import unbroken
from zoo.packaging import PACKAGE_CHECKS, PACKAGING_ZOO, WrongPackage

NUM_GPUS = 0


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory on sys.path; what is imported from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before, path = set(sys.modules), list(sys.path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    sys.path[:] = path


@pytest.mark.parametrize("entry", PACKAGING_ZOO, ids=lambda entry: entry.target)
def test_a_wrong_package_fails_its_check_alone(entry: WrongPackage, site: Path) -> None:
    entry.install(site)
    failed = {result.id: result.message for result in entry.report().failures}
    assert failed.get(entry.check) == entry.refused_with(), failed
    assert set(failed) - {entry.check} == set(entry.also)


@pytest.mark.parametrize("entry", [entry for entry in PACKAGING_ZOO if entry.core], ids=lambda entry: entry.target)
def test_a_run_refuses_it_too(entry: WrongPackage, site: Path) -> None:
    entry.install(site)
    config = RunConfig(plugin=[entry.target])
    with pytest.raises(VimeError) as caught:
        PluginManager.load(config, catalog=discover()).state_dict()
    assert entry.core is not None and entry.core in caught.value.message


def test_a_good_package_passes_every_check(site: Path) -> None:
    WrongPackage("nothing is wrong", "zoo-good", "", "").install(site)
    report = check("zoo-good")
    assert report.passed, report.failures
    assert [result.id for result in report.checks][: len(PACKAGE_CHECKS)] == PACKAGE_CHECKS


def test_each_check_of_the_package_is_broken_by_somebody() -> None:
    assert unbroken(packaging.CHECKS, PACKAGING_ZOO) == []


def test_a_file_that_kills_its_process_fails_a_check(tmp_path: Path) -> None:
    file = tmp_path / "deadly.py"
    file.write_text("import os\nos._exit(7)\ndef custom_rm(args, sample):\n    return 1.0\n")
    report = check(f"{file}:custom_rm")
    assert report["package-import"].message == f"--custom-rm-path {file}:custom_rm: importing it ended the process: exit code 7"
    assert report["package-hooks"].status == "skip"
    assert not [result for result in report.checks if result.status == "pass"]


def test_a_function_with_too_few_arguments_fails_a_check(tmp_path: Path) -> None:
    file = tmp_path / "short.py"
    file.write_text("def custom_rm(sample):\n    return 1.0\n")
    report = check(f"{file}:custom_rm")
    assert [result.id for result in report.failures] == ["package-hooks"]
    assert report["package-hooks"].message.endswith("it takes 1 positional argument, and gets 2")


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
