"""A process that has imported what a run needs and forks one process for each job: `python warm_process.py`.

Reads jobs as JSON lines from stdin, `{"argv": [...], "cwd": DIR, "log": FILE}`; for each it answers the forked
process's id, and its exit status (negative for a signal) when it has ended. Nothing is built before the fork: no
model, no process group, no thread, so what a job does is what a new process would do after its imports.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any


def warm_up() -> None:
    """Import everything heavy, in the order and with the settings of a run."""
    from vime.engine.vllm_options import prepare_environment
    from vime.runtime.third_party import quiet_third_parties

    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    quiet_third_parties()
    prepare_environment()
    import deepspeed  # noqa: F401
    import torch
    import transformers  # noqa: F401
    import vllm.engine.arg_utils
    import vllm.v1.engine.llm_engine
    import vllm.v1.worker.cpu_worker  # noqa: F401
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM  # noqa: F401

    import vime.cli.app
    import vime.loop
    import vime.train.deepspeed_trainer  # noqa: F401

    assert not torch.distributed.is_initialized()


def answer(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def run(job: dict[str, Any]) -> None:
    """The forked process: one command line of vime, with its own folder and log."""
    from vime.cli.app import main

    os.chdir(job["cwd"])
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    try:
        code = main(job["argv"])
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    warm_up()
    threads = [thread.name for thread in threading.enumerate()]
    assert len(threads) == 1, threads
    answer("ready")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            run(json.loads(line))
        answer(pid)
        _, status = os.waitpid(pid, 0)
        answer(os.waitstatus_to_exitcode(status))
