"""The trainer: one rank of DeepSpeed over a Hugging Face model.

`train` takes the batch of one rollout and applies its optimizer steps. A step's loss is a plain sum over micro-batches
and ranks of weights x per-token losses; the weights are computed once, over the whole step (`losses.token_weights`),
so that no split of the batch changes the loss or its gradient.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vime.errors import TrainerError
from vime.rollout.hook_guards import check_returns_nothing
from vime.rollout.unchanged import watched
from vime.sample import Sample
from vime.train import trainer_state
from vime.train.advantages import fill_advantages
from vime.train.batch import TrainBatch
from vime.train.critic import start_critic
from vime.train.deepspeed_config import deepspeed_config, resolve_train_dtype, start_process_group
from vime.train.lora import Adapters, AdaptersOff, adapted_model
from vime.train.microbatch import MicroBatch, Row, split_steps, trained_rows
from vime.train.model_loading import check_model_folder, count_parameters, load_model
from vime.train.objective import Objective
from vime.train.parameters import gather_named_weights
from vime.train.policy_model import PolicyModel
from vime.train.quiet import quiet_deepspeed
from vime.train.reference import load_reference
from vime.train.rollout_data import apply_rollout_data, to_rollout_data
from vime.train.schedule import policy_schedule
from vime.train.scoring import row_log_probs, sample_log_probs
from vime.train.stepper import Stepper
from vime.train.tally import Tally

logger = logging.getLogger(__name__)


class DeepSpeedTrainer:
    """Owns the policy, its optimizer and the reference model. `plugins` gives the hooks that run inside training."""

    def __init__(self, config: Any, model_path: str, *, plugins: Any = None, warn: Callable[[str], object] = logger.warning) -> None:
        model_path = adapted_model(config, model_path)
        check_model_folder(model_path)
        self.config = config
        self.plugins = plugins
        self.objective = Objective(config, plugins)
        self.device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        self.dtype = resolve_train_dtype(config.train_dtype, count_parameters(model_path), self.device)
        start_process_group(self.device)
        self.weight_version = 0
        """Rollouts that changed the weights."""
        self.engine = self._start_engine(model_path)
        self.stepper = Stepper(self.engine, policy_schedule(config), config, self.device)
        self.ranks, self.rank = self.stepper.ranks, self.stepper.rank
        self.critic = start_critic(config, model_path, self.model, self.dtype, self.device, plugins)
        self.vocab_size: int = self.model.config.vocab_size
        self.max_positions: int = getattr(self.model.config, "max_position_embeddings", None) or 64
        base = AdaptersOff(self.engine, self.adapters) if self.adapters is not None else None
        self.reference = load_reference(config, model_path, self.model, self.dtype, self.device, warn, base)

    def _start_engine(self, model_path: str) -> Any:
        import deepspeed
        import deepspeed.comm as dist

        model: Any = load_model(model_path, self.dtype, self.config.attn_implementation, self.device)
        self.adapters = Adapters(model, self.config, model_path) if self.config.lora_rank else None
        if self.config.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.model = model
        # What was not sampled has no temperature.
        temperature = 1.0 if self.config.loss_type == "sft_loss" else self.config.rollout_temperature
        policy = PolicyModel(model, temperature, self.config.logprob_chunk_size)
        settings = deepspeed_config(self.config, self.dtype, dist.get_world_size())
        parameters: Any = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        with quiet_deepspeed():
            engine, *_ = deepspeed.initialize(model=policy, model_parameters=parameters, config=settings)
        engine.train()
        return engine

    # -- training ----------------------------------------------------------------------------------------------------

    def train(self, batch: TrainBatch, *, verify: Callable[[], object] | None = None) -> dict[str, float]:
        """Apply the optimizer steps of one rollout and return its metrics, without a namespace.

        `verify` is called before the first optimizer step when the mean |train - rollout log-prob| of tokens of the
        current weights exceeds the sync tolerance; it raises if the engine's weights are not the trainer's.
        """
        training = self.training(batch)
        while True:
            try:
                difference = next(training)
            except StopIteration as end:
                return end.value
            if verify is not None and not difference <= self.sync_tolerance():  # nan asks for a check too
                verify()

    def training(self, batch: TrainBatch) -> Generator[float, None, dict[str, float]]:
        """The optimizer steps of one rollout, with a stop before the first, in which weights may be scored and not changed.

        Yields the mean |train - rollout log-prob| of tokens of the current weights there; returns the metrics. On several
        ranks all of them run through it, and yield and return the same.
        Raises TrainerError after `max_bad_steps` steps in a row whose loss or gradient is not finite.
        """
        try:
            return (yield from self._training(batch))
        except Exception as error:
            error.add_note(f"in the training on rollout {batch.rollout_id}")
            raise

    def _training(self, batch: TrainBatch) -> Generator[float, None, dict[str, float]]:
        self._refuse_foreign_tokens(batch)
        rows = batch.rows = trained_rows(batch, self.weight_version, self.device)
        steps = split_steps(batch, self.config.global_batch_size, self.config.num_steps_per_rollout)
        tally = Tally(self.ranks, self.device)
        if self.config.loss_type != "sft_loss":
            self._prepare_policy_rows(batch, rows, len(steps), tally)
        by_index = {row.index: row for row in rows}
        applied = 0
        policy_steps = [] if self.critic is not None and self.critic.trains_alone(batch.rollout_id) else steps
        for number, step in enumerate(policy_steps):
            tally.measures_difference = number == 0 and not tally.has_difference
            members = [by_index[index] for index in step if index in by_index]
            if not members:
                tally.skip()
                continue
            self.stepper.accumulate(members, batch, tally, self._micro_loss)
            if number == 0:
                yield tally.mean_abs_diff()
            applied += self.stepper.apply(tally)
        self.weight_version += applied > 0
        if self.reference is not None:
            self.reference.after_rollout(batch.rollout_id, self.named_weights)
        counts = {
            "skipped_steps": len(policy_steps) - applied,
            "optimizer_steps": applied,
            "stale_samples": sum(not row.is_current for row in rows),
        }
        of_critic = self.critic.train(batch, rows, steps) if self.critic is not None else {}
        of_policy = tally.metrics() if policy_steps else {}
        return of_critic | of_policy | {name: float(value) for name, value in counts.items()}

    def _refuse_foreign_tokens(self, batch: TrainBatch) -> None:
        """Rollouts may come from elsewhere (a saved file, a plugin's own tokenizer): an id beyond the embedding names its sample."""
        for index, tokens in enumerate(batch.tokens):
            if tokens and not (min(tokens) >= 0 and max(tokens) < self.vocab_size):
                foreign = next(token for token in tokens if not 0 <= token < self.vocab_size)
                raise TrainerError(
                    f"sample {batch.sample_indices[index]} holds token {foreign}, and the model has {self.vocab_size} tokens",
                    hint="train on samples that were tokenised for this model",
                )

    def _prepare_policy_rows(self, batch: TrainBatch, rows: list[Row], num_steps: int, tally: Tally) -> None:
        """All that needs the policy as it was before its first step on this rollout: log-probs, advantages, and the hooks on them."""
        self._fill_old_log_probs(rows, num_steps, tally)
        if self.reference is not None:
            with self.reference.scoring() as reference:
                for row, log_probs in zip(rows, self._log_probs(reference, rows), strict=True):
                    row.ref_log_probs_M = log_probs
        if self.critic is not None:
            self.critic.fill_values(rows)
        hook = self._hook("compute_advantages")
        if hook is None or not rows:
            fill_advantages(self.config, rows)
        else:
            self._call_data_hook(hook, batch, rows, args=self.config)
        for hook in self._hooks("rollout_data_postprocess") if rows else ():
            self._call_data_hook(hook, batch, rows, args=self.config, rollout_id=batch.rollout_id)

    def _fill_old_log_probs(self, rows: list[Row], num_steps: int, tally: Tally) -> None:
        """Where the ratio of each row starts from.

        The engine's log-probs under `use_rollout_logprobs`, and for rows of older weights unless TIS corrects for
        those; else the trainer's own, computed now when several steps follow, or in the one step's forward pass.
        """
        config = self.config
        flag = "--use-rollout-logprobs" if config.use_rollout_logprobs else "--use-tis" if config.use_tis else None
        if flag is not None and any(row.rollout_log_probs_M is None for row in rows):
            raise TrainerError(f"{flag} is set, but the rollout carries no log-probs", hint="leave it out, or return rollout_log_probs")
        for row in rows:
            if config.use_rollout_logprobs or not (row.is_current or config.use_tis):
                row.old_log_probs_M = row.rollout_log_probs_M
        needed = [row for row in rows if row.old_log_probs_M is None]
        sees_log_probs = self._hook("compute_advantages") or self._hooks("rollout_data_postprocess")
        if num_steps > 1 or config.kl_coef or sees_log_probs:
            for row, log_probs in zip(needed, self._log_probs(self.engine, needed), strict=True):
                row.old_log_probs_M = row.seen_log_probs_M = log_probs
                tally.add_difference(log_probs, row.rollout_log_probs_M, row.is_current)

    def _hook(self, name: str) -> Any:
        return self.plugins.claimed(name) if self.plugins is not None else None

    def _hooks(self, name: str) -> Sequence[Any]:
        return self.plugins.implementations(name) if self.plugins is not None else ()

    def _call_data_hook(self, hook: Any, batch: TrainBatch, rows: list[Row], **arguments: Any) -> None:
        data = to_rollout_data(batch, rows)
        if hook.hook == "compute_advantages":
            del data["advantages"], data["returns"]
        with watched(self.config, hook):
            result = hook.run(rollout_data=data, **arguments)
        apply_rollout_data(hook, data, batch, rows)
        check_returns_nothing(hook.label, hook.hook, result, data, "change rollout_data in place: rollout_data[key][i] = values")

    def _micro_loss(self, micro: MicroBatch, tally: Tally) -> Tensor:
        log_probs_K, entropy_K = self.engine(
            micro.input_ids_B_T,
            micro.select_K,
            micro.targets_K,
            entropy_grad=self.config.entropy_coef != 0,
            **micro.layout,
        )
        result = self.objective(micro, log_probs_K, entropy_K)
        tally.add(result, micro, log_probs_K)
        return result.loss

    # -- scoring and weights -----------------------------------------------------------------------------------------

    def _log_probs(self, model: Any, rows: list[Row], temperature: float | None = None) -> list[Tensor]:
        """The log-probs of each row's trained tokens, in the order of `rows`."""
        return row_log_probs(model, self.config, rows, self.device, temperature, self.stepper.share)

    def sample_log_probs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """The log-probs of each sample's trained tokens under the current weights, at temperature 1."""
        return sample_log_probs(self.engine, self.config, samples, self.vocab_size, self.device, self.stepper.share)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probs of tokens 1..T-1 of each sequence under the current weights, at temperature 1."""
        rows = [
            Row(list(tokens), list(range(1, len(tokens))), index, True, torch.zeros(len(tokens) - 1, device=self.device))
            for index, tokens in enumerate(sequences)
            if len(tokens) > 1
        ]
        scored = dict(zip([row.index for row in rows], self._log_probs(self.engine, rows, temperature=1.0), strict=True))
        return [scored[index].tolist() if index in scored else [] for index in range(len(sequences))]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """All weights under their Hugging Face names, each once, adapters merged into them. Tensors are detached and may share storage."""
        return gather_named_weights(self.model, is_partitioned=self.engine.zero_optimization_partition_weights(), adapters=self.adapters)

    @property
    def applied_steps(self) -> int:
        """Optimizer steps that changed the weights."""
        return self.stepper.applied_steps

    @property
    def bad_steps_in_a_row(self) -> int:
        """Optimizer steps skipped since the last that was applied."""
        return self.stepper.bad_steps_in_a_row

    def sync_tolerance(self) -> float:
        """The largest mean |difference of log-probs| that counts as equal weights."""
        if self.config.check_weights_tolerance is not None:
            return self.config.check_weights_tolerance
        return 5e-2 if self.is_low_precision else 1e-3

    @property
    def is_low_precision(self) -> bool:
        """Whether trainer or engine compute below float32."""
        return self.dtype is torch.bfloat16 or self.config.engine_dtype in ("bfloat16", "float16")

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def save(self, directory: str | Path) -> None:
        """Write the model in Hugging Face format into `directory`, and all that a resume needs beside it."""
        trainer_state.save(self, Path(directory))

    def load(self, directory: str | Path) -> None:
        """Go on from `save`: weights, moments, counters and random states. Raises CheckpointError for anything else."""
        trainer_state.load(self, Path(directory))

    def close(self) -> None:
        """Release the model and the optimizer. The process group stays: the engine may share it."""
        self.engine.destroy()
        if self.critic is not None:
            self.critic.close()
        self.reference = None
