"""Whether the files that a configuration names are there and are what they should be. Opens nothing heavy."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vime.config.model_files import check_model_files, check_reference
from vime.config.names import flag_of
from vime.config.run_config import RunConfig
from vime.errors import CheckpointError, ConfigError

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def find_model(name: str, flag: str = "--hf-checkpoint", *, needs_tokenizer: bool = True) -> Path:
    """The folder of a model: `name` itself, or its snapshot in the local Hugging Face cache. ConfigError names what is missing."""
    folder = Path(name).expanduser()
    if not folder.exists() and _HUB_NAME.fullmatch(name):
        cached = _cached_snapshot(name)
        if cached is None:
            raise ConfigError(
                f"{flag} {name}: neither a folder nor a model in the local Hugging Face cache",
                hint=f"give the folder of a model, or fetch it first: hf download {name}",
            )
        folder = cached
    if not folder.exists():
        raise ConfigError(f"{flag} {name}: no such folder", hint="give the folder of a model in Hugging Face format")
    if not folder.is_dir():
        hint = "convert it first: examples/smollm2 shows how" if folder.suffix == ".gguf" else "give the folder that it lies in"
        raise ConfigError(f"{flag} {name}: a file, not the folder of a model", hint=hint)
    missing = _missing_in_model(folder, needs_tokenizer)
    if missing:
        raise ConfigError(
            f"{flag} {name}: not a model folder, it has no {' and no '.join(missing)}",
            hint="a model in Hugging Face format has config.json, *.safetensors and tokenizer files, as save_pretrained writes them",
        )
    check_model_files(folder, f"{flag} {name}")
    return folder


def _cached_snapshot(name: str) -> Path | None:
    hub = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "hub"
    repository = Path(hub) / f"models--{name.replace('/', '--')}"
    main = repository / "refs" / "main"
    snapshots = [repository / "snapshots" / main.read_text().strip()] if main.is_file() else []
    return next((snapshot for snapshot in snapshots if (snapshot / "config.json").is_file()), None)


def _missing_in_model(folder: Path, needs_tokenizer: bool) -> list[str]:
    names = {path.name for path in folder.iterdir()}
    missing = [] if "config.json" in names else ["config.json"]
    if not any(name.endswith((".safetensors", ".bin")) for name in names):
        missing.append("weights (*.safetensors)")
    if needs_tokenizer and not any(name.startswith("tokenizer") or name in ("vocab.json", "spiece.model") for name in names):
        missing.append("tokenizer (tokenizer.json)")
    return missing


def _critic_in(name: str) -> str:
    """The critic in a checkpoint of a run that has one, else the folder itself."""
    inside = Path(name).expanduser() / "critic"
    return str(inside) if (inside / "config.json").is_file() else name


def refuse_missing_parts(config: RunConfig) -> None:
    """Raise ConfigError where the model or the data is not named. With `num_rollout` 0 there is evaluation only."""
    evaluates_only = config.num_rollout == 0
    needs_prompts = not evaluates_only and config.data_source_path is None and config.load_debug_rollout_data is None
    if config.hf_checkpoint is None:
        raise ConfigError(
            "no model: --hf-checkpoint is not set, though data is" if config.prompt_data or config.eval_datasets else "no model",
            hint="add --hf-checkpoint FOLDER; without a model and without data vime uses the quickstart's",
        )
    if needs_prompts and config.prompt_data is None:
        raise ConfigError(
            "no prompts: --prompt-data is not set, though a model is",
            hint="add --prompt-data FILE.jsonl; without a model and without data vime uses the quickstart's",
        )
    if evaluates_only and not config.eval_datasets:
        raise ConfigError("nothing to evaluate on", hint="name a dataset: --eval-prompt-data NAME PATH, or --eval-config FILE.yaml")


def check_inputs(config: RunConfig) -> None:
    """Raise ConfigError or CheckpointError for the first file that is not what a flag says.

    Data is looked at by vime.data.dataset.check_prompt_data, which reads its rows too.
    """
    policy = find_model(config.hf_checkpoint) if config.hf_checkpoint is not None else None
    if config.ref_load is not None:
        reference = find_model(config.ref_load, "--ref-load")
        if policy is not None:
            check_reference(policy, reference, f"--ref-load {config.ref_load}")
    if config.critic_load is not None and config.advantage_estimator == "ppo":
        find_model(_critic_in(config.critic_load), "--critic-load", needs_tokenizer=False)
    if config.load is not None and config.load != "auto" and not Path(config.load).is_dir():
        raise CheckpointError(f"--load {config.load}: no such folder", hint="give the folder of a checkpoint, or --load auto")
    if config.deepspeed_config is not None and not Path(config.deepspeed_config).is_file():
        raise ConfigError(f"{flag_of('deepspeed_config')} {config.deepspeed_config}: no such file")


_NOT_YET: dict[str, Callable[[Any], bool]] = {
    "runtime": lambda value: value == "ray",
    "pipeline": lambda value: value == "async",
    "trainer_ranks": lambda value: value != 1,
    "engines": lambda value: value != 1,
    "engine_tp": lambda value: value != 1,
    "wandb": bool,
}
"""Fields of this configuration that nothing reads yet, and whether a value asks for what is missing. Defaults never do."""


def refuse_unsupported(values: Mapping[str, Any]) -> None:
    """Raise ConfigError for what the configuration knows and this version cannot do yet.

    `values` are those that were given, typed but not validated: what is not there yet is refused before a contradiction
    with it, whose way out would lead here.
    """
    for field, asks in _NOT_YET.items():
        if field in values and asks(values[field]):
            value = values[field]
            shown = "" if isinstance(value, bool) else f" {value}"
            raise ConfigError(f"{flag_of(field)}{shown} is not available yet", hint="leave it out")
