"""What plugin authors and vime's own tests build on."""

from vime.testing.fakes import FakeEngine, FakeTokenizer

__all__ = ["FakeEngine", "FakeTokenizer"]
