"""The checks of reward post-processing: sound ones pass, each wrong one fails in its check, and the run refuses what it can tell."""

from __future__ import annotations

import re
from typing import Any

import pytest

from vime.errors import VimeError
from vime.testing.checks import post_process
from vime.testing.checks.base import Bench
from vime.testing.runner import check
from vime.testing.subject import find_subject
from zoo import post_process as zoo
from zoo.base import Wrong, unbroken

NUM_GPUS = 0


@pytest.mark.parametrize("target", zoo.SOUND, ids=lambda target: target.__name__)
def test_sound_functions_pass(target: Any) -> None:
    report = check(target, hook=None if isinstance(target, type) else zoo.HOOK)
    assert [result for result in report.checks if result.id.startswith("post-process") and result.status != "pass"] == []


@pytest.mark.parametrize("entry", zoo.WRONG, ids=lambda entry: entry.name)
def test_a_wrong_function_fails_in_its_check(entry: Wrong) -> None:
    entry.assert_refused()


@pytest.mark.parametrize("entry", [entry for entry in zoo.WRONG if entry.core], ids=lambda entry: entry.name)
def test_the_run_refuses_it_too(entry: Wrong) -> None:
    assert entry.core is not None
    bench = Bench(find_subject(entry.target, hook=entry.hook), zoo.HOOK)
    with pytest.raises(VimeError, match=re.escape(entry.core)):
        post_process.shaped(bench, post_process.batch())


def test_every_check_is_broken_by_an_entry() -> None:
    assert unbroken(post_process.CHECKS, zoo.WRONG) == []


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
