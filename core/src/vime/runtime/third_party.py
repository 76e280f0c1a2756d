"""Keep the libraries' own chatter off the console, without hiding their errors."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any


def are_loud(config: Any = None) -> bool:
    """Whether libraries say on the console what they like: --verbose, or VIME_VERBOSE=1."""
    return os.environ.get("VIME_VERBOSE") == "1" or bool(getattr(config, "verbose", False))


def quiet_third_parties(config: Any = None) -> None:
    """Set log levels and filters before the heavy imports, unless they may be loud."""
    if are_loud(config):
        return
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("DS_LOG_LEVEL", "error")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    for name in ("deepspeed", "DeepSpeed", "vllm", "transformers", "torch.utils.cpp_extension", "torch.distributed", "asyncio"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("vllm.logging_utils.dump_input").setLevel(logging.CRITICAL)  # megabytes about each request in flight
    for module in ("torch", "deepspeed", "vllm", "transformers", "tensorboard", "mlflow", "sqlalchemy", "wandb", "trackio"):
        warnings.filterwarnings("ignore", module=rf"{module}(\..*)?")
