"""Every known fault that was cut down to a case has a test whose name carries its number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

NUM_GPUS = 0

ROOT = Path(__file__).resolve().parents[1]

CASES = {
    "sampling and filters": ("a1", "a3", "a4", "a5", "a6", "a7", "a11", "a13", "a14", "a16"),
    "rewards": ("b1", "b2", "b4", "b6", "b7", "b8", "b10", "b11", "b12", "b16"),
    "normalisation, masks, empty batches": ("c1", "c4", "d2", "d4", "d5", "d6", "d8", "d10", "e1", "e3", "g4"),
    "data, resume, evaluation, configuration": ("h1", "h2", "h4", "h6", "h8", "j1", "j2", "j6", "j7", "j8", "j10"),
    "plugins": ("k1", "k3", "k4", "k6", "k8", "k9"),
}


def numbers_in(source: str) -> set[str]:
    """The cases that the names of test functions carry: `test_case_d6_d10_...` is for both."""
    names = re.findall(r"^(?:async )?def test_case((?:_[a-k]\d+)+)_\w+\(", source, flags=re.MULTILINE)
    return {number for name in names for number in name.strip("_").split("_")}


@pytest.mark.parametrize("kind", CASES)
def test_every_case_has_a_test(kind: str) -> None:
    files = [path for folder in ("core/tests", "plugins", "tests") for path in (ROOT / folder).rglob("test_*.py")]
    found = set().union(*(numbers_in(path.read_text(encoding="utf-8")) for path in files))
    assert [number for number in CASES[kind] if number not in found] == []


def test_names_are_read_as_they_are_meant() -> None:
    source = (
        "def test_case_d6_d10_nothing_left(x):\n    def test_case_a1_inner(): ...\nasync def test_case_b2_b(): ...\ndef test_a3_x(): ...\n"
    )
    assert numbers_in(source) == {"d6", "d10", "b2"}


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
