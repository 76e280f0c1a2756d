"""What a trainer writes into a checkpoint and reads back.

A directory holds the Hugging Face model (config.json, safetensors), `trainer/state.json` (counters, Python's and
NumPy's random states), `trainer/rng.safetensors` (torch's), `trainer/reference.safetensors` (a reference model that has
been updated) and `deepspeed/` (weights, master weights, moments). The files under `deepspeed/` are torch pickles:
whoever opens a checkpoint checks its manifest first. A run with a critic has the critic's model and DeepSpeed state in
`critic/`.

With LoRA the model is the merged one, `adapter/` has the adapters in peft's format, and `deepspeed/` those alone: the
weights under them come from the model that the run was started with, and a checksum tells whether they are the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from vime.config.names import flag_of
from vime.errors import CheckpointError
from vime.train.critic import FOLDER as CRITIC
from vime.train.lora import is_adapter
from vime.train.parameters import gather_named_weights
from vime.train.quiet import quiet_deepspeed, quiet_transformers
from vime.train.random_states import DRIVER, load_process, restore_rng, rng_states, torch_rng_states

DEEPSPEED_TAG = "state"
STATE_FILE = "trainer/state.json"
ADAPTER_FOLDER = "adapter"
"""In a folder of its own: beside config.json, transformers would put the adapter on top of the merged model."""
ADAPTER_SETTINGS = ("lora_rank", "lora_alpha", "lora_target_modules")
FLAGS = {"ranks": "--runtime ray --trainer-ranks"}
"""Flags of identity entries that are not called like them."""
RNG_FILE = "trainer/rng.safetensors"
"""In a folder of its own: vLLM takes every safetensors file beside config.json for weights."""


def save(trainer: Any, directory: Path) -> None:
    """All ranks call this; rank 0 writes the model, the counters and the random states."""
    from safetensors.torch import save_file

    (directory / STATE_FILE).parent.mkdir(parents=True, exist_ok=True)
    # Every rank runs through the iterators, and the one that writes keeps what they yield.
    weights = {name: tensor for name, tensor in trainer.named_weights() if trainer.rank == 0}
    adapters = {name: tensor for name, tensor in _adapter_weights(trainer) if trainer.rank == 0}
    state = _state(trainer)
    if trainer.rank == 0:
        with quiet_transformers():
            trainer.model.save_pretrained(directory, state_dict={name: tensor.contiguous() for name, tensor in weights.items()})
        save_file(torch_rng_states(), directory / RNG_FILE)
        if trainer.reference is not None:
            trainer.reference.save(directory)
        (directory / STATE_FILE).write_text(json.dumps(state) + "\n", encoding="utf-8")
        if trainer.adapters is not None:
            trainer.adapters.save(directory / ADAPTER_FOLDER, adapters.items())
    if trainer.critic is not None:
        trainer.critic.save(directory / CRITIC)
    with quiet_deepspeed():
        trainer.engine.save_checkpoint(
            str(directory / "deepspeed"), tag=DEEPSPEED_TAG, save_latest=False, exclude_frozen_parameters=trainer.adapters is not None
        )


def load(trainer: Any, directory: Path) -> None:
    """Restore what `save` wrote, into a trainer of the same model, dtype and ZeRO stage.

    The random states are those of the process with the loop, if that was another than rank 0's.
    """
    for needed in (STATE_FILE, RNG_FILE, "deepspeed"):
        if not (directory / needed).exists():
            raise CheckpointError(
                f"{directory} cannot be resumed from: it has no {needed}", hint="give a checkpoint that vime wrote (step_N)"
            )
    state = json.loads((directory / STATE_FILE).read_text(encoding="utf-8"))
    _check_critic(trainer, state, directory)
    for key, now in _identity(trainer).items():
        before = state["identity"].get(key)
        if before != now and not (key == "ranks" and _is_whole_on_every_rank(trainer)):
            which = f"{FLAGS.get(key, flag_of(key))} {before}"
            raise CheckpointError(
                f"{directory} was written with {key} {before}, this run has {now}",
                hint=f"resume with {which}, or start anew from its model with --hf-checkpoint {directory}",
            )
    if state["base_sha256"] != _base_digest(trainer):
        raise CheckpointError(
            f"{directory} holds adapters of another model than the one of this run: the frozen weights differ",
            hint="resume with the --hf-checkpoint that the run was started with; the checkpoint itself holds the merged model",
        )
    with quiet_deepspeed():
        path, _ = trainer.engine.load_checkpoint(
            str(directory / "deepspeed"), tag=DEEPSPEED_TAG, load_module_strict=trainer.adapters is None
        )
    if path is None:
        raise CheckpointError(f"DeepSpeed could not load its state from {directory / 'deepspeed'}")
    if trainer.reference is not None:
        trainer.reference.load(directory)
    trainer.weight_version = state["weight_version"]
    _set_counters(trainer.stepper, state)
    if trainer.critic is not None:
        trainer.critic.load(directory / CRITIC)
        _set_counters(trainer.critic.stepper, state[CRITIC])
    restore_random_states(directory)


def restore_random_states(directory: Path) -> None:
    """Those of the process that had the loop: rank 0's, if they are not in files of their own."""
    from safetensors.torch import load_file

    if load_process(directory, DRIVER) is None:
        state = json.loads((directory / STATE_FILE).read_text(encoding="utf-8"))
        restore_rng(state["rng"], load_file(directory / RNG_FILE))


def _is_whole_on_every_rank(trainer: Any) -> bool:
    """Whether each rank has all of the optimizer's state, so that any number of them can take it over: float32 without ZeRO."""
    return not trainer.engine.zero_optimization()


def _check_critic(trainer: Any, state: dict[str, Any], directory: Path) -> None:
    """A run with a critic goes on from a checkpoint of such a run, and one without from one without."""
    if trainer.critic is not None and CRITIC not in state:
        raise CheckpointError(
            f"{directory} has no critic, and this run has one (--advantage-estimator ppo)",
            hint=f"start anew from its model, with a new critic: --hf-checkpoint {directory}",
        )
    if trainer.critic is None and CRITIC in state:
        raise CheckpointError(
            f"{directory} was written with a critic (--advantage-estimator ppo), and this run has none",
            hint=f"resume with --advantage-estimator ppo, or start anew from its model: --hf-checkpoint {directory}",
        )


def _counters(stepper: Any) -> dict[str, int]:
    return {"applied_steps": stepper.applied_steps, "bad_steps_in_a_row": stepper.bad_steps_in_a_row}


def _set_counters(stepper: Any, state: dict[str, Any]) -> None:
    stepper.applied_steps, stepper.bad_steps_in_a_row = state["applied_steps"], state["bad_steps_in_a_row"]


def _identity(trainer: Any) -> dict[str, Any]:
    return {
        "train_dtype": str(trainer.dtype).removeprefix("torch."),
        "zero_stage": trainer.config.zero_stage,
        "ranks": trainer.ranks,
        **{name: getattr(trainer.config, name) for name in (ADAPTER_SETTINGS if trainer.adapters is not None else ADAPTER_SETTINGS[:1])},
    }


def _adapter_weights(trainer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The adapters' own tensors, whole on every rank; none without adapters."""
    if trainer.adapters is not None:
        partitioned = trainer.engine.zero_optimization_partition_weights()
        yield from ((name, tensor) for name, tensor in gather_named_weights(trainer.model, is_partitioned=partitioned) if is_adapter(name))


def _base_digest(trainer: Any) -> str | None:
    """What tells the weights under the adapters from others; None without adapters, where the checkpoint holds all weights."""
    if trainer.adapters is None:
        return None
    partitioned = trainer.engine.zero_optimization_partition_weights()
    return trainer.adapters.base_digest(gather_named_weights(trainer.model, is_partitioned=partitioned))


def _state(trainer: Any) -> dict[str, Any]:
    critic = {} if trainer.critic is None else {CRITIC: _counters(trainer.critic.stepper)}
    return {
        "weight_version": trainer.weight_version,
        **_counters(trainer.stepper),
        **critic,
        "identity": _identity(trainer),
        "base_sha256": _base_digest(trainer),
        "rng": rng_states(),
    }
