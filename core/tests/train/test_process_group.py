"""A process group that an engine of this process has started does for the trainer too."""

from __future__ import annotations

import subprocess
import sys

import pytest

NUM_GPUS = 0

SCRIPT = """
import os
import torch
from vime.engine.vllm_options import own_process_group
from vime.train.deepspeed_config import start_process_group

own_process_group()
start_process_group(torch.device("cpu"))
assert os.environ["LOCAL_RANK"] == "0" and torch.distributed.get_world_size() == 1
import deepspeed
model = torch.nn.Linear(2, 2)
config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params": {"torch_adam": True}}}
deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
"""


def test_the_engine_may_come_first() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
