"""Import path that functions written in upstream's style use."""

from vime.outputs import RolloutFnEvalOutput, RolloutFnTrainOutput

__all__ = ["RolloutFnEvalOutput", "RolloutFnTrainOutput"]
