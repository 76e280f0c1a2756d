"""Import path that functions written in upstream's style use."""

from vime.config.eval import EvalDatasetConfig

__all__ = ["EvalDatasetConfig"]
