"""The reference model: a frozen copy of the policy as it was, which the KL term compares with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vime.config.model_files import architecture_difference
from vime.errors import CheckpointError, ConfigError
from vime.train.lora import AdaptersOff
from vime.train.model_loading import load_model
from vime.train.parameters import gather_named_weights
from vime.train.policy_model import PolicyModel

FILE = "trainer/reference.safetensors"
"""Where a checkpoint keeps a reference model that is no longer the one of --ref-load."""


class Reference:
    """Holds the model, whole on every rank, and knows where it is: on `device`, or with `offload` on the host between calls."""

    def __init__(self, model: PolicyModel, device: torch.device, *, offload: bool, update_interval: int | None) -> None:
        self.model = model.eval().requires_grad_(False)
        self.device = device
        self.home = torch.device("cpu") if offload else device
        self.update_interval = update_interval
        self.was_updated = False
        """Whether it has taken the policy's weights, and so has to be in the checkpoint."""
        self.model.to(self.home)

    @contextmanager
    def scoring(self) -> Iterator[PolicyModel]:
        """The model on the device, for as long as the context lasts."""
        self.model.to(self.device)
        try:
            yield self.model
        finally:
            self.model.to(self.home)

    def after_rollout(self, rollout_id: int, named_weights: Callable[[], Iterable[tuple[str, Tensor]]]) -> None:
        """Become the policy after every `update_interval` rollouts, counted from the start of the run. All ranks call this."""
        if self.update_interval is not None and (rollout_id + 1) % self.update_interval == 0:
            self.update(named_weights())

    @torch.no_grad()
    def update(self, named_weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take these weights, under their Hugging Face names. Raises CheckpointError for a name or shape that is not the model's."""
        own: dict[str, Tensor] = self.model.model.state_dict(keep_vars=True)
        for name, tensor in named_weights:
            target = own.get(name)
            if target is None or target.shape != tensor.shape:
                expected = "does not have it" if target is None else f"has {tuple(target.shape)}"
                raise CheckpointError(f"weight {name} of shape {tuple(tensor.shape)}: the reference model {expected}")
            target.detach().copy_(tensor)
        self.was_updated = True

    def save(self, directory: Path) -> None:
        """Write the weights, where they are not those of --ref-load. One rank calls this."""
        from safetensors.torch import save_file

        if self.was_updated:
            weights = gather_named_weights(self.model.model, is_partitioned=False)
            save_file({name: tensor.contiguous() for name, tensor in weights}, directory / FILE)

    def load(self, directory: Path) -> None:
        """Read what `save` wrote. Without such a file the model of --ref-load is still the right one."""
        from safetensors.torch import load_file

        if (directory / FILE).exists():
            self.update(load_file(directory / FILE).items())


def load_reference(
    config: Any,
    model_path: str,
    policy: Any,
    dtype: torch.dtype,
    device: torch.device,
    warn: Callable[[str], object],
    base: AdaptersOff | None = None,
) -> Reference | AdaptersOff | None:
    """The reference model that this run's KL term needs, or None.

    It is that of --ref-load, else the model that the run began with: `model_path` may be a checkpoint to go on from.
    A policy with adapters has that one in it, as `base`; a copy of its own is needed only where it is to be updated.
    Raises ConfigError where it is another kind of model than the policy.
    """
    if config.loss_type == "sft_loss" or not (config.use_kl_loss or config.kl_coef):
        return None
    if base is not None and config.ref_load is None and config.ref_update_interval is None:
        if config.ref_offload:
            warn("--ref-offload does nothing with --lora-rank: the reference model is the policy without its adapters, not a copy")
        return base
    path = config.ref_load or config.hf_checkpoint or model_path
    offload = config.ref_offload and device.type != "cpu"
    if config.ref_offload and not offload:
        warn("--ref-offload does nothing on the CPU: the reference model is in the memory of the host anyway")
    model: Any = load_model(path, dtype, config.attn_implementation, torch.device("cpu") if offload else device)
    difference = architecture_difference(policy.config.to_dict(), model.config.to_dict())
    if difference is not None:
        raise ConfigError(
            f"the reference model {path} is not of the policy's kind: {difference}", hint="give --ref-load an earlier state of it"
        )
    wrapped = PolicyModel(model, config.rollout_temperature, config.logprob_chunk_size)
    return Reference(wrapped, device, offload=offload, update_interval=config.ref_update_interval)
