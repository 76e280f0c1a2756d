"""Trainer ranks as Ray actors, and the group of them that a run trains with."""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime.errors import TrainerError, VimeError
from vime.runtime.ray.actors import Surroundings, settle
from vime.runtime.ray.calls import translated

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.plugins.function import HookTimes
    from vime.sample import Sample
    from vime.train.batch import TrainBatch
    from vime.train.microbatch import Row

LIFE = "life"
"""Concurrency group of the call that a rank answers whatever else it does."""
PING_SECONDS = 10.0
"""Seconds between two looks at whether the ranks are alive, or less where --trainer-timeout is short."""
GRACE_SECONDS = 5.0
"""Seconds in which a death, or a rank that does not answer, is found out after another rank has complained."""


@dataclass(frozen=True)
class RankSettings:
    """All that a trainer rank is made of. `rendezvous` is where the ranks meet: a torch.distributed init method."""

    config: RunConfig
    model_path: str
    rank: int
    ranks: int
    local_rank: int
    rendezvous: str
    around: Surroundings


@dataclass(frozen=True)
class RankDescription:
    """What a rank knows of itself and its model once it is up."""

    pid: int
    vocab_size: int
    max_positions: int
    is_low_precision: bool
    sync_tolerance: float
    warnings: list[str]


@dataclass(frozen=True)
class Trained:
    """What the optimizer steps of one rollout came to, on one rank."""

    metrics: dict[str, float]
    rows: list[Row]
    """Rank 0: all that were trained, with their advantages, without their tokens."""
    seen: dict[int, Any]
    """The log-probs that this rank saw, M numbers by the row's index; empty where rank 0 has those of all rows."""
    weight_version: int
    applied_steps: int
    hook_milliseconds: dict[str, float]
    """By `<plugin>/<hook>_ms`: those of the hooks that run in training."""


class TrainerRank:
    """The process of one rank: a DeepSpeedTrainer, once it was started."""

    def __init__(self, settings: RankSettings) -> None:
        self.settings = settings
        self._training: Generator[float, None, dict[str, float]] | None = None
        self._batch: TrainBatch | None = None
        self._client: Any = None
        self._sender: Any = None

    def start(self) -> RankDescription:
        """Build the trainer. Not in the constructor, whose errors Ray would report as the death of the actor."""
        settings = self.settings
        config, ranks = settings.config, settings.ranks
        self.plugins = settle(settings.around, config)
        os.environ |= {"RANK": str(settings.rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(settings.local_rank)}
        import torch

        from vime.runtime.build import seed_everything
        from vime.train.deepspeed_trainer import DeepSpeedTrainer

        seed_everything(config.rollout_seed)
        if ranks > 1:
            torch.distributed.init_process_group(
                backend="nccl" if torch.cuda.is_available() else "gloo",
                init_method=settings.rendezvous,
                rank=settings.rank,
                world_size=ranks,
                timeout=datetime.timedelta(seconds=config.trainer_timeout),
            )
        warnings: list[str] = []
        self.trainer = trainer = DeepSpeedTrainer(config, settings.model_path, plugins=self.plugins, warn=warnings.append)
        return RankDescription(
            pid=os.getpid(),
            vocab_size=trainer.vocab_size,
            max_positions=trainer.max_positions,
            is_low_precision=trainer.is_low_precision,
            sync_tolerance=trainer.sync_tolerance(),
            warnings=warnings,
        )

    def ping(self) -> None:
        """Answers at any time, in a thread of its own."""

    def begin(self, batch: TrainBatch) -> float | Trained:
        """Go up to the first optimizer step: the mean difference of log-probs there. Without a step, all there is to say."""
        self._batch, self._training = batch, self.trainer.training(batch)
        return self.go_on()

    def go_on(self) -> float | Trained:
        """Take the optimizer steps."""
        assert self._training is not None and self._batch is not None, "begin comes first"
        try:
            return next(self._training)
        except StopIteration as end:
            rows, self._training, self._batch = self._batch.rows, None, None
            return self._trained(end.value, rows)

    def _trained(self, metrics: dict[str, float], rows: Sequence[Row]) -> Trained:
        seen = {row.index: row.seen_log_probs_M.detach().cpu() for row in rows if row.seen_log_probs_M is not None}
        told: list[Row] = []
        if self.settings.rank == 0:
            for row in rows:
                mine = {"tokens": [], "advantages_M": row.advantages_M.cpu(), "seen_log_probs_M": seen.get(row.index)}
                unused = dict.fromkeys(("rollout_log_probs_M", "old_log_probs_M", "ref_log_probs_M", "values_M", "returns_M"))
                told.append(replace(row, **mine, **unused))
        if self.settings.rank == 0 or len(seen) == len(rows):  # by passes that were shared: every rank has all of them
            seen = {}
        return Trained(metrics, told, seen, self.trainer.weight_version, self.trainer.applied_steps, self.plugins.take_timings())

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return self._of_first(self.trainer.score(sequences))

    def sample_log_probs(self, samples: Sequence[Sample]) -> list[list[float]]:
        return self._of_first(self.trainer.sample_log_probs(samples))

    def _of_first(self, scores: list[list[float]]) -> list[list[float]]:
        """Every rank has all scores; one copy is enough for the driver."""
        return scores if self.settings.rank == 0 else []

    def publish(self) -> list[Any]:
        """The weights in the object store, by rank 0; the others take part in gathering them."""
        from vime.runtime.ray.engines import put_weights

        if self.settings.rank == 0:
            return put_weights(self.trainer.named_weights())
        for _ in self.trainer.named_weights():
            pass
        return []

    def devices(self) -> list[str]:
        """Ids of the GPUs that Ray gave this rank."""
        import ray

        return ray.get_runtime_context().get_accelerator_ids().get("GPU", [])

    def connect_engines(self, backend: str, actors: Sequence[Any], address: str, port: int) -> None:
        """Meet these engines for vLLM's weight transfer."""
        import ray

        from vime.runtime.ray.transfer import EngineClient, connect, init_info

        if self._sender is not None:
            self._sender.shutdown()
        tp = self.settings.config.engine_tp
        self._client = EngineClient(
            len(actors), tp, lambda engine, method, arguments: actors[engine].call.remote("transfer", method, arguments), ray.get
        )
        info = init_info(backend, self.settings.rank, address=address, port=port, processes=len(actors) * tp)
        self._sender = connect(self.trainer, info, self._client)

    def send_weights(self, version: int, keep_requests: bool) -> None:
        """Give the engines the weights; all ranks take part."""
        self._client.version, self._client.keep_requests = version, keep_requests
        self._sender.send_weights()

    def save(self, directory: str) -> None:
        from vime.train.random_states import rank_name, save_process

        self.trainer.save(directory)
        save_process(Path(directory), rank_name(self.settings.rank), self.plugins.state_dict())

    def load(self, directory: str) -> Trained:
        """Go on from a checkpoint. Plugins get the states that they had in this rank; in one of a single process, those of that."""
        from vime.train.checkpoint import contents
        from vime.train.random_states import load_process, rank_name

        self.trainer.load(directory)
        states = load_process(Path(directory), rank_name(self.settings.rank))
        if states is None:
            states = contents(Path(directory))["plugins"]
        self.plugins.load_state_dict(states, ignore_missing=self.settings.config.ignore_plugin_lock)
        return Trained({}, [], {}, self.trainer.weight_version, self.trainer.applied_steps, {})


class TrainerGroup:
    """N ranks that train as one (`Trainer`). One that dies, hangs or raises ends them all: the others may be waiting for it."""

    def __init__(self, actors: Sequence[Any], settings: Sequence[RankSettings], warn: Callable[[str], object], times: HookTimes) -> None:
        """`actors` are TrainerRanks, which begin to build their trainers; `wait` waits for them. `times` gets those of their hooks."""
        self._actors = list(actors)
        self._submitting = threading.Lock()
        """The ranks get calls in one order, whatever the threads that they come from: what they do, they do together."""
        self._labels = [f"trainer rank {each.rank} (on node {each.around.node})" for each in settings]
        self._logs = [Path(each.around.logs) / f"{each.around.name}.log" for each in settings]
        self._timeout = settings[0].config.trainer_timeout
        self._started = [actor.start.remote() for actor in self._actors]
        self._warn, self._times = warn, times
        self.vocab_size = self.max_positions = 0
        self.is_low_precision, self._tolerance = False, 0.0
        self.weight_version = self.applied_steps = 0

    def wait(self) -> None:
        """Until all ranks are up. Raises what one of them raised."""
        described: list[RankDescription] = self._answers(self._started)
        for rank, found in enumerate(described):
            self._labels[rank] = self._labels[rank].replace("(", f"(process {found.pid} ", 1)
        first = described[0]
        for warning in first.warnings:
            self._warn(warning)
        self.vocab_size, self.max_positions = first.vocab_size, first.max_positions
        self.is_low_precision, self._tolerance = first.is_low_precision, first.sync_tolerance

    # --- asking all ranks -------------------------------------------------------------------------------------------

    def _on_all(self, method: str, *args: Any) -> list[Any]:
        """Call a method of every rank and return the answers in their order. Raises the first error, TrainerError for a lost rank."""
        with self._submitting:
            references = [getattr(actor, method).remote(*args) for actor in self._actors]
        return self._answers(references)

    def _answers(self, references: Sequence[Any]) -> list[Any]:
        import ray

        try:
            self._wait_for(references)
            return ray.get(list(references))
        except Exception as error:  # noqa: BLE001 - raised again, in the words of the run
            explained = self._explained(error, references)
            self._end_all()
        raise explained from explained.__cause__

    def _wait_for(self, references: Sequence[Any]) -> None:
        """Until all are there. The first that fails raises, and so does a rank that shows no sign of life for --trainer-timeout."""
        import ray

        left, heard = list(references), [time.monotonic()] * len(self._actors)
        pings: dict[Any, int] = {}
        while left:
            done, left = ray.wait(left, num_returns=1, timeout=min(PING_SECONDS, self._timeout / 4))
            ray.get(done)
            if done:
                continue
            for ping in ray.wait(list(pings), num_returns=len(pings), timeout=0)[0] if pings else ():
                heard[pings.pop(ping)] = time.monotonic()
            silent = [rank for rank, when in enumerate(heard) if time.monotonic() - when > self._timeout]
            if silent:
                raise self._silent(silent)
            waiting = set(pings.values())
            pings |= {self._ping(rank): rank for rank in range(len(self._actors)) if rank not in waiting}

    def _ping(self, rank: int) -> Any:
        return self._actors[rank].ping.options(concurrency_group=LIFE).remote()

    def _explained(self, error: Exception, references: Sequence[Any]) -> BaseException:
        """What came of it: where a rank is lost, the others may have noticed first, by a connection that broke or by waiting in vain."""
        import ray
        from ray.exceptions import RayActorError

        explained = translated(error, TrainerError)
        is_loss = isinstance(error, RayActorError)
        if not is_loss and (isinstance(explained, VimeError) or not isinstance(explained, RuntimeError)):
            return explained
        left, give_up = list(references), time.monotonic() + GRACE_SECONDS
        while left and time.monotonic() < give_up:
            done, left = ray.wait(left, num_returns=1, timeout=max(0.0, give_up - time.monotonic()))
            for reference in done:
                try:
                    ray.get(reference)
                except RayActorError as death:
                    rank = list(references).index(reference)
                    return translated(death, lambda cause, rank=rank: self._lost(rank, cause))
                except Exception:  # noqa: BLE001 - not this one
                    continue
        pings = [self._ping(rank) for rank in range(len(self._actors))]
        _, silent = ray.wait(pings, num_returns=len(pings), timeout=GRACE_SECONDS)
        return self._silent([pings.index(ping) for ping in silent]) if silent else explained

    def _lost(self, rank: int, cause: str) -> TrainerError:
        others = "; the other ranks were ended" if len(self._actors) > 1 else ""
        log = self._logs[rank]
        words = "" if log.exists() and not log.stat().st_size else f"; its last words: {log}"
        return TrainerError(f"{self._labels[rank]} {cause}{others}", hint=f"go on from the last checkpoint: --load auto{words}")

    def _silent(self, ranks: Sequence[int]) -> TrainerError:
        names = " and ".join(self._labels[rank] for rank in ranks)
        return TrainerError(
            f"{names} {'hangs' if len(ranks) == 1 else 'hang'}: no sign of life; all ranks were ended",
            hint=f"go on from the last checkpoint: --load auto; --trainer-timeout is {self._timeout:g} seconds",
        )

    def _end_all(self) -> None:
        import ray

        for actor in self._actors:
            ray.kill(actor)

    # --- what a run asks of its trainer -----------------------------------------------------------------------------

    def train(self, batch: TrainBatch, *, verify: Callable[[], object] | None = None) -> dict[str, float]:
        import ray

        answers = self._on_all("begin", ray.put(batch))
        if not isinstance(answers[0], Trained):
            if verify is not None and not answers[0] <= self.sync_tolerance():  # nan asks for a check too
                verify()
            answers = self._on_all("go_on")
        self._take(answers, batch)
        for key in answers[0].hook_milliseconds:  # of the slowest rank: the others wait for it
            slowest = max(answer.hook_milliseconds.get(key, 0.0) for answer in answers)
            self._times.add(key.removesuffix("_ms"), slowest / 1000.0)
        return answers[0].metrics

    def _take(self, answers: Sequence[Trained], batch: TrainBatch) -> None:
        """Counters and rows of all ranks; each knows the log-probs of the rows that it trained on."""
        self.weight_version, self.applied_steps = answers[0].weight_version, answers[0].applied_steps
        batch.rows = answers[0].rows
        for row in batch.rows:
            row.tokens = batch.tokens[row.index]
            if row.seen_log_probs_M is None:
                row.seen_log_probs_M = next((answer.seen[row.index] for answer in answers if row.index in answer.seen), None)

    def named_weights(self) -> Iterator[tuple[str, Any]]:
        from vime.runtime.ray.engines import unpack_references

        return unpack_references(self.publish())

    def publish(self) -> list[Any]:
        """References to the weights in the object store."""
        return self._on_all("publish")[0]

    def connect_engines(self, backend: str, actors: Sequence[Any], address: str, port: int) -> None:
        """Have all ranks meet these engines for vLLM's weight transfer; at a port of rank 0's node where it needs one."""
        self._on_all("connect_engines", backend, list(actors), address, port)

    def send_weights(self, version: int, keep_requests: bool) -> None:
        """Give the engines that were met the weights."""
        self._on_all("send_weights", version, keep_requests)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return self._on_all("score", sequences)[0]

    def sample_log_probs(self, samples: Sequence[Sample]) -> list[list[float]]:
        return self._on_all("sample_log_probs", samples)[0]

    def sync_tolerance(self) -> float:
        return self._tolerance

    def save(self, directory: str | Path) -> None:
        """All ranks write their parts; the random states of this process, which has the loop, are written beside them."""
        from vime.train.random_states import DRIVER, save_process

        self._on_all("save", str(Path(directory).absolute()))
        save_process(Path(directory), DRIVER)

    def load(self, directory: str | Path) -> None:
        from vime.train.trainer_state import restore_random_states

        loaded = self._on_all("load", str(Path(directory).absolute()))[0]
        self.weight_version, self.applied_steps = loaded.weight_version, loaded.applied_steps
        restore_random_states(Path(directory))

    def close(self) -> None:
        self._end_all()
