"""The trainer against a bare PyTorch loop over the same micro-batches: speed and peak memory, side by side in one run.

    uv run python benchmarks/trainer.py > benchmarks/trainer.md
    uv run python benchmarks/trainer.py --smollm2 examples/smollm2/model        SmolLM2-135M in bfloat16 too

Two processes hold one model each and take turns: while one takes a step the other sleeps. `trainer` is a GRPO step as
`vime train` takes it, from the samples of a rollout to new weights, metrics included. `bare` is what anybody would write: the
same padded micro-batches, laid out before the clock starts, the model, logits of the trained tokens in float32, their
log-probs, a loss, backward, clipping and AdamW; no entropy, no metrics, no checks. Medians over the rounds; the ratio is
that of each pair of neighbours, by the clock and by processor time, which other work on the machine disturbs less. Memory is
what the process holds at most.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True)
class Case:
    """A model and the shape of a batch: groups x samples, with responses of up to `longest` tokens."""

    name: str
    dtype: str
    groups: int
    samples: int
    longest: int


CASES = {
    "quickstart": Case("quickstart model, 32 x 8, up to 112 tokens", "float32", 32, 8, 112),
    "quickstart-short": Case("quickstart model, 8 x 8, 16 tokens", "float32", 8, 8, 16),
    "smollm2": Case("SmolLM2-135M, 4 x 8, up to 128 tokens", "bfloat16", 4, 8, 128),
}


def make_groups(case: Case, vocab: int) -> list[list[Any]]:
    """Samples with random tokens and lengths, the shortest an eighth of the longest."""
    from vime.sample import Sample, Status

    generator = random.Random(0)
    groups: list[list[Any]] = []
    for group in range(case.groups):
        prompt = [generator.randrange(vocab) for _ in range(16)]
        members: list[Any] = []
        for number in range(case.samples):
            length = generator.randint(max(1, case.longest // 8), case.longest)
            sample = Sample(group_index=group, index=group * case.samples + number, tokens=list(prompt))
            tokens = [generator.randrange(vocab) for _ in range(length)]
            sample.append_response_tokens(tokens=tokens, log_probs=[-5.0] * length, meta_info={"weight_version": 0})
            sample.reward, sample.status = float(number % 2), Status.COMPLETED
            members.append(sample)
        groups.append(members)
    return groups


def make_config(case: Case, model: str) -> Any:
    from vime.config.run_config import RunConfig

    sizes = {"rollout_batch_size": case.groups, "n_samples_per_prompt": case.samples, "rollout_max_response_len": case.longest}
    return RunConfig(hf_checkpoint=model, lr=1e-6, train_dtype=case.dtype, check_weights_tolerance=1e9, **sizes)  # type: ignore[arg-type]


class Trainer:
    """vime's."""

    def __init__(self, case: Case, model: str) -> None:
        from vime.train.batch import build_train_batch
        from vime.train.deepspeed_trainer import DeepSpeedTrainer

        config = make_config(case, model)
        self.trainer = DeepSpeedTrainer(config, model)
        groups = make_groups(case, self.trainer.vocab_size)
        self.make_batch = lambda: build_train_batch(config, None, groups)

    def step(self) -> None:
        self.trainer.train(self.make_batch())


class Bare:
    """A loop of a dozen lines."""

    def __init__(self, case: Case, model: str) -> None:
        import torch

        from vime.train.batch import build_train_batch
        from vime.train.losses import token_weights
        from vime.train.microbatch import collate, plan_micro_batches, trained_rows
        from vime.train.model_loading import load_model

        config, cpu = make_config(case, model), torch.device("cpu")
        dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[case.dtype]
        self.model: Any = load_model(model, dtype, "auto", cpu)
        if dtype is not torch.float32:  # float32 weights beside those that compute, as in the trainer
            self.masters = [parameter.detach().float().requires_grad_() for parameter in self.model.parameters()]
        else:
            self.masters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-6)
        batch = build_train_batch(config, None, make_groups(case, self.model.config.vocab_size))
        rows = trained_rows(batch, 0, cpu)
        weights = token_weights(batch.loss_masks, batch.rollout_ids, "sample")
        plan = plan_micro_batches([row.input_length for row in rows], max_tokens=config.max_tokens_per_gpu, rows_each=None)[0]
        self.micros = [collate([rows[p] for p in picked], [weights[p] for p in picked], cpu) for picked in plan]

    def step(self) -> None:
        import torch

        for micro in self.micros:
            backbone = getattr(self.model, self.model.base_model_prefix)
            hidden = backbone(input_ids=micro.input_ids_B_T, use_cache=False).last_hidden_state
            logits = self.model.get_output_embeddings()(hidden.reshape(-1, hidden.shape[-1])[micro.select_K]).float()
            log_probs = torch.log_softmax(logits, dim=-1).gather(-1, micro.targets_K[:, None]).squeeze(-1)
            ratio = (log_probs - log_probs.detach()).exp()
            (-(ratio * micro.advantages_K) * micro.weights_K).sum().backward()
        parameters = list(self.model.parameters())
        if self.masters[0] is not parameters[0]:
            for master, parameter in zip(self.masters, parameters, strict=True):
                master.grad, parameter.grad = parameter.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.masters[0] is not parameters[0]:
            with torch.no_grad():
                for master, parameter in zip(self.masters, parameters, strict=True):
                    parameter.copy_(master)


def serve(kind: str, case: Case, model: str) -> None:
    """A worker process: a line in, a line with seconds, seconds of the processor, and bytes out."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print is not an answer
    worker = Trainer(case, model) if kind == "trainer" else Bare(case, model)
    worker.step()
    worker.step()
    print("ready", file=out, flush=True)
    for _ in sys.stdin:
        start, used = time.perf_counter(), time.process_time()
        worker.step()
        taken = [time.perf_counter() - start, time.process_time() - used]
        print(json.dumps([*taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]), file=out, flush=True)


class Worker:
    """The parent's end of a worker process."""

    def __init__(self, kind: str, case: str, model: str) -> None:
        command = [sys.executable, __file__, "--serve", kind, "--case", case, "--model", model]
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        assert self.stdout.readline().strip() == "ready", f"the {kind} process did not start"

    def step(self) -> list[float]:
        print("go", file=self.stdin, flush=True)
        return json.loads(self.stdout.readline())

    def close(self) -> None:
        self.stdin.close()
        self.process.wait()


def compare(name: str, model: str, rounds: int) -> str:
    """A row of the table."""
    workers = {kind: Worker(kind, name, model) for kind in ("trainer", "bare")}
    steps: dict[str, list[list[float]]] = {kind: [] for kind in workers}
    for number in range(rounds):
        for kind in list(workers) if number % 2 else reversed(list(workers)):
            steps[kind].append(workers[kind].step())
    for worker in workers.values():
        worker.close()
    cells = [CASES[name].name]
    for column in (0, 1):
        ours, bare = ([step[column] for step in steps[kind]] for kind in ("trainer", "bare"))
        speed = statistics.median(theirs / mine for theirs, mine in zip(bare, ours, strict=True))
        cells += [f"{statistics.median(ours):.3f}", f"{statistics.median(bare):.3f}", f"{speed:.2f}"]
    peaks = {kind: max(step[2] for step in steps[kind]) / 2**20 for kind in workers}
    cells += [f"{peaks['trainer']:,.0f}", f"{peaks['bare']:,.0f}", f"{peaks['trainer'] / peaks['bare']:.2f}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description="The trainer against a bare PyTorch loop.")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--smollm2", metavar="FOLDER", help="the folder of SmolLM2-135M, as examples/smollm2 writes it")
    parser.add_argument("--serve", choices=("trainer", "bare"))
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--model")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, CASES[arguments.case], arguments.model)
        return
    from vime.quickstart import MODEL

    models = {"quickstart": str(MODEL), "quickstart-short": str(MODEL)} | ({"smollm2": arguments.smollm2} if arguments.smollm2 else {})
    machine = f"{len(os.sched_getaffinity(0))} CPU cores, {platform.machine()}, Python {platform.python_version()}"
    print(f"{arguments.rounds} alternating rounds; {datetime.now(UTC):%Y-%m-%d}, {machine}\n")
    columns = ("step", "trainer, s", "bare, s", "speed", "trainer, CPU s", "bare, CPU s", "speed", "trainer, MiB", "bare, MiB", "memory")
    print("| " + " | ".join(columns) + " |")
    print("|---|" + "---:|" * 9)
    for name, model in models.items():
        print(compare(name, model, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
