"""Whether the files that a configuration names are there and are what they should be. Opens nothing heavy."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, cast

from pydantic_core import from_json

from vime.config.extras import require_ray
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


def check_placement(config: RunConfig) -> None:
    """Raise MissingExtraError for `--runtime ray` without Ray."""
    if config.runtime == "ray":
        require_ray()


def check_inputs(config: RunConfig) -> None:
    """Raise ConfigError or CheckpointError for the first file that is not what a flag says.

    Data is looked at by vime.data.dataset.check_prompt_data, which reads its rows too.
    """
    check_placement(config)
    check_files(config)


def check_files(config: RunConfig) -> None:
    """The files of `check_inputs`."""
    policy = find_model(config.hf_checkpoint) if config.hf_checkpoint is not None else None
    if config.ref_load is not None:
        reference = find_model(config.ref_load, "--ref-load")
        if policy is not None:
            check_reference(policy, reference, f"--ref-load {config.ref_load}")
    if config.critic_load is not None and config.advantage_estimator == "ppo":
        find_model(_critic_in(config.critic_load), "--critic-load", needs_tokenizer=False)
    if config.load is not None and config.load != "auto" and not Path(config.load).is_dir():
        raise CheckpointError(f"--load {config.load}: no such folder", hint="give the folder of a checkpoint, or --load auto")
    if policy is not None and not config.debug_train_only:
        check_tensor_parallel(config, policy)
    if config.deepspeed_config is not None:
        read_deepspeed_settings(config.deepspeed_config)


def check_tensor_parallel(config: RunConfig, model: Path) -> None:
    """Raise ConfigError where the model of this folder cannot be split among the devices of an engine."""
    heads, tp = from_json((model / "config.json").read_bytes()).get("num_attention_heads"), config.engine_tp
    if isinstance(heads, int) and heads % tp:
        fitting = ", ".join(str(size) for size in range(1, heads + 1) if heads % size == 0)
        raise ConfigError(f"--engine-tp {tp} does not divide the {heads} attention heads of {model}", hint=f"possible sizes are {fitting}")


def read_deepspeed_settings(path: str) -> dict[str, Any]:
    """The content of --deepspeed-config. Raises ConfigError where it is not a JSON object."""
    flag = f"{flag_of('deepspeed_config')} {path}"
    try:
        settings: Any = from_json(Path(path).read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{flag}: no such file") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{flag} cannot be read: {error}", hint="give a JSON file") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{flag} holds a {type(settings).__name__}", hint="give a JSON object")
    return cast("dict[str, Any]", settings)
