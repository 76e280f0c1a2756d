"""What goes on around heavy imports: no garbage collection, and a module that cannot be found."""

from __future__ import annotations

import gc
import importlib
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from vime.heavy import collecting_less_often, heavy_imports

NUM_GPUS = 0


class Knot:
    """Refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_the_collector_is_off_within_and_on_again_after_an_error() -> None:
    seen: list[bool] = []

    def fails() -> None:
        with heavy_imports():
            seen.append(gc.isenabled())
            raise ImportError

    with pytest.raises(ImportError):
        fails()
    assert (seen, gc.isenabled()) == ([False], True)


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with heavy_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_was_garbage_before_is_freed() -> None:
    garbage = weakref.ref(Knot())
    with heavy_imports():
        pass
    assert garbage() is None


def test_what_is_there_after_an_import_is_not_walked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heavy_by_name.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    before = gc.get_freeze_count()
    with heavy_imports():
        kept = [Knot() for _ in range(1000)]
        importlib.import_module("heavy_by_name")
    assert gc.get_freeze_count() >= before + len(kept)


def test_where_nothing_is_imported_what_is_there_can_be_freed_later() -> None:
    kept = [Knot()]
    later = weakref.ref(kept[0])
    with heavy_imports():
        pass
    kept.clear()
    gc.collect()
    assert later() is None


def test_the_collector_is_as_it_was_after_a_run() -> None:
    kept, before = [Knot()], gc.get_threshold()
    later = weakref.ref(kept[0])

    def fails() -> None:
        with collecting_less_often():
            assert gc.get_threshold() != before
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    kept.clear()
    gc.collect()
    assert later() is None and gc.get_threshold() == before


def test_a_module_is_hidden_within_only() -> None:
    name = "this"  # nobody imports it, and it prints when somebody does
    assert name not in sys.modules
    with heavy_imports(without=name), pytest.raises(ModuleNotFoundError):
        __import__(name)
    assert name not in sys.modules


def test_a_module_that_is_there_already_is_not_hidden() -> None:
    with heavy_imports(without="gc"):
        import gc as found
    assert found is gc is sys.modules["gc"]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
