"""The checks of data sources, logs, train data and loss functions: sound ones pass, each wrong one fails in its check."""

from __future__ import annotations

import re
from typing import Any

import pytest

from vime.errors import VimeError
from vime.testing.checks import data_source, logging, training, training_data
from vime.testing.checks.base import Bench
from vime.testing.runner import check
from vime.testing.subject import find_subject
from zoo import logs, others
from zoo import training as inside
from zoo.base import Wrong, unbroken

NUM_GPUS = 0

CHECKS = (*data_source.CHECKS, *logging.CHECKS, *training_data.CHECKS, *training.CHECKS)
ZOO = (*others.WRONG, *logs.WRONG, *inside.WRONG)
BUILT_IN = ("vime.rollout.data_source:RolloutDataSource", "vime.rollout.data_source:RolloutDataSourceWithBuffer")


@pytest.mark.parametrize(("target", "hook"), [*others.SOUND, *inside.SOUND, *((path, "make_data_source") for path in BUILT_IN)])
def test_sound_ones_pass(target: Any, hook: str) -> None:
    report = check(target, hook=hook)
    assert report.failures == []
    assert {result.id for result in report.checks if result.status == "skip"} <= {"data-source-add-samples"}


@pytest.mark.parametrize("entry", ZOO, ids=lambda entry: entry.name)
def test_a_wrong_one_fails_in_its_check(entry: Wrong) -> None:
    entry.assert_refused()


@pytest.mark.parametrize("entry", [entry for entry in ZOO if entry.core], ids=lambda entry: entry.name)
def test_the_run_refuses_it_too(entry: Wrong) -> None:
    assert entry.core is not None and entry.hook is not None
    (each,) = [each for each in CHECKS if each.id == entry.check]
    with pytest.raises(VimeError, match=re.escape(entry.core)):  # raised by the core: the kit's own failures are no VimeError
        each.run(Bench(find_subject(entry.target, hook=entry.hook), entry.hook))


def test_every_check_is_broken_by_an_entry() -> None:
    assert unbroken(CHECKS, ZOO) == []


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
