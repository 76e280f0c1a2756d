"""Tokens per second of a rollout against vLLM's own `LLM.generate` on the same prompts, side by side in one run.

    uv run python benchmarks/rollout_throughput.py > benchmarks/rollout_throughput.md

Two processes hold one engine each, with the same options, and take turns: while one generates the other sleeps. `plain` is
the built-in rollout with a reward and no filter; `filtered` has a filter that drops a third of the groups, which are replaced
(kept and dropped tokens count). Medians over the rounds; the ratio is that of each pair of neighbours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

from machine import machine

GROUPS, SAMPLES = 32, 8
TEMPERATURE = 1.0


def start_engine(tokens: int) -> tuple[Any, Any]:
    """A configuration for the quickstart's model, and the engine of a run with it."""
    import torch

    from vime.config.load import load_config
    from vime.engine.local import LocalEngine
    from vime.quickstart import quickstart_defaults

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
    flags = {
        "plugin": ["math"],
        "rollout_batch_size": GROUPS,
        "n_samples_per_prompt": SAMPLES,
        "rollout_max_response_len": tokens,
        "rollout_min_new_tokens": tokens,
        "rollout_temperature": TEMPERATURE,
        "num_rollout": 1000,
    }
    config = load_config(flags, None, {}, quickstart=quickstart_defaults).config.model_copy(update={"plugin": []})
    assert config.hf_checkpoint is not None
    engine = LocalEngine(config, config.hf_checkpoint, dtype="float32", deterministic=True, concurrency=GROUPS * SAMPLES)
    return config, engine


class RolloutWorker:
    """Makes whole rollouts."""

    def __init__(self, tokens: int, *, filtered: bool) -> None:
        from vime.api import DynamicFilterOutput, Sample, hookimpl
        from vime.plugins.manager import PluginManager
        from vime.rollout.context import RolloutContext
        from vime.rollout.data_source import RolloutDataSourceWithBuffer
        from vime.rollout.rewards import RewardScorer
        from vime.rollout.runner import RolloutRunner
        from vime.rollout.vllm_rollout import VllmRollout

        plugin = ModuleType("plugin")

        @hookimpl
        async def custom_rm(sample: Sample) -> float:
            return float((sample.index or 0) % 2)

        @hookimpl
        def dynamic_sampling_filter(samples: list[Sample]) -> DynamicFilterOutput:
            return DynamicFilterOutput((samples[0].group_index or 0) % 3 != 0, "third")

        setattr(plugin, "custom_rm", custom_rm)  # noqa: B010 - a module has no such attribute to a type checker
        if filtered:
            setattr(plugin, "dynamic_sampling_filter", dynamic_sampling_filter)  # noqa: B010
        config, self.engine = start_engine(tokens)
        plugins = PluginManager()
        plugins.add(plugin, name="plugin")
        source = RolloutDataSourceWithBuffer(config, tokenizer=self.engine.tokenizer)
        context = RolloutContext(config, self.engine, plugins, RewardScorer(config, plugins), deterministic=True)
        self.runner = RolloutRunner(context, VllmRollout(context, source, []))
        self.loop = asyncio.new_event_loop()

    def generate(self) -> int:
        self.engine.stats()
        self.loop.run_until_complete(self.runner.train(0))
        return int(self.engine.stats()["generated_tokens"])


class VllmWorker:
    """`LLM.generate` on as many prompts of the same data, all at once."""

    def __init__(self, tokens: int) -> None:
        from vime.config.load import load_config
        from vime.data.dataset import load_dataset
        from vime.engine.vllm_options import engine_options, prepare_environment
        from vime.quickstart import quickstart_defaults
        from vime.runtime.third_party import quiet_third_parties

        quiet_third_parties()
        prepare_environment()
        import torch
        from vllm import LLM, SamplingParams

        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
        flags = {"plugin": ["math"], "rollout_max_response_len": tokens, "num_rollout": 1}
        config = load_config(flags, None, {}, quickstart=quickstart_defaults).config
        assert config.hf_checkpoint is not None and config.prompt_data is not None
        options = engine_options(config, config.hf_checkpoint, dtype="float32", concurrency=GROUPS * SAMPLES)
        self.llm = LLM(**options)
        rows = load_dataset(
            config.prompt_data,
            tokenizer=self.llm.get_tokenizer(),
            input_key=config.input_key,
            label_key=config.label_key,
            apply_chat_template=config.apply_chat_template,
        )
        tokenizer: Any = self.llm.get_tokenizer()
        ids = [tokenizer.encode(str(rows[number].prompt), add_special_tokens=False) for number in range(GROUPS)]
        self.prompts: Any = [{"prompt_token_ids": prompt} for prompt in ids for _ in range(SAMPLES)]
        self.params = [
            SamplingParams(temperature=TEMPERATURE, max_tokens=tokens, min_tokens=tokens, seed=seed, logprobs=0, flat_logprobs=True)
            for seed in range(len(self.prompts))
        ]

    def generate(self) -> int:
        outputs = self.llm.generate(self.prompts, self.params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)


def serve(kind: str, tokens: int) -> None:
    """A worker process: a line in, a line with tokens and seconds out."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print is not an answer
    worker = VllmWorker(tokens) if kind == "vllm" else RolloutWorker(tokens, filtered=kind == "filtered")
    worker.generate()
    print("ready", file=out, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        count = worker.generate()
        print(json.dumps([count, time.perf_counter() - start]), file=out, flush=True)


class Worker:
    """The parent's end of a worker process."""

    def __init__(self, kind: str, tokens: int) -> None:
        command = [sys.executable, __file__, "--serve", kind, "--tokens", str(tokens)]
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "VLLM_LOGGING_LEVEL": "ERROR"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        assert self._line() == "ready", f"the worker {kind} did not start"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def rate(self) -> float:
        """Tokens per second of one round."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        count, seconds = json.loads(self._line())
        return count / seconds

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=32, help="tokens of every response")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.tokens)
        return 0
    print(
        f"{GROUPS} prompts x {SAMPLES} samples of {options.tokens} tokens on the quickstart's model, {options.rounds} alternating rounds; "
        f"{datetime.now(UTC):%Y-%m-%d}, {machine()}\n"
    )
    print("| rollout | tokens/s | LLM.generate, tokens/s | ratio (median of pairs) |\n|---|---:|---:|---:|")
    for kind in ("plain", "filtered"):
        ours, theirs = Worker(kind, options.tokens), Worker("vllm", options.tokens)
        pairs = [(ours.rate(), theirs.rate()) for _ in range(options.rounds)]
        ours.stop()
        theirs.stop()
        rates = [statistics.median(column) for column in zip(*pairs, strict=True)]
        ratio = statistics.median(first / second for first, second in pairs)
        print(f"| {kind} | {rates[0]:,.0f} | {rates[1]:,.0f} | {ratio:.3f} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
