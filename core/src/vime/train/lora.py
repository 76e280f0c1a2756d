"""Low-rank adapters on a frozen model: W x becomes W x + (alpha / r) B A x, and only A and B are trained.

LoRA (arXiv:2106.09685, eq. 3), through peft. Legend: I inputs, O outputs of a linear layer, r the rank.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vime.errors import ConfigError

ALL_LINEAR = "all-linear"
"""Stands for every linear layer but the output head, in `lora_target_modules` as in peft."""
ADAPTER = "default"
BASE = ".base_layer."
"""What peft puts into the name of a layer that got an adapter."""
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


def adapted_model(config: Any, model_path: str) -> str:
    """The model to train on. A checkpoint to go on from holds the merged model; adapters belong on the one that they were made for."""
    return config.hf_checkpoint if config.lora_rank and config.hf_checkpoint is not None else model_path


class Adapters:
    """The adapters of a model. Its own weights are frozen and never change; `model` is altered in place.

    Raises ConfigError for a target that is not there, and for models whose adapters could not be merged.
    """

    def __init__(self, model: nn.Module, config: Any, base_name: str) -> None:
        """`base_name` is what `adapter_config.json` will call the model that the adapters belong to."""
        from peft import LoraConfig, get_peft_model

        targets = check_targets(model, config.lora_target_modules)
        settings = LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.lora_alpha,
            lora_dropout=0.0,
            target_modules=targets,
            bias="none",
            task_type="CAUSAL_LM",
            fan_in_fan_out=any(_is_transposed(module) for module in model.modules()),
        )
        settings.base_model_name_or_path = base_name
        # Adapters have the model's number format: DeepSpeed keeps float32 copies of what it trains.
        self._peft: Any = get_peft_model(model, settings, adapter_name=ADAPTER, autocast_adapter_dtype=False)
        self._model = model
        self._digest: str | None = None

    def off(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the model is the one that the adapters were put on. Not for training: use it under `no_grad`."""
        return self._peft.disable_adapter()

    def merge(self, layer: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a layer under their public names, adapters added to what they adapt and no longer on their own.

        Tensors of the model are neither changed nor copied, but for those that have an adapter.
        """
        tensors = dict(layer)
        for name, tensor in tensors.items():
            path, _, last = name.rpartition(BASE)
            if path and last == "weight":
                module: Any = self._model.get_submodule(path)
                a, b = tensors[f"{path}.lora_A.{ADAPTER}.weight"], tensors[f"{path}.lora_B.{ADAPTER}.weight"]
                tensor = merged(tensor, a, b, module.scaling[ADAPTER], is_transposed=module.fan_in_fan_out)
            if not is_adapter(name):
                yield public_name(name), tensor

    def save(self, directory: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Write `adapter_config.json` and `adapter_model.safetensors`, as `PeftModel.from_pretrained` reads them.

        `tensors` are those of the model by name; others than the adapters' are left out.
        """
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        adapters = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in tensors if is_adapter(name)}
        directory.mkdir(parents=True, exist_ok=True)
        state = get_peft_model_state_dict(self._peft, adapters, ADAPTER, save_embedding_layers=False)
        save_file(state, directory / "adapter_model.safetensors", metadata={"format": "pt"})
        settings = copy.copy(self._peft.peft_config[ADAPTER])
        settings.inference_mode = True
        settings.save_pretrained(str(directory))

    def base_digest(self, tensors: Iterable[tuple[str, Tensor]]) -> str:
        """The sha256 over names and bytes of what is frozen. Computed once: it cannot change."""
        if self._digest is None:
            total = hashlib.sha256()
            for name, tensor in tensors:
                if not is_adapter(name):
                    total.update(public_name(name).encode())
                    total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
            self._digest = total.hexdigest()
        return self._digest


def merged(weight_O_I: Tensor, a_r_I: Tensor, b_O_r: Tensor, scale: float, *, is_transposed: bool = False) -> Tensor:
    """W + scale B A in W's number format, added up in float32. `is_transposed`: W is (I, O)."""
    delta_O_I = scale * (b_O_r.float() @ a_r_I.float())
    return (weight_O_I.float() + (delta_O_I.T if is_transposed else delta_O_I)).to(weight_O_I.dtype)


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name belongs to an adapter."""
    return ".lora_A." in name or ".lora_B." in name


def public_name(name: str) -> str:
    """A parameter's name without the adapter around it."""
    return name.replace(BASE, ".")


def check_targets(model: nn.Module, wanted: Sequence[str]) -> str | list[str]:
    """`wanted` as peft takes it. Raises ConfigError for a name that no linear layer of the model has, and for the output head."""
    config: Any = model.config
    experts = next((name for name in EXPERT_COUNTS if getattr(config, name, None)), None)
    if experts is not None:
        raise ConfigError(
            f"--lora-rank does not reach the experts of a mixture ({config.model_type} has {experts} {getattr(config, experts)})",
            hint="leave out --lora-rank: all weights are trained",
        )
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    linear = {name: module for name, module in model.named_modules() if _is_linear(module)}
    if list(wanted) == [ALL_LINEAR]:
        return ALL_LINEAR
    for target in wanted:
        found = [module for name, module in linear.items() if name == target or name.endswith(f".{target}")]
        if any(module is head for module in found):
            raise ConfigError(
                f"--lora-target-modules {target} is the output head, which takes no adapter", hint="leave it out, or train all weights"
            )
        if not found:
            there = sorted({name.rpartition(".")[2] for name, module in linear.items() if module is not head})
            raise ConfigError(
                f"--lora-target-modules {target}: no linear layer of {config.model_type} has this name",
                hint=f"there are {', '.join(there)}; {ALL_LINEAR} alone takes all of them",
            )
    return list(wanted)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or _is_transposed(module)


def _is_transposed(module: nn.Module) -> bool:
    """Whether a linear layer keeps its weight as (I, O), as those of GPT-2 do."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, Conv1D)


class AdaptersOff:
    """The reference model of a run with adapters: the policy's own engine without them, no second copy of the weights.

    It has the methods of `vime.train.reference.Reference`, and never changes.
    """

    def __init__(self, engine: Any, adapters: Adapters) -> None:
        self._engine = engine
        self._adapters = adapters

    @contextlib.contextmanager
    def scoring(self) -> Iterator[Any]:
        """The model without adapters, for as long as the context lasts."""
        with self._adapters.off():
            yield self._engine

    def after_rollout(self, rollout_id: int, named_weights: object) -> None:
        """It stays as it is."""

    def save(self, directory: Path) -> None:
        """There is nothing to write."""

    def load(self, directory: Path) -> None:
        """There is nothing to read."""
