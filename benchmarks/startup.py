"""How long vime takes to start: its help, the list of plugins, and a run up to its first step against a script by hand.

    uv run python benchmarks/startup.py            prints the tables
    uv run python benchmarks/startup.py --write    and writes them to benchmarks/startup.md

The script by hand imports torch, transformers, deepspeed and vllm and builds `vllm.LLM`, with the environment and the engine
options that vime uses (it compares them, after its time is taken). It is ready when the engine is; vime has then checked
its plugins in a process of their own, built a trainer, evaluated, generated, trained and synced once. The two take turns.
All commands run once before the clock starts, since imports depend on what the machine has in its page cache, and
with .pyc files for vime's own code too, as an installation has them.
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from machine import machine

PLUGINS = 50
HELP_GOAL, LIST_GOAL, TRAIN_GOAL = 0.4, 0.6, 1.2
"""Seconds, seconds, and times the script by hand."""
ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "TOKENIZERS_PARALLELISM": "false",
}
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "hf_overrides": {"head_dtype": "float32"},
    "enable_prefix_caching": True,
    "max_num_seqs": 256,
    "seed": 42,
    "disable_log_stats": True,
    "logprobs_mode": "processed_logprobs",
    "distributed_executor_backend": "uni",
    "generation_config": "vllm",
    "use_tqdm_on_load": False,
    "enforce_eager": True,
    "max_model_len": 128,
    "enable_chunked_prefill": False,
    "block_size": 32,
    "max_num_batched_tokens": 4096,
    "kv_cache_memory_bytes": 2**28,
}
PHASE = re.compile(r"^(?P<name>.+): (?P<seconds>\d+\.?\d*)s$")
FIRST_STEP = re.compile(r"^step +1/")


def by_hand(model: str) -> None:
    """The script: a line for each part, and `ready`."""
    os.environ.update(ENVIRONMENT)
    start = time.perf_counter()

    def done(name: str) -> None:
        nonlocal start
        now = time.perf_counter()
        print(f"{name}: {now - start:.2f}s", file=sys.stderr, flush=True)
        start = now

    import torch

    done("torch")
    import transformers  # noqa: F401
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401

    done("transformers")
    import deepspeed  # noqa: F401

    done("deepspeed")
    from vllm import LLM

    done("vllm")
    LLM(model, **ENGINE)
    done("vllm.LLM")
    print("ready", file=sys.stderr, flush=True)
    compare_options(model, torch.get_num_threads())


def compare_options(model: str, threads: int) -> None:
    """Raise AssertionError where the script has other engine options, environment or threads than a run of vime."""
    import torch

    from vime.config.load import load_config
    from vime.engine.vllm_options import engine_options, prepare_environment
    from vime.quickstart import quickstart_defaults

    config = load_config({"plugin": ["math"]}, None, {}, quickstart=quickstart_defaults).config
    options = engine_options(config, model, dtype="float32", concurrency=256)
    assert options == {"model": model, **ENGINE}, {name: value for name, value in options.items() if ENGINE.get(name) != value}
    before = dict(os.environ)
    prepare_environment()
    assert os.environ == before and torch.get_num_threads() == threads
    print("same options", file=sys.stderr, flush=True)


def environment(*extra: Path) -> dict[str, str]:
    """That of this process, with .pyc files and with folders on the path."""
    path = os.pathsep.join([*map(str, extra), *filter(None, [os.environ.get("PYTHONPATH")])])
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")}
    return kept | ({"PYTHONPATH": path} if path else {})


def install_plugins(folder: Path) -> None:
    """What an installer leaves of as many distributions with a plugin each."""
    for number in range(PLUGINS):
        name, module = f"startup-{number}", f"startup_{number}"
        package, metadata = folder / module, folder / f"{module}-1.0.dist-info"
        package.mkdir()
        metadata.mkdir()
        code = "from vime.api import hookimpl\n\n\n@hookimpl\ndef shape_reward(args, sample):\n    return None\n"
        (package / "__init__.py").write_text(code, encoding="utf-8")
        files = {
            "METADATA": f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\nRequires-Dist: vime<0.2,>=0.1\n",
            "WHEEL": "Wheel-Version: 1.0\nGenerator: startup\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "entry_points.txt": f"[vime.plugins]\n{name} = {module}\n",
            "INSTALLER": "pip\n",
        }
        for file, text in files.items():
            (metadata / file).write_text(text, encoding="utf-8")
        listed = [f"{module}/__init__.py", *(f"{metadata.name}/{file}" for file in (*files, "RECORD"))]
        (metadata / "RECORD").write_text("".join(f"{path},,\n" for path in listed), encoding="utf-8")
    compileall.compile_dir(folder, quiet=1)


def whole(words: list[str], env: dict[str, str]) -> float:
    """Seconds of a command from start to exit."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "vime", *words], env=env, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def until(command: list[str], is_ready: Callable[[str], bool], env: dict[str, str], last: str | None = None) -> dict[str, float]:
    """Seconds from the start of a process to the line for which `is_ready`, as `total`, and those that it states of its phases.

    With `last` the process goes on until it has said that, else it is asked to end.
    """
    start = time.perf_counter()
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    found: dict[str, float] = {}
    said: list[str] = []
    for line in map(str.strip, process.stderr):
        said.append(line)
        match = PHASE.match(line)
        if "total" not in found:
            if match is not None:
                found[match["name"]] = float(match["seconds"])
            if is_ready(line):
                found["total"] = time.perf_counter() - start
                if last is None:
                    process.terminate()
        if line == last:
            break
    process.stderr.close()
    process.wait()
    if "total" not in found or last not in (None, said[-1]):
        raise SystemExit("\n".join([f"{' '.join(command)} did not get there:", *said[-30:]]))
    return found


def run_by_hand(model: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--by-hand", model]
    return until(command, lambda line: line == "ready", environment(), last="same options")


def run_vime(folder: Path) -> dict[str, float]:
    """`vime train --plugin math`, ended after its first step."""
    command = [sys.executable, "-m", "vime", "train", "--plugin", "math", "--run-dir", str(folder)]
    return until(command, lambda line: FIRST_STEP.match(line) is not None, environment())


def alternating(rounds: int, calls: list[Callable[[], Any]]) -> list[list[Any]]:
    """What each call gave in each round, the first round, which warms up, left out."""
    found: list[list[Any]] = [[] for _ in calls]
    for number in range(rounds + 1):
        for place, call in enumerate(calls):
            result = call()
            if number:
                found[place].append(result)
    return found


def commands(rounds: int, folder: Path) -> str:
    install_plugins(folder)
    env, with_plugins = environment(), environment(folder)
    cases = {"vime --help": (["--help"], env, HELP_GOAL), "vime plugin list": (["plugin", "list"], with_plugins, LIST_GOAL)}
    taken = alternating(rounds, [lambda words=words, env=env: whole(words, env) for words, env, _ in cases.values()])
    lines = ["| command | seconds | goal |", "|---|---:|---:|"]
    for (name, (_, _, goal)), seconds in zip(cases.items(), taken, strict=True):
        spent = statistics.median(seconds)
        lines.append(f"| `{name}` | {spent:.2f} | {goal}{'' if spent <= goal else ', missed'} |")
    return "\n".join(lines)


def training(rounds: int, folder: Path) -> str:
    from vime.quickstart import MODEL

    numbers = iter(range(rounds + 1))
    ours, bare = alternating(rounds, [lambda: run_vime(folder / str(next(numbers))), lambda: run_by_hand(str(MODEL))])
    ratio = statistics.median(mine["total"] / its["total"] for mine, its in zip(ours, bare, strict=True))
    totals = [statistics.median(run["total"] for run in runs) for runs in (ours, bare)]
    verdict = "" if ratio <= TRAIN_GOAL else ", missed"
    lines = [
        "| vime, s | by hand, s | ratio | goal |",
        "|---:|---:|---:|---:|",
        f"| {totals[0]:.1f} | {totals[1]:.1f} | {ratio:.2f} | {TRAIN_GOAL}{verdict} |",
        "",
        "| who | part | seconds |",
        "|---|---|---:|",
    ]
    for who, runs in (("vime", ours), ("by hand", bare)):
        parts = [name for name in runs[0] if name != "total"]
        lines += [f"| {who} | {part} | {statistics.median(run[part] for run in runs):.1f} |" for part in parts]
        rest = statistics.median(run["total"] - sum(run[part] for part in parts) for run in runs)
        lines.append(f"| {who} | what is left | {rest:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of the runs; the short commands have four times as many")
    parser.add_argument("--write", action="store_true", help="write benchmarks/startup.md as well")
    parser.add_argument("--by-hand", metavar="MODEL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.by_hand:
        by_hand(options.by_hand)
        return
    with tempfile.TemporaryDirectory() as plugins, tempfile.TemporaryDirectory() as runs:
        short, long = commands(4 * options.rounds, Path(plugins)), training(options.rounds, Path(runs))
    text = f"""# Starting

Written by `python benchmarks/startup.py --write`.

Seconds, medians of {4 * options.rounds} rounds (commands) and {options.rounds} (runs), taking turns after one round to warm the page cache.
{datetime.now(UTC):%Y-%m-%d}; {machine()}.

From start to exit; `vime plugin list` with {PLUGINS} plugins installed beside those of this project:

{short}

`vime train --plugin math` to the end of its first step, with the first evaluation, against a script that imports torch,
transformers, deepspeed and vllm and builds the same engine; the ratio is the median of neighbours:

{long}
"""
    print(text)
    if options.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
