"""The critic of PPO: the policy's architecture with a scalar head, in a DeepSpeed engine of its own.

It answers with the value of the state before each trained token, and learns the returns by steps over the same rows as
the policy's. Legend: B rows, T tokens, K trained tokens of a micro-batch, M of a row, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vime.errors import CheckpointError, ConfigError
from vime.train.batch import TrainBatch
from vime.train.deepspeed_config import deepspeed_config
from vime.train.losses import weighted_sum
from vime.train.microbatch import MicroBatch, Row
from vime.train.model_loading import check_model_folder, load_model
from vime.train.objective import LossResult
from vime.train.parameters import gather_named_weights
from vime.train.policy_model import hidden_states
from vime.train.quiet import quiet_deepspeed, quiet_transformers
from vime.train.schedule import critic_schedule
from vime.train.scoring import token_scores
from vime.train.shared_prompts import attention_pair_cost
from vime.train.stepper import Stepper
from vime.train.tally import Tally
from vime.train.values import clipped_value_loss, explained_variance

FOLDER = "critic"
"""Where a checkpoint keeps the critic."""
HEAD_FILE = "value_head.safetensors"


class ValueHead(nn.Module):
    """From hidden states to values, in float32 whatever the number format of the model. It begins at 0.

    So do the values: the first advantages are the returns themselves, and no random number is drawn.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, hidden_size))

    def forward(self, hidden_K_H: Tensor) -> Tensor:
        return nn.functional.linear(hidden_K_H.float(), self.weight.float()).squeeze(-1)


class ValueModel(nn.Module):
    """A Hugging Face model without its output embeddings, and a value head on it."""

    def __init__(self, backbone: nn.Module, hidden_size: int, pair_cost: float | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = ValueHead(hidden_size)
        self.pair_cost = pair_cost

    def forward(
        self,
        input_ids_B_T: Tensor,
        select_K: Tensor,
        *,
        position_ids_B_T: Tensor | None = None,
        attention_mask_B_1_T_T: Tensor | None = None,
    ) -> Tensor:
        """The values at the K positions that `select_K` indexes in the flattened (B, T), which is laid out as for the policy."""
        return self.head(hidden_states(self.backbone, input_ids_B_T, select_K, position_ids_B_T, attention_mask_B_1_T_T))


def start_critic(config: Any, model_path: str, policy: Any, dtype: torch.dtype, device: torch.device, plugins: Any = None) -> Critic | None:
    """The critic of a run that has one, beside `policy`, which was loaded from `model_path`; None for other estimators.

    Raises ConfigError where a plugin replaces the advantages that the critic is for, or the critic lacks tokens.
    """
    if config.advantage_estimator != "ppo" or config.loss_type == "sft_loss":
        return None
    hook = plugins.claimed("compute_advantages") if plugins is not None else None
    if hook is not None:
        raise ConfigError(
            f"--advantage-estimator ppo has its advantages from the critic, and {hook.label} replaces them (compute_advantages)",
            hint="choose another --advantage-estimator, or leave the plugin out",
        )
    folder = critic_source(config, model_path)
    check_model_folder(folder)
    critic = Critic(config, folder, dtype, device)
    if critic.vocab_size < policy.config.vocab_size:
        critic.close()
        raise ConfigError(
            f"the critic in {folder} has {critic.vocab_size} tokens, and the policy has {policy.config.vocab_size}",
            hint="give --critic-load a model with the policy's tokenizer",
        )
    return critic


def critic_source(config: Any, model_path: str) -> str:
    """The folder that the critic starts from.

    That of a resumed checkpoint; else `critic_load`; else the policy's. A checkpoint of a run with a critic stands for
    the critic in it.
    """
    is_resumed = config.load is not None and (model_path != config.hf_checkpoint or config.load == config.hf_checkpoint)
    folder = model_path if is_resumed or config.critic_load is None else config.critic_load
    inside = Path(folder).expanduser() / FOLDER
    return str(inside) if (inside / "config.json").is_file() else folder


class Critic:
    """Owns the value model and its optimizer."""

    def __init__(self, config: Any, folder: str, dtype: torch.dtype, device: torch.device) -> None:
        import deepspeed
        import deepspeed.comm as dist

        self.config, self.device = config, device
        model: Any = load_model(folder, dtype, config.attn_implementation, device)
        if config.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.vocab_size: int = model.config.vocab_size
        width = model.config.get_text_config().hidden_size
        self.model = ValueModel(getattr(model, model.base_model_prefix), width, attention_pair_cost(model))
        _load_head(self.model.head, Path(folder).expanduser() / HEAD_FILE)
        self.model.to(device=device, dtype=dtype)
        settings = deepspeed_config(config, dtype, dist.get_world_size())
        parameters: Any = list(self.model.parameters())
        with quiet_deepspeed():
            self.engine, *_ = deepspeed.initialize(model=self.model, model_parameters=parameters, config=settings)
        self.engine.train()
        self.stepper = Stepper(self.engine, critic_schedule(config), config, device, model="critic")

    def trains_alone(self, rollout_id: int) -> bool:
        """Whether this rollout is one of the first, which leave the policy as it is."""
        return rollout_id < self.config.num_critic_only_steps

    def fill_values(self, rows: Sequence[Row]) -> None:
        """Set `values_M` of each row to what the critic now thinks. All ranks call this with the same rows."""
        scored = token_scores(self._values, rows, self.config, self.device, self.stepper.share, self.model.pair_cost)
        for row, values_M in zip(rows, scored, strict=True):
            row.values_M = values_M

    def _values(self, micro: MicroBatch) -> Tensor:
        return self.engine(micro.input_ids_B_T, micro.select_K, **micro.layout)

    def train(self, batch: TrainBatch, rows: Sequence[Row], steps: Sequence[Sequence[int]]) -> dict[str, float]:
        """Take an optimizer step over the rows of each of `steps`, which have their returns, and report in metrics."""
        metrics = _about_values(rows)
        tally = Tally(self.stepper.ranks, self.device)
        tally.measures_difference = False
        by_index = {row.index: row for row in rows}
        applied = 0
        for step in steps:
            members = [by_index[index] for index in step if index in by_index]
            if members:
                self.stepper.accumulate(members, batch, tally, self._micro_loss)
                applied += self.stepper.apply(tally)
        names = {"loss": "value_loss", "grad_norm": "critic_grad_norm", "lr": "critic_lr"}
        metrics |= {names.get(name, name): value for name, value in tally.metrics().items()}
        return metrics | {"critic_skipped_steps": float(len(steps) - applied)}

    def _micro_loss(self, micro: MicroBatch, tally: Tally) -> Tensor:
        values_K = self._values(micro)
        assert micro.values_K is not None and micro.returns_K is not None, "rows are valued before they are trained on"
        loss_K, clipped_K = clipped_value_loss(values_K, micro.values_K, micro.returns_K, self.config.value_clip)
        loss = weighted_sum(loss_K, micro.weights_K)
        means = {"value_clipfrac": weighted_sum(clipped_K, micro.weights_K)}
        tally.add(LossResult(loss, {"loss": loss.detach()}, means), micro, values_K)
        return loss

    def save(self, directory: Path) -> None:
        """Write the model and the state of its optimizer. All ranks call this; rank 0 writes the model."""
        from safetensors.torch import save_file

        is_partitioned = self.engine.zero_optimization_partition_weights()
        backbone: Any = self.model.backbone
        weights = dict(gather_named_weights(backbone, is_partitioned=is_partitioned))
        head = dict(gather_named_weights(self.model.head, is_partitioned=is_partitioned))
        if self.stepper.rank == 0:
            with quiet_transformers():
                backbone.save_pretrained(directory, state_dict={name: tensor.contiguous() for name, tensor in weights.items()})
            save_file({name: tensor.contiguous() for name, tensor in head.items()}, directory / HEAD_FILE)
        with quiet_deepspeed():
            self.engine.save_checkpoint(str(directory / "deepspeed"), tag="state", save_latest=False)

    def load(self, directory: Path) -> None:
        """Restore weights and moments from what `save` wrote. Raises CheckpointError where they are not there."""
        path = None
        if (directory / "deepspeed").is_dir():
            with quiet_deepspeed():
                path, _ = self.engine.load_checkpoint(str(directory / "deepspeed"), tag="state")
        if path is None:
            raise CheckpointError(f"DeepSpeed could not load the critic's state from {directory / 'deepspeed'}")

    def close(self) -> None:
        """Release the model and the optimizer."""
        self.engine.destroy()


def _about_values(rows: Sequence[Row]) -> dict[str, float]:
    """How well the critic, as it was before this rollout, foresaw the returns."""
    values = torch.cat([row.values_M for row in rows if row.values_M is not None] or [torch.zeros(0)])
    returns = torch.cat([row.returns_M for row in rows if row.returns_M is not None] or [torch.zeros(0)])
    if not len(values) or not bool(torch.isfinite(values).all() and torch.isfinite(returns).all()):
        return {}
    metrics = {"values_mean": float(values.mean()), "returns_mean": float(returns.mean())}
    explained = explained_variance(values, returns)
    return metrics if explained is None else metrics | {"value_explained_variance": explained}


def _load_head(head: ValueHead, file: Path) -> None:
    """The head that a checkpoint of a critic has; another model's stays at 0."""
    from safetensors.torch import load_file

    if file.is_file():
        head.load_state_dict(load_file(file))
