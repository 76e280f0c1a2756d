"""Import path that functions written in upstream's style use."""

from vime.sample import Sample

__all__ = ["Sample"]
