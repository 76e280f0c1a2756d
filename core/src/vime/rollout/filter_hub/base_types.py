"""Import path that functions written in upstream's style use."""

from vime.outputs import DynamicFilterOutput

__all__ = ["DynamicFilterOutput"]
